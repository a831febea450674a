"""No clock decides what a built-in agent earns: not its own, its group's, or the engine's speed."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tutelage.agents.tool_calling import ToolCallingAgent
from tutelage.engine.driver import EngineDriver
from tutelage.engine.protocol import Request
from tutelage.rewards import reward
from tutelage.rollouts.models import EngineModelProvider
from tutelage.rollouts.runner import RolloutSpec, Runner, RunnerSettings
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine, tiny_engine
from tutelage.tools.builtin import calculator
from tutelage.types import Attempt, Mode, Rollout, Sampling, Task

LIMITS: dict[str, Any] = {"timeout": 0.05, "group_deadline": 0.05}


@reward(inline=True)
def tokens(trajectory: Attempt) -> float:
    """Differs with everything that was sampled."""
    return float(sum(i for call in trajectory.calls for i in call.sampled.token_ids))


def specs(count: int) -> list[RolloutSpec]:
    return [
        RolloutSpec(
            Task(f"t{i}", {"question": f"q{i}"}),
            Mode.TRAIN,
            f"g{i // 2}",
            i % 2,
            SeedTree(0).child(i),
        )
        for i in range(count)
    ]


async def played(engine: Any, codec: Any, **settings: Any) -> list[Rollout]:
    agent = ToolCallingAgent({"calculator": calculator}, Sampling(max_tokens=8), max_turns=2)
    limits = RunnerSettings("run", **settings)
    models = EngineModelProvider(engine, codec)
    return await Runner(agent, models, limits, reward=tokens).run(specs(4))


def rewards(rollouts: list[Rollout]) -> list[float | None]:
    assert [r.last.failure for r in rollouts] == [None] * len(rollouts)
    return [None if r.reward is None else r.reward.value for r in rollouts]


async def test_sampling_and_waiting_for_a_slot_may_take_longer_than_any_deadline(tiny: Any) -> None:
    codec = tiny("qwen2").codec

    async def slow(request: Request) -> str:
        await asyncio.sleep(0.2)
        return "42"

    found = rewards(await played(ScriptedEngine(codec, slow), codec, concurrency=1, **LIMITS))
    assert found == rewards(await played(ScriptedEngine(codec, lambda _: "42"), codec))


async def test_an_engine_that_is_slow_samples_the_same_rewards(tiny: Any) -> None:
    policy = tiny("qwen2")
    quick = rewards(await played(EngineDriver(tiny_engine(policy, slots=2)), policy.codec))
    engine = tiny_engine(policy, slots=2)
    step = engine.step

    def busy() -> Any:
        time.sleep(0.03)
        return step()

    engine.step = busy
    slow = rewards(await played(EngineDriver(engine), policy.codec, **LIMITS))
    assert slow == quick
    assert len(set(quick)) > 1
