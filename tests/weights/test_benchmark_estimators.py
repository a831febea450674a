"""The estimators' benchmark: one method, one seed, small; `test_learning.py` is about learning."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.delitem(sys.modules, "benchmarks", raising=False)
    from benchmarks.estimators import run

    return run


def test_no_method_sets_a_key_for_nothing(script: Any) -> None:
    from tutelage.weights.config import resolve

    from .samples import LAPTOP

    for name, keys in script.METHODS.items():
        overrides = [f"{k}={v}" for k, v in (script.SHARED | keys).items()]
        resolved = resolve("math", ["model.path=m", "steps=20", *overrides], machine=LAPTOP)
        assert set(resolved.unused) <= {"critic.optim.lr"}, f"{name} sets keys for nothing"
