"""The loss of one micro-batch as its share of the optimizer batch's: policy, KL, entropy.

    loss = policy_loss + kl_loss_coef * agg(kl) - entropy_coeff * agg(entropy)

Every term is averaged by the same rule with the same denominator. What is reported of the terms is
before their coefficients. `update.py` cuts the batch; the formulas are in `algorithms/rl`.

Legend: B rows, T tokens, K trained tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tutelage.algorithms.rl import (
    LOSSES,
    aggregate,
    importance_weights,
    kl_penalty,
    policy_loss,
)
from tutelage.config import RunConfig
from tutelage.config.rl import PolicyLossConfig
from tutelage.policy.network import TokenScores
from tutelage.weights.batch import Batch


@dataclass(frozen=True, slots=True)
class MicroBatchReport:
    """What one micro-batch tells: its rows and what was said of their tokens, its share of each
    term of the loss before the coefficients, the policy loss's metrics, and the sampler's error."""

    rows: list[int]
    scores: TokenScores
    metrics: dict[str, Tensor]
    policy: Tensor
    kl: Tensor
    entropy: Tensor
    mismatch_max: Tensor | None
    mismatch_k3_sum: Tensor


def rows_loss(
    scores: TokenScores,
    batch: Batch,
    numbers: list[int],
    config: RunConfig,
    denominator: float,
    selection_BT: Tensor | None,
) -> tuple[Tensor, MicroBatchReport]:
    """The loss of the rows with these numbers, and what to report of them. `denominator` is the
    optimizer batch's, `selection_BT` the tokens that a loss which selects them has chosen."""
    actor = config.actor
    cut = batch.cutter(numbers, scores.logp_K.device)
    mask, sampled = cut(batch.mask_BT), cut(batch.old_logp_BT)
    owners = [batch.rollouts_B[b] for b in numbers]
    where = (scores.rows_K, scores.columns_K)
    before_BT = batch.trainer_logp_BT
    known = sampled if before_BT is None else cut(before_BT)
    logp = known.clone().index_put(where, scores.logp_K)
    old = logp.detach() if before_BT is None else known
    way = actor.loss_agg_mode or LOSSES.find(actor.policy_loss.loss_mode).aggregation

    def average(x_BT: Tensor) -> Tensor:
        return aggregate(x_BT, mask, way, rollouts_B=owners, denominator=denominator)

    options = options_of(actor.policy_loss, LOSSES.find(actor.policy_loss.loss_mode).options)
    if before_BT is None:
        correction = (config.rollout.correction, config.rollout.correction_cap)
        options["weights_BT"] = importance_weights(old - sampled, mask, *correction)
    elif batch.weights_BT is not None:
        options["weights_BT"] = cut(batch.weights_BT)
    if selection_BT is not None:
        options["selection_BT"] = cut(selection_BT)
    policy, metrics = policy_loss(
        actor.policy_loss.loss_mode,
        logp,
        old,
        cut(batch.advantages_BT),
        mask,
        clip_ratio=actor.clip_ratio,
        clip_ratio_low=actor.clip_ratio_low,
        clip_ratio_high=actor.clip_ratio_high,
        clip_ratio_c=actor.clip_ratio_c,
        aggregation=way,
        rollouts_B=owners,
        denominator=denominator,
        **options,
    )
    value = policy
    kl = entropy = policy.new_zeros(())
    if actor.use_kl_loss:
        assert batch.ref_logp_BT is not None, "a KL in the loss comes with its reference"
        reference = cut(batch.ref_logp_BT)
        kl = average(_token_kl(logp, reference, actor.kl_loss_type, where, scores.full_kl_K))
        value = value + actor.kl_loss_coef * kl
    if actor.entropy_coeff > 0:
        entropy = average(torch.zeros_like(old).index_put(where, scores.entropy_K))
        value = value - actor.entropy_coeff * entropy
    gap_K = (scores.logp_K - sampled[where]).detach()
    own_K = gap_K  # of rows of the trainer's own version
    if batch.stale:
        fresh_B = torch.tensor([b not in batch.stale for b in numbers], device=gap_K.device)
        own_K = gap_K[fresh_B[scores.rows_K]]
    return value, MicroBatchReport(
        rows=numbers,
        scores=scores.detached(),
        metrics=metrics,
        policy=policy.detach(),
        kl=kl.detach(),
        entropy=entropy.detach(),
        mismatch_max=own_K.abs().max() if own_K.numel() else None,
        mismatch_k3_sum=(gap_K.exp() - gap_K - 1).sum(),
    )


def options_of(loss: PolicyLossConfig, names: Iterable[str]) -> dict[str, Any]:
    """The configured values of a loss's options, those that are keys."""
    return {name: getattr(loss, name) for name in names if name in PolicyLossConfig.model_fields}


def _token_kl(
    logp_BT: Tensor,
    ref_logp_BT: Tensor,
    kind: str,
    where: tuple[Tensor, Tensor],
    full_kl_K: Tensor | None,
) -> Tensor:
    """The KL of each token, [B, T]. `full` takes the exact one of the trained tokens `where`;
    `full+` is its value with the gradient of `k2`, as for the estimators."""
    if not kind.startswith("full"):
        return kl_penalty(logp_BT, ref_logp_BT, kind)
    assert full_kl_K is not None, "an exact KL comes with the distributions of both models"
    exact_BT = torch.zeros_like(ref_logp_BT).index_put(where, full_kl_K)
    if kind == "full":
        return exact_BT
    slope_BT = kl_penalty(logp_BT, ref_logp_BT, "k2")
    return exact_BT.detach() + (slope_BT - slope_BT.detach())
