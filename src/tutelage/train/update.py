"""One policy update: a batch of rows to optimizer steps, and what to log of them.

The batch is cut into optimizer batches of `ppo_mini_batch_size` rollouts, each into micro-batches
by tokens; every micro-batch is divided by the whole optimizer batch's denominator, so the gradient
does not depend on the cut. Rows whose advantages are all zero have a gradient of exactly zero when
no KL or entropy term is on: they are skipped, and still counted in the denominator. Losses and
their formulas live in `algorithms/rl`; batches come from `batch.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tutelage.algorithms.rl import (
    aggregate,
    aggregation_denominator,
    merge_metrics,
    policy_loss,
    rollout_importance_weights,
)
from tutelage.config import RunConfig
from tutelage.policy.model import Policy
from tutelage.policy.network import Scores
from tutelage.policy.packing import TokenRow, plan_micro_batches
from tutelage.seeds import SeedTree
from tutelage.train.batch import Batch
from tutelage.train.gradients import accumulate
from tutelage.train.optim import Optimizer

WHOLE_ROLLOUT_LOSSES = ("gspo", "geo_mean")
"""Losses that weigh a token by all of its rollout, so that its rows may not be parted."""


@dataclass(frozen=True, slots=True)
class Numerics:
    """How forwards are computed: activation type, threads, and whether the sampler differs."""

    dtype: torch.dtype = torch.float32
    threads: int = 1

    @property
    def exact(self) -> bool:
        """Whether the trainer recomputes what the sampler computed, to rounding."""
        return self.dtype == torch.float32


@dataclass(frozen=True, slots=True)
class _Report:
    """What one micro-batch tells: loss metrics, sums over its tokens, and the sampler's error."""

    metrics: dict[str, Tensor]
    loss: Tensor
    entropy_sum: Tensor
    mismatch_max: Tensor
    mismatch_k3_sum: Tensor
    tokens: int


def update_policy(
    policy: Policy,
    optimizer: Optimizer,
    batch: Batch,
    config: RunConfig,
    numerics: Numerics,
    *,
    seeds: SeedTree,
    rate: float = 1.0,
) -> dict[str, float]:
    """Train on a batch and return metrics; the policy's version grows by one.

    `max_dlogp` and `kl/rollout` compare sampler and trainer before the first optimizer step, on
    the trained tokens that were scored.
    """
    actor = config.actor
    old_logp_BT = batch.old_logp_BT
    weights_BT: Tensor | None = None
    if not numerics.exact or config.rollout.correction != "none":
        old_logp_BT = _recompute(policy, batch, config, numerics)
        weights_BT = rollout_importance_weights(
            old_logp_BT - batch.old_logp_BT,
            batch.mask_BT,
            config.rollout.correction,
            config.rollout.correction_cap,
            rollouts_B=batch.rollouts_B,
        )
    reports: list[_Report] = []
    first: list[_Report] = []
    norms: list[float] = []
    for epoch in range(actor.ppo_epochs):
        for number, part in enumerate(_mini_batches(batch, config, seeds.child("epoch", epoch))):
            found = _gradient(policy, batch, part, old_logp_BT, weights_BT, config, numerics)
            if epoch == 0 and number == 0:
                first = found
            reports += found
            # A batch without any variance has no gradient; the optimizer's clock still goes on.
            norms.append(optimizer.step(rate) if found else 0.0)
    policy.version += 1
    return _summary(reports, first, norms, batch, old_logp_BT)


def _mini_batches(batch: Batch, config: RunConfig, seeds: SeedTree) -> list[list[int]]:
    """Row numbers of each optimizer batch; rollouts are shuffled when there are several."""
    rollouts = sorted(set(batch.rollouts_B))
    size = config.actor.ppo_mini_batch_size or len(rollouts)
    if size < len(rollouts):
        seeds.python().shuffle(rollouts)
    parts = [set(rollouts[i : i + size]) for i in range(0, len(rollouts), size)]
    return [[b for b, r in enumerate(batch.rollouts_B) if r in part] for part in parts]


def _gradient(
    policy: Policy,
    batch: Batch,
    part: list[int],
    old_logp_BT: Tensor,
    weights_BT: Tensor | None,
    config: RunConfig,
    numerics: Numerics,
) -> list[_Report]:
    """Accumulate the gradient of one optimizer batch."""
    actor = config.actor
    owners = [batch.rollouts_B[b] for b in part]
    scale = actor.loss_scale_factor or float(config.response_tokens)
    denominator = aggregation_denominator(
        batch.mask_BT[part], actor.loss_agg_mode, rollouts_B=owners, scale=scale
    )
    live = part
    if actor.skip_zero_variance and actor.entropy_coeff == 0:
        some = {batch.rollouts_B[b] for b in part if bool(batch.advantages_BT[b].any())}
        live = [b for b in part if batch.rollouts_B[b] in some]
    rows = batch.token_rows()
    plan = plan_micro_batches(
        [rows[b] for b in live],
        _token_budget(rows, live, config),
    )
    if (
        actor.loss_agg_mode == "seq-mean-token-mean"
        or actor.policy_loss.loss_mode in WHOLE_ROLLOUT_LOSSES
    ):
        plan = _together(plan, [batch.rollouts_B[b] for b in live])

    def loss(chosen: list[int]) -> tuple[Tensor, _Report]:
        numbers = [live[i] for i in chosen]
        scores = policy.score(
            [rows[b] for b in numbers],
            temperature=config.rollout.temperature,
            dtype=numerics.dtype,
            entropy_gradient=actor.entropy_coeff > 0,
        )
        return _loss(scores, batch, numbers, old_logp_BT, weights_BT, config, denominator)

    return accumulate(policy.parameters(), plan, loss, threads=numerics.threads)


def _together(plan: list[list[int]], owners: Sequence[int]) -> list[list[int]]:
    """The plan with all rows of a rollout in the micro-batch that had its first one."""
    homes: dict[int, int] = {}
    for number, chosen in enumerate(plan):
        for i in chosen:
            homes.setdefault(owners[i], number)
    moved: list[list[int]] = [[] for _ in plan]
    for chosen in plan:
        for i in chosen:
            moved[homes[owners[i]]].append(i)
    return [chosen for chosen in moved if chosen]


def _token_budget(rows: Sequence[TokenRow], live: Sequence[int], config: RunConfig) -> int:
    """Tokens of a micro-batch: as configured, or so many rows of the longest."""
    count = config.actor.ppo_micro_batch_size_per_gpu
    if count is None or not live:
        return config.actor.max_tokens_per_micro_batch
    return count * max(len(rows[b].ids) for b in live)


def _loss(
    scores: Scores,
    batch: Batch,
    numbers: list[int],
    old_logp_BT: Tensor,
    weights_BT: Tensor | None,
    config: RunConfig,
    denominator: float,
) -> tuple[Tensor, _Report]:
    """The loss of some rows as their share of the optimizer batch's."""
    actor = config.actor
    device = scores.logp_K.device
    width = max(len(batch.rows[b].ids) for b in numbers)

    def cut(tensor: Tensor) -> Tensor:
        return tensor[numbers, :width].to(device)

    mask, old = cut(batch.mask_BT), cut(old_logp_BT)
    where = (scores.rows_K, scores.columns_K)
    logp = old.clone().index_put(where, scores.logp_K)
    options: dict[str, Any] = {} if weights_BT is None else {"weights_BT": cut(weights_BT)}
    value, metrics = policy_loss(
        actor.policy_loss.loss_mode,
        logp,
        old,
        cut(batch.advantages_BT),
        mask,
        clip_ratio=actor.clip_ratio,
        clip_ratio_low=actor.clip_ratio_low,
        clip_ratio_high=actor.clip_ratio_high,
        clip_ratio_c=actor.clip_ratio_c,
        aggregation=actor.loss_agg_mode,
        rollouts_B=[batch.rollouts_B[b] for b in numbers],
        denominator=denominator,
        **options,
    )
    if actor.entropy_coeff > 0:
        entropy = torch.zeros_like(old).index_put(where, scores.entropy_K)
        bonus = aggregate(
            entropy,
            mask,
            actor.loss_agg_mode,
            rollouts_B=[batch.rollouts_B[b] for b in numbers],
            denominator=denominator,
        )
        value = value - actor.entropy_coeff * bonus
    gap = (scores.logp_K - cut(batch.old_logp_BT)[where]).detach()
    return value, _Report(
        metrics=metrics,
        loss=value.detach(),
        entropy_sum=scores.entropy_K.detach().sum(),
        mismatch_max=gap.abs().max() if gap.numel() else gap.new_zeros(()),
        mismatch_k3_sum=(gap.exp() - gap - 1).sum(),
        tokens=gap.numel(),
    )


@torch.no_grad()
def _recompute(policy: Policy, batch: Batch, config: RunConfig, numerics: Numerics) -> Tensor:
    """The trainer's own log-probabilities of what was sampled, before any update."""
    out = batch.old_logp_BT.clone()
    rows = batch.token_rows()
    for chosen in plan_micro_batches(rows, config.actor.max_tokens_per_micro_batch):
        scores = policy.score(
            [rows[b] for b in chosen],
            temperature=config.rollout.temperature,
            dtype=numerics.dtype,
        )
        numbers = torch.tensor(chosen)[scores.rows_K.cpu()]
        out[numbers, scores.columns_K.cpu()] = scores.logp_K.cpu()
    return out


def _summary(
    reports: list[_Report],
    first: list[_Report],
    norms: list[float],
    batch: Batch,
    old_logp_BT: Tensor,
) -> dict[str, float]:
    """Metrics over all optimizer steps of a batch, averaged by tokens."""
    out: dict[str, float] = {
        "grad_norm": sum(norms) / len(norms),
        "group/zero_variance": batch.zero_variance / max(1, batch.groups),
        "group/single": batch.single_member / max(1, batch.groups),
    }
    exact_gap = (old_logp_BT - batch.old_logp_BT).abs().max()
    if not reports:
        return {**out, "loss/policy": 0.0, "max_dlogp": float(exact_gap)}
    merged = merge_metrics([r.metrics for r in reports])
    tokens = max(1, sum(r.tokens for r in reports))
    seen = max(1, sum(r.tokens for r in first))
    return {
        **out,
        "loss/policy": float(sum(r.loss for r in reports)) / len(norms),
        "entropy": float(sum(r.entropy_sum for r in reports)) / tokens,
        "ratio/clip_fraction": float(merged["clip_fraction"]),
        "ratio/max": float(merged["ratio_max"]),
        "max_dlogp": max([float(exact_gap), *(float(r.mismatch_max) for r in first)]),
        "kl/rollout": float(sum(r.mismatch_k3_sum for r in first)) / seen,
    }
