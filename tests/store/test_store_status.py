"""What may follow each status, exhaustively."""

from __future__ import annotations

import itertools

import pytest

from tutelage.errors import StoreError
from tutelage.store.status import (
    RUN_TRANSITIONS,
    check_run_transition,
    merge,
)
from tutelage.types import RolloutStatus

PENDING, RUNNING = RolloutStatus.PENDING, RolloutStatus.RUNNING
FAILED, SUCCEEDED = RolloutStatus.FAILED, RolloutStatus.SUCCEEDED


@pytest.mark.parametrize(("old", "new"), list(itertools.product(RolloutStatus, repeat=2)))
def test_attempts(old: RolloutStatus, new: RolloutStatus) -> None:
    stored, incoming = [(old, "a")], [(new, "b")]
    if old.terminal:
        assert merge("r", stored, incoming) == ([], [], [0])
    elif (old, new) == (RUNNING, PENDING):
        with pytest.raises(StoreError, match="in the order in which they happened"):
            merge("r", stored, incoming)
    else:
        assert merge("r", stored, incoming) == ([], [0], [])
    assert merge("r", stored, stored) == ([], [], [])


def test_the_last_attempt_decides_whether_more_may_follow() -> None:
    failed, done, running = (FAILED, "f"), (SUCCEEDED, "s"), (RUNNING, "r")
    assert merge("r", [], [failed, running]) == ([0, 1], [], [])
    assert merge("r", [failed, running], [failed, done]) == ([], [1], [])
    assert merge("r", [running], [failed, running]) == ([1], [0], [])
    assert merge("r", [failed], [failed, done]) == ([], [], [1])
    assert merge("r", [running, done], [failed, done]) == ([], [], [0])


RUN_STEPS = {
    ("pending", "running"),
    ("pending", "failed"),
    ("pending", "cancelled"),
    ("running", "succeeded"),
    ("running", "failed"),
    ("running", "cancelled"),
    ("succeeded", "running"),
    ("failed", "running"),
    ("cancelled", "running"),
}


@pytest.mark.parametrize(("old", "new"), list(itertools.product(RolloutStatus, repeat=2)))
def test_runs(old: RolloutStatus, new: RolloutStatus) -> None:
    assert set(RUN_TRANSITIONS) == set(RolloutStatus)
    if old == new or (old.value, new.value) in RUN_STEPS:
        check_run_transition("run_a", old, new)
    else:
        with pytest.raises(StoreError, match=f"'{old.value}' and cannot become '{new.value}'"):
            check_run_transition("run_a", old, new)
