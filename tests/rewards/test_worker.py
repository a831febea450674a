"""Rewards that hang, crash or cannot be sent away: each ends, and says which it was."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.marks import long

from tutelage import errors
from tutelage.rewards import RewardFunction, compute_reward, resolve_reward, reward
from tutelage.types import Attempt, Reward, RolloutStatus, Task

SOURCE = """
import os
import re
import time


def score(prediction):
    if prediction == "backtracks":
        re.match(r"(a+)+$", "a" * 40 + "b")  # for hours, and no signal or thread gets a turn
    if prediction == "sleeps":
        time.sleep(3600)
    if prediction == "dies":
        os._exit(9)
    if prediction == "raises":
        return int(prediction)
    if prediction == "odd":
        return "no number"
    return {"reward": 0.5, "process": os.getpid()}


def with_context(prediction, context):
    return float(os.getpid())
"""


@pytest.fixture
def score(tmp_path: Path) -> RewardFunction:
    (tmp_path / "mine.py").write_text(SOURCE)
    return resolve_reward(f"{tmp_path / 'mine.py'}:score")


def attempt(answer: str) -> Attempt:
    return Attempt("a", 0, RolloutStatus.SUCCEEDED, answer=answer)


async def graded(function: RewardFunction, answer: str = "", **options: Any) -> Reward:
    task = Task("t1", {"question": "q"})
    return await compute_reward(function, task, attempt(answer), **options)


async def test_a_plain_reward_runs_in_another_process(score: RewardFunction) -> None:
    for answer in ("x", "y"):
        found = await graded(score, answer)
        assert found.value == 0.5
        assert found.parts["process"] != os.getpid()


@pytest.mark.parametrize("how", ["backtracks", *long("sleeps")])
async def test_one_that_hangs_is_ended_and_the_next_one_is_graded(
    how: str, score: RewardFunction
) -> None:
    with pytest.raises(errors.GraderError, match=r"on task 't1' timed out after 1 seconds"):
        await asyncio.wait_for(graded(score, how, timeout=1.0), 60)
    assert (await graded(score, "x")).value == 0.5


async def test_what_a_worker_raises_is_what_the_reward_raised(score: RewardFunction) -> None:
    with pytest.raises(errors.AnswerError, match="ValueError: invalid literal") as caught:
        await graded(score, "raises")
    assert "return int(prediction)" in str(caught.value.__cause__)
    with pytest.raises(errors.RewardError, match="returned 'no number'"):
        await graded(score, "odd")
    with pytest.raises(errors.GraderError, match="crashed twice, last with exit code 9"):
        await graded(score, "dies")


async def test_one_that_cannot_leave_this_process_is_left_behind(tmp_path: Path) -> None:
    def closure(prediction: str) -> float:
        time.sleep(30)
        return 1.0

    async def waits(prediction: str) -> float:
        await asyncio.sleep(3600)
        return 1.0

    for function in (closure, waits):
        with pytest.raises(errors.GraderError, match=r"timed out after 0\.2 seconds"):
            await asyncio.wait_for(graded(reward(function), timeout=0.2), 60)
    (tmp_path / "mine.py").write_text(SOURCE)
    kept = resolve_reward(f"{tmp_path / 'mine.py'}:with_context")
    assert (await graded(kept, context={"shop": lambda: None})).value == os.getpid()
    assert (await graded(kept)).value != os.getpid()


async def test_who_is_cancelled_waits_for_no_worker(score: RewardFunction) -> None:
    work = asyncio.ensure_future(graded(score, "sleeps", timeout=2.0))
    await asyncio.sleep(0.5)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(work, 1.0)
    assert (await graded(score, "x")).value == 0.5
