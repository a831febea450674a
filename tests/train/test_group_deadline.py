"""A group's deadline: who has ended by then is compared, who has not is left out, counted."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from rollouts.test_runner import Says, echo, exact, specs

from tutelage.policy.codec import Codec
from tutelage.rollouts.runner import Runner, RunnerSettings
from tutelage.types import ChatClient, FailureCause, Mode, Rollout, Task


@pytest.fixture
def codec(tiny: Any) -> Codec:
    return tiny("qwen2").codec


async def play(codec: Codec, slow: set[str], mode: Mode = Mode.TRAIN) -> list[Rollout]:
    """Two groups of two; the tasks in `slow` never end by themselves."""

    async def act(task: Task, client: ChatClient, outcome: Any) -> None:
        if task.id in slow:
            await asyncio.sleep(30)

    limits = RunnerSettings("run", backoff=0.0, timeout=2.0, group_deadline=0.3)
    made = [dataclasses.replace(s, mode=mode) for s in specs(4)]
    return await Runner(echo(codec), codec, exact, limits).run(made, Says(act))


async def test_the_group_closes_with_its_survivors(codec: Codec) -> None:
    a, b, c, d = await play(codec, {"t1"})
    assert b.last.failure is not None
    assert b.last.failure.cause is FailureCause.CANCELLED
    assert "its group closed 0.3 seconds after it began" in b.last.failure.message
    assert b.reward is None, "no evidence about the agent: the deadline was the group's"
    assert all(r.reward is not None for r in (a, c, d))


async def test_it_is_for_training_alone(codec: Codec) -> None:
    """A held-out task has its own timeout, and what fails there counts as a failure."""
    rollouts = await play(codec, {"t1"}, Mode.VAL)
    failure = rollouts[1].last.failure
    assert failure is not None
    assert failure.cause is FailureCause.TIMEOUT
    assert rollouts[1].reward is not None
