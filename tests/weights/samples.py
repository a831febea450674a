"""Rollouts by hand: conversations over a real policy's vocabulary, with its log-probabilities."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

import torch
from tests.builders import make_attempt, make_call, make_rollout

from tutelage.config import Machine, RunConfig
from tutelage.policy.numerics import Numerics
from tutelage.policy.row import Row
from tutelage.seeds import SeedTree
from tutelage.types import (
    Call,
    Failure,
    FailureCause,
    Message,
    Reward,
    Rollout,
    Sampled,
    StopReason,
    Task,
)
from tutelage.weights.batch import Batch, add_advantages, make_rows
from tutelage.weights.config import resolve
from tutelage.weights.learner import Learner

Ids = tuple[int, ...]
LAPTOP = Machine(cuda_devices=0, cores=2)


def config(*overrides: str) -> RunConfig:
    """The configuration of `train math` with overrides."""
    return resolve("math", overrides, machine=LAPTOP).config


def make_batch(rollouts: Sequence[Rollout], config: RunConfig, **given: Any) -> Batch:
    """Rows and advantages of a step's rollouts; `given` is for `with_advantages`."""
    return add_advantages(make_rows(rollouts, config), config, **given)


def learn(
    learner: Learner, rollouts: Sequence[Rollout], *, seed: int = 0, step: int = 0
) -> tuple[Batch, dict[str, float]]:
    """What a learner does with the rollouts of one step, and the metrics of it."""
    batch = learner.estimate_advantages(learner.make_rows(rollouts), None)
    return learner.optimize(batch, seeds=SeedTree(seed), step=step, limit=None)


def logprobs(policy: Any, prompt: Ids, sampled: Ids) -> tuple[float, ...]:
    """What the engine would have recorded."""
    with torch.no_grad():
        scores = policy.score([Row(prompt + sampled, (0,) * len(prompt) + (1,) * len(sampled))])
    return tuple(scores.logp_K.tolist())


def call(policy: Any, index: int, prompt: Ids, sampled: Ids, noise: float, seed: int) -> Call:
    """One call; `noise` moves its recorded log-probabilities, as an older policy's would be."""
    rng = random.Random(seed)
    told = tuple(x + rng.uniform(-noise, noise) for x in logprobs(policy, prompt, sampled))
    return make_call(
        index,
        id=f"call_{seed}_{index}",
        messages=(Message("user", "?"),),
        prompt_ids=prompt,
        sampled=Sampled(sampled, told, told, StopReason.STOP, 0),
        reply=Message("assistant", "!"),
    )


def rollout(
    name: str,
    group: str,
    calls: Sequence[Call],
    reward: float | None,
    *,
    cause: FailureCause | None = None,
    stop: str = "answer",
) -> Rollout:
    """A rollout of one attempt; without a reward it was lost to `cause`."""
    attempt = make_attempt(
        *calls,
        id=f"att_{name}",
        answer="!",
        reward=None if reward is None else Reward(reward),
        failure=None if cause is None else Failure(cause, f"{cause.value} of {name}"),
        stop=None if cause is not None else stop,
    )
    return make_rollout(f"roll_{name}", attempt, task=Task(group, {"question": "?"}), group=group)


def conversation(
    policy: Any, rng: random.Random, *, turns: int, broken: bool = False, noise: float = 0.1
) -> list[Call]:
    """Calls of one rollout; `broken` makes later prompts not extend the earlier ones."""
    vocab = 300
    calls: list[Call] = []
    known: Ids = ()
    for turn in range(turns):
        fresh = tuple(rng.randrange(vocab) for _ in range(rng.randint(2, 9)))
        prompt = fresh if broken else known + fresh
        sampled = tuple(rng.randrange(vocab) for _ in range(rng.randint(1, 8)))
        calls.append(call(policy, turn, prompt, sampled, noise, rng.randrange(1 << 30)))
        known = prompt + sampled
    return calls


def update_policy(
    policy: Any,
    optimizer: Any,
    batch: Batch,
    config: RunConfig,
    numerics: Numerics | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """Metrics of one update of the policy, stepped by `optimizer`."""
    learner = Learner(policy, config, numerics or Numerics())
    learner.optimizer = optimizer
    return learner.optimize(batch, seeds=SeedTree(seed), step=0, limit=None)[1]


_STEPS: dict[tuple[Any, ...], list[Rollout]] = {}


def step_of_rollouts(policy: Any, seed: int, *, groups: int = 3, members: int = 4) -> list[Rollout]:
    """A training step: groups with different rewards, one without variance, some with many rows.
    The same for equal weights, for which it is made once."""
    weights = hashlib.blake2b()
    for _, tensor in policy.named_tensors():
        weights.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())
    key = (policy.config.model_type, weights.digest(), seed, groups, members)
    if key not in _STEPS:
        _STEPS[key] = _made(policy, seed, groups, members)
    return list(_STEPS[key])


def _made(policy: Any, seed: int, groups: int, members: int) -> list[Rollout]:
    rng = random.Random(seed)
    out: list[Rollout] = []
    for g in range(groups):
        for m in range(members):
            calls = conversation(policy, rng, turns=rng.randint(1, 3), broken=rng.random() < 0.3)
            reward = 1.0 if g == 0 else float(m == 0 or rng.random() < 0.4) if m != 1 else 0.0
            out.append(rollout(f"{g}-{m}", f"g{g}", calls, reward))
    return out
