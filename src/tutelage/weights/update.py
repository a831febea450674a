"""One policy update: a batch of rows to optimizer steps, and what to log of them.

The batch is cut into optimizer batches of `ppo_mini_batch_size` rollouts, each into micro-batches
by tokens; every micro-batch is divided by the whole optimizer batch's denominator, so the gradient
does not depend on the cut. Rows whose advantages are all zero have a gradient of exactly zero when
no KL or entropy term is on: they are skipped, and still counted in the denominator. Tokens that a
loss selects are selected once for the optimizer batch. Losses and their formulas live in
`algorithms/rl`; batches come from `batch.py`. The loss of one micro-batch is its share of

    loss = policy_loss + kl_loss_coef * agg(kl) - entropy_coeff * agg(entropy)

where every term is averaged by the same rule with the same denominator. What is reported of the
terms is before their coefficients.

Legend: B rows, T tokens, K trained tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tutelage.algorithms.extensions import LOSSES
from tutelage.algorithms.rl import (
    aggregate,
    aggregation_denominator,
    importance_weights,
    kl_penalty,
    merge_metrics,
    policy_loss,
)
from tutelage.algorithms.rl.advantages import estimate_advantages
from tutelage.config import RunConfig
from tutelage.config.rl import ActorConfig, PolicyLossConfig
from tutelage.policy.model import Policy
from tutelage.policy.network import TokenScores
from tutelage.policy.numerics import Numerics
from tutelage.seeds import SeedTree
from tutelage.tools.loading import is_file_reference
from tutelage.weights.batch import Batch
from tutelage.weights.optim import Optimizer
from tutelage.weights.process_group import ONE_PROCESS, ProcessGroup
from tutelage.weights.scoring import logp_of

DISTANCE_ROWS = 8
"""Rows that are scored again after an update, to say how far it moved the policy: few, since each
costs a forward pass."""


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


def update_policy(
    policy: Policy,
    optimizer: Optimizer,
    batch: Batch,
    config: RunConfig,
    numerics: Numerics,
    *,
    seeds: SeedTree,
    rate: float = 1.0,
    reference: Policy | None = None,
    group: ProcessGroup = ONE_PROCESS,
) -> tuple[Batch, dict[str, float]]:
    """Train on a batch; returns it with what the trainer said of its tokens, and metrics. The
    policy's version grows by one.

    `reference` is the reference policy where its whole distribution is needed. `max_dlogp` and
    `kl/rollout` compare sampler and trainer before the first optimizer step, on the trained tokens
    that were scored, and the first is absent where none was; `kl/update` compares the policy
    before and after.
    """
    if batch.trainer_logp_BT is None and not single_pass_logprobs(config, numerics):
        known_BT = trainer_logp(policy, batch, config, numerics, group)
        batch = replace(batch, trainer_logp_BT=known_BT)
    weights_BT, known_BT = None, batch.trainer_logp_BT
    if known_BT is not None and known_BT is not batch.old_logp_BT:
        weights_BT = _corrections(batch, known_BT, config)
    batch = replace(batch, weights_BT=weights_BT)
    reports: list[list[MicroBatchReport]] = []
    norms: list[float] = []
    per_epoch = 0
    for epoch in range(config.actor.ppo_epochs):
        under = seeds.child("epoch", epoch)
        parts = batch.mini_batches(config.actor.ppo_mini_batch_size, under)
        per_epoch = len(parts)
        for number, part in enumerate(parts):
            drawn = under.child("part", number)
            values = (policy, batch, part, config, numerics, drawn, reference, group)
            reports.append(_gradient(*values) if part else [])
            # A batch without any variance has no gradient; the optimizer's clock still goes on.
            norms.append(optimizer.step(rate) if reports[-1] else 0.0)
    policy.version += 1
    metrics = _summary(reports, norms, batch, config)
    batch = _with_tokens(batch, [r for found in reports[:per_epoch] for r in found], config)
    metrics |= _distance(policy, batch, config, numerics, group)
    return batch, metrics | _kl_pull(batch, config)


def _corrections(batch: Batch, logp_BT: Tensor, config: RunConfig) -> Tensor | None:
    """Importance weights between the sampler and log-probabilities of the trainer, [B, T]."""
    gap_BT, rule = (logp_BT - batch.old_logp_BT).nan_to_num(), config.rollout
    return importance_weights(
        gap_BT, batch.mask_BT, rule.correction, rule.correction_cap, rollouts_B=batch.rollouts_B
    )


def _kl_pull(batch: Batch, config: RunConfig) -> dict[str, float]:
    """How hard the KL in the loss pulls a token back, against how hard its advantage pushes it: the
    slope of each in the token's log-probability before the update, as root mean squares. Empty
    where nothing was compared."""
    actor, logp_BT, ref_BT = config.actor, batch.logp_BT, batch.ref_logp_BT
    if not actor.use_kl_loss or logp_BT is None or ref_BT is None:
        return {}
    pushed_BT = batch.mask_BT & (batch.advantages_BT != 0) & ~logp_BT.isnan()
    logp_K = logp_BT[pushed_BT].requires_grad_()
    if not logp_K.numel():
        return {}
    kind = "k2" if actor.kl_loss_type.startswith("full") else actor.kl_loss_type
    kl_penalty(logp_K, ref_BT[pushed_BT], kind).sum().backward()
    slope_K, advantage_K = logp_K.grad, batch.advantages_BT[pushed_BT]
    assert slope_K is not None, "every estimator depends on the policy"
    return {"kl/pull": actor.kl_loss_coef * float(slope_K.norm() / advantage_K.norm())}


def _distance(
    policy: Policy, batch: Batch, config: RunConfig, numerics: Numerics, group: ProcessGroup
) -> dict[str, float]:
    """How far the update moved the policy: the KL from before to after, in nats per token, on a few
    of the scored rows. Empty where none was scored."""
    assert batch.logp_BT is not None, "the update's passes have said what they made of the tokens"
    scored = [
        b for b, row in enumerate(batch.rows) if not batch.logp_BT[b, row.mask.index(1)].isnan()
    ]
    few = scored[:: max(1, len(scored) // DISTANCE_ROWS)][:DISTANCE_ROWS]
    if not few:
        return {}
    after_BT = logp_of(policy, [batch.rows[b] for b in few], config, numerics.dtype, group)
    width = after_BT.shape[1]
    gap_BT = batch.logp_BT[few, :width] - after_BT
    return {"kl/update": float(gap_BT[batch.mask_BT[few, :width]].mean())}


def _with_tokens(batch: Batch, passes: Sequence[MicroBatchReport], config: RunConfig) -> Batch:
    """A batch with what the passes of its first epoch said of each trained token: log-probabilities
    before the step, entropies, and importance weights where a correction is on."""
    logp_BT, entropy_BT = (torch.full(batch.mask_BT.shape, torch.nan) for _ in range(2))
    before_BT = batch.trainer_logp_BT if config.updates_per_batch > 1 else None
    for micro_batch_report in passes:
        scores = micro_batch_report.scores
        where = (torch.tensor(micro_batch_report.rows)[scores.rows_K.cpu()], scores.columns_K.cpu())
        known_K = scores.logp_K if before_BT is None else before_BT[where]
        logp_BT[where] = known_K.float().cpu()
        entropy_BT[where] = scores.entropy_K.float().cpu()
    weights_BT = batch.weights_BT
    if config.rollout.correction == "none":
        weights_BT = None
    elif weights_BT is None:
        weights_BT = _corrections(batch, logp_BT, config)
    if weights_BT is not None:
        weights_BT = weights_BT.masked_fill(logp_BT.isnan(), torch.nan)
    return replace(batch, logp_BT=logp_BT, entropy_BT=entropy_BT, weights_BT=weights_BT)


def trainer_logp(
    policy: Policy,
    batch: Batch,
    config: RunConfig,
    numerics: Numerics,
    group: ProcessGroup = ONE_PROCESS,
) -> Tensor:
    """What the trainer says of the sampled tokens before any update: as recorded where it computes
    what the sampler did, else computed again."""
    if numerics.exact and config.rollout.correction == "none":
        return batch.old_logp_BT
    return logp_of(policy, batch.rows, config, numerics.dtype, group)


def single_pass_logprobs(config: RunConfig, numerics: Numerics) -> bool:
    """Whether the only optimizer step's forward pass says what the trainer says before the update:
    then a pass of its own over every row is saved. Not where something needs those numbers for the
    whole batch before it is cut."""
    recomputed = not numerics.exact or config.rollout.correction != "none"
    selects = LOSSES.find(config.actor.policy_loss.loss_mode).select is not None
    whole = selects or config.rollout.correction.startswith("sequence")
    return recomputed and config.updates_per_batch == 1 and not whole


def _gradient(
    policy: Policy,
    batch: Batch,
    part: list[int],
    config: RunConfig,
    numerics: Numerics,
    seeds: SeedTree,
    reference: Policy | None,
    group: ProcessGroup,
) -> list[MicroBatchReport]:
    """Accumulate the gradient of one optimizer batch."""
    actor, mode = config.actor, config.actor.policy_loss.loss_mode
    owners = [batch.rollouts_B[b] for b in part]
    scale = actor.loss_scale_factor or float(config.response_tokens)
    rule = LOSSES.find(mode)
    way = actor.loss_agg_mode or rule.aggregation
    denominator = aggregation_denominator(batch.mask_BT[part], way, rollouts_B=owners, scale=scale)
    live = part
    # Rows without any advantage may have a gradient anyway.
    always = actor.entropy_coeff > 0 or actor.use_kl_loss or rule.zero_advantages
    if actor.skip_zero_variance and not always:
        some = {batch.rollouts_B[b] for b in part if bool(batch.advantages_BT[b].any())}
        live = [b for b in part if batch.rollouts_B[b] in some]
    rows = batch.rows
    budget = batch.token_budget(live, actor.ppo_micro_batch_size_per_gpu, actor)
    plan = policy.micro_batches([rows[b] for b in live], budget)
    if way == "seq-mean-token-mean" or rule.whole_rollouts:
        plan = _together(plan, [batch.rollouts_B[b] for b in live])
    selection_BT = _selection(batch, part, config, seeds)

    def loss(chosen: list[int]) -> tuple[Tensor, MicroBatchReport]:
        numbers = [live[i] for i in chosen]
        some = [rows[b] for b in numbers]
        warm, dtype = config.rollout.temperature, numerics.dtype
        reference_KV = None
        if reference is not None:
            reference_KV = reference.network.distribution(some, warm, dtype)
        scores = policy.score(
            some,
            temperature=warm,
            dtype=dtype,
            entropy_gradient=actor.entropy_coeff > 0,
            reference_KV=reference_KV,
        )
        return _rows_loss(scores, batch, numbers, config, denominator, selection_BT)

    return group.accumulate(policy.parameters(), plan, loss, threads=numerics.threads)


def _rows_loss(
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

    options: dict[str, Any] = {}
    if before_BT is None:
        correction = (config.rollout.correction, config.rollout.correction_cap)
        options["weights_BT"] = importance_weights(old - sampled, mask, *correction)
    elif batch.weights_BT is not None:
        options["weights_BT"] = cut(batch.weights_BT)
    if selection_BT is not None:
        options["selection_BT"] = cut(selection_BT)
    values = (logp, old, cut(batch.advantages_BT), mask)
    policy, metrics = _policy_loss(
        actor, *values, rollouts_B=owners, denominator=denominator, **options
    )
    value = policy
    kl = entropy = policy.new_zeros(())
    if actor.use_kl_loss:
        assert batch.ref_logp_BT is not None, "a KL in the loss comes with its reference"
        reference = cut(batch.ref_logp_BT)
        if actor.kl_loss_type.startswith("full"):  # exact, of the trained tokens
            assert scores.full_kl_K is not None, "it comes with both models' distributions"
            token_kl = torch.zeros_like(reference).index_put(where, scores.full_kl_K)
            if actor.kl_loss_type == "full+":  # its value, with the gradient of k2
                slope = kl_penalty(logp, reference, "k2")
                token_kl = token_kl.detach() + (slope - slope.detach())
        else:
            token_kl = kl_penalty(logp, reference, actor.kl_loss_type)
        kl = average(token_kl)
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


def _policy_loss(
    actor: ActorConfig,
    logp: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    rollouts_B: Sequence[int],
    denominator: float | None = None,
    **options: Any,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The configured policy loss and its metrics; `options` are those that are no keys."""
    mode = actor.policy_loss.loss_mode
    return policy_loss(
        mode,
        logp,
        old,
        advantages,
        mask,
        clip_ratio=actor.clip_ratio,
        clip_ratio_low=actor.clip_ratio_low,
        clip_ratio_high=actor.clip_ratio_high,
        clip_ratio_c=actor.clip_ratio_c,
        aggregation=actor.loss_agg_mode or LOSSES.find(mode).aggregation,
        rollouts_B=rollouts_B,
        denominator=denominator,
        **_options_of(actor.policy_loss, LOSSES.find(mode).options),
        **options,
    )


def _options_of(loss: PolicyLossConfig, names: Iterable[str]) -> dict[str, Any]:
    """The configured values of a loss's options, those that are keys."""
    return {name: getattr(loss, name) for name in names if name in PolicyLossConfig.model_fields}


def _together(plan: Sequence[Sequence[int]], owners: Sequence[int]) -> list[list[int]]:
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


def _selection(batch: Batch, part: list[int], config: RunConfig, seeds: SeedTree) -> Tensor | None:
    """The tokens that the loss selects in one optimizer batch, [B, T] over the whole batch."""
    settings = config.actor.policy_loss
    loss = LOSSES.find(settings.loss_mode)
    if loss.select is None:
        return None
    assert batch.trainer_logp_BT is not None, "tokens are selected by what the trainer said before"
    options = _options_of(settings, loss.selecting)
    if "generator" in loss.selecting:
        draw = seeds.child(loss.name).value()
        options["generator"] = torch.Generator().manual_seed(draw)
    numbers = (batch.trainer_logp_BT[part], batch.advantages_BT[part], batch.mask_BT[part])
    found = loss.select(*numbers, **options)
    selection_BT = torch.zeros_like(batch.mask_BT)
    selection_BT[part] = found
    return selection_BT


def _summary(
    steps: list[list[MicroBatchReport]], norms: list[float], batch: Batch, config: RunConfig
) -> dict[str, float]:
    """Metrics over all optimizer steps of a batch, averaged by tokens."""
    actor, reports, first = config.actor, [r for found in steps for r in found], steps[0]
    out: dict[str, float] = {"grad_norm": sum(norms) / len(norms), **batch.group_metrics}
    if not reports:
        return {**out, **batch.known_gap, "loss/policy": 0.0}
    merged = merge_metrics([r.metrics for r in reports])
    tokens = max(1, sum(len(r.scores.logp_K) for r in reports))
    seen = max(1, sum(len(r.scores.logp_K) for r in first))
    out["loss/policy"] = float(sum(r.policy for r in reports)) / len(norms)
    if actor.use_kl_loss:
        out["loss/kl"] = float(sum(r.kl for r in reports)) / len(norms)
    if actor.entropy_coeff > 0:
        out["loss/entropy"] = -float(sum(r.entropy for r in reports)) / len(norms)
    found = [r.mismatch_max for r in first]
    gaps = [*batch.known_gap.values(), *(float(gap) for gap in found if gap is not None)]
    return {
        **out,
        **({"max_dlogp": max(gaps)} if gaps else {}),
        "entropy": float(sum(r.scores.entropy_K.sum() for r in reports)) / tokens,
        "ratio/clip_fraction": float(merged["clip_fraction"]),
        "ratio/max": float(merged["ratio_max"]),
        "kl/rollout": float(sum(r.mismatch_k3_sum for r in first)) / seen,
    }


def try_extensions(config: RunConfig) -> None:
    """Call the estimators and the loss that are in the user's files once, on two groups of short
    rollouts: a mistake would otherwise show only after the cold start. Raises `ConfigError` for
    what they raise or return."""
    members, rule, actor = config.agent.num_chains, config.algorithm, config.actor
    signs_BT = torch.ones(2 * members, 4)
    signs_BT[1::2] = -1.0
    mask_BT, rollouts_B = torch.ones_like(signs_BT, dtype=torch.bool), range(2 * members)
    with torch.random.fork_rng(devices=[]):  # their draws here change no others
        for name in {rule.adv_estimator, config.trainer.control}:
            if is_file_reference(name):
                rewards_BT = torch.zeros_like(signs_BT)
                rewards_BT[::2, -1] = 1.0
                estimate_advantages(
                    name,
                    rewards_BT,
                    mask_BT,
                    groups_B=[row // members for row in rollouts_B],
                    rollouts_B=rollouts_B,
                    values_BT=torch.zeros_like(rewards_BT),
                    baselines_B=torch.zeros(2 * members),
                    gamma=rule.gamma,
                    lam=rule.lam,
                    norm_by_std=rule.norm_adv_by_std_in_grpo,
                    single_member=rule.single_member,
                )
        if is_file_reference(actor.policy_loss.loss_mode):
            logp_BT = torch.full_like(signs_BT, -1.0, requires_grad=True)
            values = (logp_BT, logp_BT.detach() - 0.1, signs_BT, mask_BT)
            selects = LOSSES.find(actor.policy_loss.loss_mode).select is not None
            selected: dict[str, Any] = {"selection_BT": mask_BT} if selects else {}
            _policy_loss(actor, *values, rollouts_B=rollouts_B, **selected)
