"""GRPO on tasks of your own, step by step, of the parts that `tutelage train math` is made of.

    python examples/grpo_loop.py TASKS.jsonl OUTPUT model=START steps=3 agent.reward_name=math

Any part can be replaced: how tasks are drawn, who plays them, what a rollout earns, how advantages
are made of rewards. Left as it is, it trains the policy that `tutelage train math --train
TASKS.jsonl` with the same keys trains, bit for bit.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace

from tutelage import Dataset, Task
from tutelage.agents.builtin import AGENTS
from tutelage.algorithms.rl import estimate_advantages
from tutelage.config import RunConfig
from tutelage.engine.factory import make_engine
from tutelage.policy.machine import apply_settings, choose_compute, detect_machine
from tutelage.policy.model import Policy, load_policy
from tutelage.policy.network import FusedNetwork
from tutelage.rewards import resolve_reward
from tutelage.rollouts.models import EngineModelProvider
from tutelage.rollouts.rows import build_rows
from tutelage.rollouts.runner import RolloutSpec, Runner, RunnerSettings
from tutelage.runs.inputs import load_tools
from tutelage.seeds import SeedTree
from tutelage.types import Mode, Sampling
from tutelage.weights.batch import Batch
from tutelage.weights.config import resolve
from tutelage.weights.learner import Learner
from tutelage.weights.sampling import epoch_indices


def train(tasks: Sequence[Task], config: RunConfig) -> Policy:
    """Train the model of `model.path` on tasks, and return it."""
    seeds, steps = SeedTree(config.seed), config.trainer.total_training_steps or 1
    tools = load_tools(config)
    policy = load_policy(str(config.model.path), tools=[tool.spec for tool in tools.values()])
    choice = choose_compute(config, policy.count(), isinstance(policy.network, FusedNetwork))
    apply_settings(choice, large=policy.network.large)
    policy = policy.to(choice.device)

    # What plays: an agent with tools, whose model is an engine that samples from the policy.
    engine = make_engine(
        policy,
        slots=config.rollout.slots,
        max_length=config.rollout.max_len,
        dtype=choice.numerics.dtype,
        threads=config.trainer.threads,
    )
    agent = AGENTS.find(config.agent.agent_type)(
        tools,
        Sampling(config.rollout.temperature, max_tokens=config.turn_tokens),
        max_turns=config.agent.max_turns,
        token_budget=config.response_tokens,
    )
    runner = Runner(
        agent,
        EngineModelProvider(engine, policy.codec),
        RunnerSettings("grpo_loop", failure_reward=config.agent.failure_reward),
        reward=resolve_reward(str(config.agent.reward_name)),
    )
    learner = Learner(policy, config, choice.numerics)

    with asyncio.Runner() as loop:
        for step in range(steps):
            specs = draw(tasks, step, config, seeds)
            rollouts = loop.run(runner.run(specs))
            engine.free()  # what it holds is not needed during the update

            batch = with_advantages(learner.make_rows(rollouts), config)
            under = seeds.child("rl", step, "update")
            batch, metrics = learner.optimize(batch, seeds=under, step=step, limit=steps)
            engine.update_weights(policy, policy.version)

            rows = [row for rollout in rollouts for row in build_rows(rollout.last.calls)]
            rewards = [r.reward.value for r in rollouts if r.reward is not None]
            print(
                f"step {step + 1}: reward {sum(rewards) / len(rewards):.3f}, {len(rows)} rows, "
                f"{sum(row.n_trained for row in rows)} tokens, loss {metrics['loss/policy']:+.4f}"
            )
    return policy


def draw(tasks: Sequence[Task], step: int, config: RunConfig, seeds: SeedTree) -> list[RolloutSpec]:
    """The rollouts of a step: the next tasks of a shuffled epoch, each played several times. All
    draws of a rollout come from its own seeds."""
    size = config.data.train_batch_size
    places = epoch_indices(len(tasks), step * size, size, seeds.child("rl", "order"))
    return [
        RolloutSpec(
            tasks[number],
            Mode.TRAIN,
            f"rl/{step}/{place}",
            index,
            seeds.child("rl", step, place, index),
        )
        for place, number in enumerate(places)
        for index in range(config.agent.num_chains)
    ]


def with_advantages(batch: Batch, config: RunConfig) -> Batch:
    """The batch with the advantages of GRPO: a reward less the mean of its group, over the standard
    deviation there. Rollouts without a sampled token are left out. B rows, T tokens."""
    advantages_BT, _ = estimate_advantages(
        "grpo",
        batch.rewards_BT,
        batch.mask_BT,
        groups_B=[batch.rollouts[number].group for number in batch.rollouts_B],
        rollouts_B=batch.rollouts_B,
        norm_by_std=config.algorithm.norm_adv_by_std_in_grpo,
    )
    return replace(batch, advantages_BT=advantages_BT)


def main(tasks: str, output: str, *keys: str) -> None:
    """Train by keys such as `model=FOLDER` and `lr=1e-4`, and save the policy."""
    config = resolve("math", [f"train={tasks}", *keys], machine=detect_machine()).config
    train(Dataset.load(tasks), config).save(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
