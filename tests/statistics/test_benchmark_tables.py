"""The tables of benchmarks that compare runs by task."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def bf16(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    monkeypatch.delitem(sys.modules, "benchmarks", raising=False)
    from benchmarks.real_model import bf16

    return bf16


def test_two_types_are_compared_by_seed_by_task_and_over_seeds(bf16: Any) -> None:
    same = [(1.0, 1.0)] * 60 + [(0.0, 0.0)] * 40
    worse = [(1.0, 0.0)] * 20 + [(1.0, 1.0)] * 80
    rows = bf16.report({0: same, 1: worse})
    assert [row[0] for row in rows] == ["seed 0", "seed 1", "all, by tasks", "all, by seeds"]
    assert rows[0][1:] == ["100", "60.0", "60.0", "+0.0 (+0.0 to +0.0), within 8", "0, 0, 100"]
    assert rows[1][4].startswith("-20.0 (-28.0 to -1")
    assert rows[2][1:4] == ["200", "80.0", "70.0"]
    assert all("not within 8" in row[4] for row in rows[1:])
    assert len(bf16.report({0: same})) == 1
