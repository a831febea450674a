"""Every loss mode, aggregation and correction through the update: no cut of the batch shows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.marks import first, long
from torch import Tensor

from tutelage.algorithms.rl import LOSSES, importance_weights

from .samples import config, make_batch, step_of_rollouts, update_policy
from .test_update import MODES, Probe, assert_same, each_once, gradient, permuted, split

Fresh = Callable[..., Any]
CUTS = ("actor.max_tokens_per_micro_batch=1", "actor.ppo_micro_batch_size_per_gpu=3")
WIDE = (
    "actor.policy_loss.clip_cov_ratio=0.2",
    "actor.policy_loss.clip_cov_lb=0.01",
    "actor.policy_loss.kl_cov_ratio=0.2",
    "actor.kl_loss_coef=0.3",
    "rollout.response_length=24",
)


@pytest.mark.parametrize(("loss", "aggregation"), each_once(tuple(LOSSES), MODES))
def test_micro_batches_do_not_change_it(fresh: Fresh, loss: str, aggregation: str) -> None:
    """With the entropy bonus on, so that no row is skipped."""
    policy = fresh("qwen2", 3)
    common = (
        *WIDE,
        f"actor.policy_loss.loss_mode={loss}",
        f"actor.loss_agg_mode={aggregation}",
        "actor.entropy_coeff=0.01",
    )
    batch = make_batch(step_of_rollouts(policy, 3), config(*common))
    wanted, told = gradient(policy, batch, config(*common))
    for cut in CUTS:
        found, again = gradient(policy, batch, config(*common, cut))
        assert_same(found, wanted)
        assert again == pytest.approx(told, rel=1e-4, abs=1e-5)


OFTEN = ("vanilla", "gspo")
"""Modes that every run of the tests has."""


@pytest.mark.parametrize(
    "loss",
    first(
        1,
        [
            pytest.param(name, marks=[pytest.mark.full] * (name not in OFTEN))
            for name in ("vanilla", "gspo", "geo_mean", "cispo", "sapo", "gpg")
        ],
    ),
)
def test_rows_of_a_rollout_do_not_change_it(fresh: Fresh, loss: str) -> None:
    policy = fresh("qwen3", 4)
    settings = config(*WIDE, f"actor.policy_loss.loss_mode={loss}", CUTS[0])
    batch = make_batch(step_of_rollouts(policy, 4), settings)
    pieces = split(batch)
    assert len(pieces.rows) > len(batch.rows)
    wanted, _ = gradient(policy, batch, settings)
    assert_same(gradient(policy, pieces, settings)[0], wanted)
    order = list(range(len(pieces.rows)))
    random.Random(0).shuffle(order)
    assert_same(gradient(policy, permuted(pieces, order), settings)[0], wanted)


@pytest.mark.parametrize(
    "loss", [*OFTEN, "kl_cov", *long(*(x for x in LOSSES if x not in (*OFTEN, "kl_cov")))]
)
def test_skipping_rows_without_advantage_changes_nothing(fresh: Fresh, loss: str) -> None:
    """Also where a loss penalises tokens that have none: there nothing is skipped."""
    policy = fresh("llama", 5)
    common = (*WIDE, f"actor.policy_loss.loss_mode={loss}")
    batch = make_batch(step_of_rollouts(policy, 5), config(*common))
    assert batch.zero_variance >= 1
    whole, _ = gradient(policy, batch, config(*common, "actor.skip_zero_variance=false"))
    assert_same(gradient(policy, batch, config(*common))[0], whole)


@pytest.mark.parametrize(
    ("loss", "option"),
    [
        ("sapo", "tau_pos=3"),
        ("clip_cov", "clip_cov_ratio=0.01"),
        ("kl_cov", "kl_cov_ratio=0.5"),
        *long(
            ("sapo", "tau_neg=3"),
            ("clip_cov", "clip_cov_lb=2"),
            ("clip_cov", "clip_cov_ub=0.02"),
            ("kl_cov", "ppo_kl_coef=3"),
        ),
    ],
)
def test_options_of_a_mode_reach_it(fresh: Fresh, loss: str, option: str) -> None:
    policy = fresh("qwen2", 6)
    common = (f"actor.policy_loss.loss_mode={loss}",)
    known = {
        "actor.policy_loss.clip_cov_ratio": "1.0",
        "actor.policy_loss.clip_cov_lb": "0.01",
        "actor.policy_loss.kl_cov_ratio": "0.2",
    }
    key, value = option.split("=")

    def found(**changed: str) -> list[Tensor]:
        keys = known | {f"actor.policy_loss.{k}": v for k, v in changed.items()}
        settings = config(*common, *(f"{k}={v}" for k, v in keys.items()))
        return gradient(policy, make_batch(step_of_rollouts(policy, 6), settings), settings)[0]

    plain, other = found(), found(**{key: value})
    assert not all(torch.allclose(a, b, atol=1e-6) for a, b in zip(plain, other, strict=True))


def test_the_random_selection_is_drawn_once_an_optimizer_batch(fresh: Fresh) -> None:
    """The same under every cut, another one in the next epoch, and another one by another seed."""
    policy = fresh("qwen2", 7)
    keys = (
        "actor.policy_loss.loss_mode=clip_cov",
        "actor.policy_loss.clip_cov_ratio=0.3",
        "actor.policy_loss.clip_cov_lb=0.01",
    )

    def steps(seed: int, *more: str) -> list[list[Tensor]]:
        settings = config(*keys, *more)
        probe: Any = Probe(policy)
        batch = make_batch(step_of_rollouts(policy, 7), settings)
        update_policy(policy, probe, batch, settings, seed=seed)
        return probe.steps

    def equal(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
        return all(torch.allclose(x, y, atol=1e-6) for x, y in zip(a, b, strict=True))

    twice = steps(0, "actor.ppo_epochs=2")
    assert equal(twice[0], steps(0)[0])
    assert equal(twice[0], steps(0, CUTS[0])[0])
    assert not equal(twice[0], twice[1])
    assert not equal(twice[0], steps(1)[0])


@pytest.mark.parametrize("level", ["token_tis", "sequence_mask", *long("sequence_tis", "icepop")])
def test_the_correction_weighs_tokens_by_their_rollout(fresh: Fresh, level: str) -> None:
    """`gpg` without clips is linear in the weights: the gradient is that of weighted advantages."""
    import dataclasses

    policy = fresh("qwen2", 8)
    common = ("actor.policy_loss.loss_mode=gpg", "actor.skip_zero_variance=false")
    batch = make_batch(step_of_rollouts(policy, 8), config(*common))
    settings = config(*common, f"rollout.correction={level}", "rollout.correction_cap=1.2")
    found, told = gradient(policy, batch, settings)
    own = torch.zeros_like(batch.old_logp_BT)
    for b, row in enumerate(batch.rows):
        scores = policy.score([row])
        own[b, scores.columns_K] = scores.logp_K.detach()
    weights = importance_weights(
        own - batch.old_logp_BT, batch.mask_BT, level, 1.2, rollouts_B=batch.rollouts_B
    )
    assert weights[batch.mask_BT].unique().numel() > 1
    weighed = dataclasses.replace(batch, advantages_BT=batch.advantages_BT * weights)
    assert_same(found, gradient(policy, weighed, config(*common))[0])
    assert told["max_dlogp"] == pytest.approx(0.1, abs=0.01), "the noise that was put in"
