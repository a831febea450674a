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


@pytest.mark.full
def test_the_script_trains_and_writes_its_table(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(script.SHARED, "data.train_batch_size", 2)
    monkeypatch.setitem(script.SHARED, "actor.ppo_mini_batch_size", 8)
    small = {
        "sft.max_steps": 4,
        "sft.cooldown_steps": 1,
        "sft.mixed_steps": 1,
        "sft.eval_every": 4,
        "trainer.val_tasks": 2,
        "trainer.threads": 1,
    }
    settings = script.Settings(seeds=1, steps=2, test_tasks=4, cold=small)
    found = script.run(["REINFORCE++"], settings)
    (result,) = found["REINFORCE++"]
    assert 0 <= result["after"] <= 1
    text = script.page(found, settings)
    assert "| REINFORCE++ |" in text
    assert "2 steps of 16 tasks" in text
