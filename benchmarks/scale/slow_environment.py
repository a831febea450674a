"""An environment that takes its time: each rollout waits as long as a lognormal draw says.

    agent.agent_type=benchmarks/scale/slow_environment.py:SlowEnvironmentAgent

A rollout has two turns of the policy with the environment's wait between them. The wait has a
median of 3 seconds and a 99th percentile of 30; it is a function of the rollout's identifier alone,
so that two runs of one seed and one folder name wait the same, however they are scheduled. A step
has 64 rollouts (8 tasks times 8), a run 20 steps, and there are three seeds. WAIT_SCALE in the
environment shortens all waits by a factor, which is for trying the benchmark out.
"""

from __future__ import annotations

import asyncio
import math
import os
from dataclasses import dataclass, replace

from tutelage.agents.session import RolloutSession
from tutelage.agents.tool_calling import ToolCallingAgent
from tutelage.resources import NamedResources
from tutelage.seeds import SeedTree
from tutelage.types import Message, Task

MEDIAN, PERCENTILE_99 = 3.0, 30.0
"""Seconds."""
SIGMA = math.log(PERCENTILE_99 / MEDIAN) / 2.3263478740408408
"""Of the logarithm; the divisor is the normal distribution's 99th percentile."""
TASKS, CHAINS, STEPS, SEEDS = 8, 8, 20, (0, 1, 2)


def wait_of(rollout_id: str) -> float:
    """Seconds that the environment of a rollout takes."""
    draw = SeedTree(0).child("wait", rollout_id).python().gauss(0.0, 1.0)
    return MEDIAN * math.exp(SIGMA * draw)


@dataclass(frozen=True, slots=True)
class SlowEnvironmentAgent(ToolCallingAgent):
    """Asks, waits for the environment, and answers."""

    async def play(self, task: Task, session: RolloutSession, resources: NamedResources) -> None:
        """Play one task."""
        assert session.client is not None, "it plays in this process"
        sampling = replace(self.sampling, max_tokens=min(self.sampling.max_tokens, 16))
        call = await session.client.chat(task.messages(), sampling=sampling)
        await asyncio.sleep(wait_of(session.rollout_id) * float(os.environ.get("WAIT_SCALE", "1")))
        messages = [*task.messages(), call.reply, Message("user", "go on")]
        call = await session.client.chat(messages, sampling=sampling)
        session.answer, session.stop = call.reply.content or "", "answer"


def reward(prediction: str) -> float:
    """Differs within a group whatever the policy says, so that every step trains."""
    return (sum(prediction.encode()) % 3) / 2
