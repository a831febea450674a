"""Play tasks with a policy that was trained.

The target is a run (its final policy, tools and reward) or any Hugging Face model folder. Tasks are
played on the engine's invariant mode, so a task's result does not depend on the other tasks or on
their order. `statistics/outcome.py` adds the rollouts up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tutelage.agents.builtin import AGENTS
from tutelage.engine.factory import make_engine
from tutelage.policy.model import Policy
from tutelage.rewards import RewardFunction
from tutelage.rewards.function import REWARD_SECONDS
from tutelage.rollouts.models import EngineModels
from tutelage.rollouts.runner import Runner, RunnerSettings, Spec
from tutelage.tools.tool import Tool
from tutelage.types import Rollout, Sampling

_SLOTS = 64
UNKEPT = "evaluation"
"""The run that rollouts name which no run folder keeps."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is evaluated: a policy, its tools, and the limits of its agent."""

    policy: Policy
    tools: Mapping[str, Tool]
    max_turns: int = 4
    max_tokens_per_turn: int = 256
    token_budget: int = 1 << 20
    max_length: int = 1024
    failure_reward: float = 0.0
    reward_timeout: float = REWARD_SECONDS
    agent_type: str = "hf"
    system_prompt: str | None = None


def play(
    subject: Subject,
    specs: Sequence[Spec],
    grader: RewardFunction,
    *,
    temperature: float,
    run_id: str = UNKEPT,
    known: Mapping[str, Rollout] | None = None,
    on_done: Callable[[Rollout], None] | None = None,
) -> list[Rollout]:
    """Run rollouts of a subject in the invariant mode, but for those that are `known` by id."""
    policy = subject.policy
    slots = min(_SLOTS, max(1, len(specs)))
    engine = make_engine(policy, slots=slots, max_length=subject.max_length, invariant=True)
    agent = AGENTS.find(subject.agent_type)(
        subject.tools,
        Sampling(temperature=temperature, max_tokens=subject.max_tokens_per_turn),
        max_turns=subject.max_turns,
        token_budget=subject.token_budget,
        system_prompt=subject.system_prompt,
    )
    settings = RunnerSettings(
        run_id,
        failure_reward=subject.failure_reward,
        reward_timeout=subject.reward_timeout,
    )
    found = dict(known or {})
    left = [spec for spec in specs if spec.seeds.id("roll") not in found]

    async def run() -> list[Rollout]:
        models = EngineModels(engine, policy.codec)
        return await Runner(agent, models, settings, reward=grader).run(left, on_done)

    found |= {rollout.id: rollout for rollout in asyncio.run(run())}
    return [found[spec.seeds.id("roll")] for spec in specs]
