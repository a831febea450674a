"""Evaluate a policy on a file of tasks, or ask it one question.

The target is a run (its final policy, tools and reward) or any Hugging Face model folder. Tasks are
played on the engine's invariant mode, so a task's result does not depend on the other tasks or on
their order. `statistics/outcome.py` adds the rollouts up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tutelage.agents.builtin import builtin_agent
from tutelage.engine.factory import make_engine
from tutelage.policy.model import Policy
from tutelage.rewards import RewardFunction, check, reward
from tutelage.rewards.function import REWARD_SECONDS
from tutelage.rollouts.models import EngineModels
from tutelage.rollouts.runner import Runner, RunnerSettings, Spec
from tutelage.seeds import SeedTree
from tutelage.statistics.outcome import Evaluation, Success, summarise
from tutelage.tasks.dataset import Dataset
from tutelage.tools.tool import Tool
from tutelage.types import Mode, Rollout, Sampling, Task

SLOTS = 64


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
    on_done: Callable[[Rollout], None] | None = None,
) -> list[Rollout]:
    """Run rollouts of a subject in the invariant mode."""
    policy = subject.policy
    slots = min(SLOTS, max(1, len(specs)))
    engine = make_engine(policy, slots=slots, max_length=subject.max_length, invariant=True)
    agent = builtin_agent(
        subject.agent_type,
        subject.tools,
        Sampling(temperature=temperature, max_tokens=subject.max_tokens_per_turn),
        max_turns=subject.max_turns,
        token_budget=subject.token_budget,
        system_prompt=subject.system_prompt,
    )
    settings = RunnerSettings(
        "evaluation",
        failure_reward=subject.failure_reward,
        reward_timeout=subject.reward_timeout,
    )

    async def run() -> list[Rollout]:
        models = EngineModels(engine, policy.codec)
        return await Runner(agent, models, settings, reward=grader).run(specs, on_done)

    return asyncio.run(run())


def evaluate_tasks(
    subject: Subject,
    tasks: Dataset[Any],
    grader: RewardFunction,
    *,
    samples: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
    success: Success | None = None,
    on_done: Callable[[Rollout], None] | None = None,
) -> Evaluation:
    """Play every task `samples` times. The grader is checked against the tasks first."""
    check(grader, tasks)
    seeds = SeedTree(seed).child("eval")
    specs = [
        Spec(task, Mode.TEST, task.id, i, seeds.child(task.id, i), label="eval")
        for task in tasks
        for i in range(samples)
    ]
    played = play(subject, specs, grader, temperature=temperature, on_done=on_done)
    return summarise(played, success)


@reward(name="ungraded")
def _ungraded(task: Task) -> float:
    return 0.0


def ask_question(subject: Subject, question: str, *, temperature: float, seed: int) -> Rollout:
    """Play one question, without a grade."""
    task = Task("question", {"question": question})
    spec = Spec(task, Mode.TEST, task.id, 0, SeedTree(seed).child("ask"), label="ask")
    return play(subject, [spec], _ungraded, temperature=temperature)[0]
