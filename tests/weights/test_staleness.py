"""How old rollouts may be: what is reported of it, and what is an error of the sampler."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tutelage.policy.numerics import Numerics
from tutelage.types import Call, Rollout
from tutelage.weights.learner import Learner

from .samples import config, conversation, learn, logprobs, rollout

Fresh = Callable[..., Any]


def of_version(calls: list[Call], version: int) -> list[Call]:
    return [replace(c, sampled=replace(c.sampled, policy_version=version)) for c in calls]


def group(policy: Any, *versions: int, noise: float) -> list[Rollout]:
    """A rollout of each version, with rewards that differ."""
    calls = [conversation(policy, random.Random(n), turns=2, noise=noise) for n in range(4)]
    return [
        rollout(f"{n}", "g", of_version(calls[n], version), float(n % 2))
        for n, version in enumerate(versions)
    ]


@pytest.mark.parametrize("correction", ["none", "token_tis"])
def test_the_samplers_error_is_measured_on_rows_of_the_present_version(
    fresh: Fresh, correction: str
) -> None:
    """What an older version said differs from the trainer for good reason, and is no error."""
    policy = fresh("qwen2", 13)
    policy.version = 2
    settings = config(f"rollout.correction={correction}", "actor.skip_zero_variance=false")
    rollouts = group(policy, 2, 2, 2, 2, noise=0.0)
    off = group(policy, 1, 0, 1, 1, noise=0.5)
    learner = Learner(policy, settings, Numerics())
    _, told = learn(learner, [*rollouts[:2], *off[2:]])
    assert told["max_dlogp"] < 1e-5 < 0.01 < told["kl/rollout"]
    assert (told["staleness/mean"], told["staleness/max"]) == (0.5, 1.0)
    policy.version = 2
    _, told = learn(learner, [*group(policy, 2, 2, 2, 2, noise=0.5)])
    assert told["max_dlogp"] > 0.2
    assert "staleness/mean" not in told, "nothing is said where nothing is stale"
    policy.version = 2
    _, told = learn(learner, [*group(policy, 0, 1, 1, 1, noise=0.5)])
    assert "max_dlogp" not in told, "nothing is said where nothing could be compared"


def test_fresh_rows_that_teach_nothing_are_not_compared(fresh: Fresh) -> None:
    policy = fresh("qwen2", 13)
    policy.version = 2
    calls = [
        of_version(conversation(policy, random.Random(n), turns=2, noise=0.5), 2) for n in range(2)
    ]
    equal = [rollout(f"equal {n}", "equal", some, 1.0) for n, some in enumerate(calls)]
    learner = Learner(policy, config("rollout.correction=none"), Numerics())
    _, told = learn(learner, [*equal, *group(policy, 1, 1, 1, 1, noise=0.5)])
    assert told["kl/rollout"] > 0.01
    assert "max_dlogp" not in told


def test_stale_rows_are_weighted_by_what_the_trainer_says_before_the_step(fresh: Fresh) -> None:
    policy = fresh("qwen2", 13)
    policy.version = 2
    settings = config("async_training.staleness_threshold=2", "actor.skip_zero_variance=false")
    learner = Learner(policy, settings, Numerics())
    rollouts = group(policy, 0, 1, 2, 1, noise=0.5)
    rows = learner.make_rows(rollouts).rows
    before = [logprobs(policy, r.ids[:1], r.ids[1:]) for r in rows]
    batch, _ = learn(learner, rollouts)
    assert batch.weights_BT is not None
    assert len(batch.stale) == 3
    for b, (row, known) in enumerate(zip(rows, before, strict=True)):
        for t in range(1, len(row.ids)):
            if row.mask[t]:
                wanted = min(math.exp(known[t - 1] - row.logprobs[t]), 2.0)
                assert float(batch.weights_BT[b, t]) == pytest.approx(wanted, rel=1e-3)
