"""The cold start: supervised steps on demonstrations, before the first rollout is rewarded.

Two parts. Clean demonstrations, until measured greedy success shows that the skills are there
(calling a tool, copying numbers into it, reading its result), and a cool-down that makes them
sharp. Then demonstrations of mixed quality, as real logs are: a stated share of them guesses an
answer instead of calling its tools, so the policy that reinforcement learning receives mostly
guesses, and has to find out what pays. Each step is a function of seed and step number. `phases.py`
drives it.
"""

from __future__ import annotations

import random

from torch import Tensor

from tutelage.policy.numerics import Numerics
from tutelage.policy.packing import plan_micro_batches
from tutelage.policy.row import Row
from tutelage.seeds import SeedTree
from tutelage.tasks.arithmetic import demonstrations
from tutelage.types import Task
from tutelage.weights.gradients import accumulate
from tutelage.weights.optim import Optimizer
from tutelage.weights.setting import Setting

WARMUP = 20
"""Steps over which the learning rate rises."""

FLOOR = 0.05
"""Share of the learning rate at the end of the cool-down, and in the mixed part."""


def demonstration_rows(setting: Setting, seeds: SeedTree, guess_share: float) -> list[Row]:
    """One batch of demonstrations, drawn from the training tasks."""
    rng = seeds.python()
    tasks = rng.sample(list(setting.tasks.shown), setting.config.sft.batch_size)
    return [_row(setting, task, rng, guess_share) for task in tasks]


def _row(setting: Setting, task: Task, rng: random.Random, guess_share: float) -> Row:
    guess = rng.random() < guess_share
    messages = [*task.messages(), *demonstrations(task, guess, rng)]
    return Row(*setting.policy.codec.demonstration(messages, setting.specs()))


def rate(step: int, cooldown_from: int | None, cooldown_steps: int) -> float:
    """Share of the learning rate at a step: warm-up, constant until the skill is measured, then
    linear to `FLOOR` over the cool-down, and constant again."""
    rise = min(1.0, (step + 1) / WARMUP)
    if cooldown_from is None or step < cooldown_from:
        return rise
    done = min(1.0, (step - cooldown_from + 1) / max(1, cooldown_steps))
    return rise * (1.0 - (1.0 - FLOOR) * done)


def supervised_step(
    setting: Setting,
    optimizer: Optimizer,
    rows: list[Row],
    numerics: Numerics,
    rate: float,
) -> dict[str, float]:
    """One step on rows: mean negative log-likelihood of their trained tokens."""
    policy = setting.policy
    total = sum(sum(r.mask) for r in rows)
    plan = plan_micro_batches(rows, setting.config.actor.max_tokens_per_micro_batch)

    def loss(chosen: list[int]) -> tuple[Tensor, Tensor]:
        scores = policy.score([rows[i] for i in chosen], dtype=numerics.dtype)
        value = -scores.logp_K.sum() / total
        return value, value.detach()

    parts = accumulate(policy.parameters(), plan, loss, threads=numerics.threads)
    norm = optimizer.step(rate)
    policy.version += 1
    return {"loss/sft": float(sum(parts)), "grad_norm": norm, "tokens": float(total)}
