"""The learner: the models of one step of reinforcement learning and their updates.

It has the policy's optimizer, the critic if the estimator needs one, and the reference if a KL is
on. It creates the rows of a step's rollouts, computes the inputs of estimator and KL, and updates
critic and policy. Its `state_dict` is all state except the policy's weights, so a checkpoint
between two steps is complete. Batches come from `batch.py`, losses from `algorithms/rl`.

A batch is split into optimizer batches of `ppo_mini_batch_size` rollouts, and each into
micro-batches by tokens; every micro-batch is divided by the whole optimizer batch's denominator, so
the gradient does not depend on the split. Rows whose advantages are all zero have a gradient of
exactly zero without KL and entropy terms: they are skipped, but count in the denominator. Losses
that select tokens select them once for the optimizer batch. The loss of one micro-batch is its
share of

    loss = policy_loss + kl_loss_coef * agg(kl) - entropy_coeff * agg(entropy)

where every term is averaged by the same mode with the same denominator. Reported terms do not
include their coefficients.

Several policies may learn from the same rollouts, each from its own calls and with a separate
learner; they share tasks, rewards and groups.

Legend: B rows, T tokens, K trained tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tutelage.algorithms.extensions import LOSSES
from tutelage.algorithms.rl import (
    aggregate,
    aggregation_denominator,
    importance_weights,
    kl_gradient_ratio,
    kl_penalty,
    merge_metrics,
    policy_loss,
)
from tutelage.algorithms.rl.advantages import estimate_advantages
from tutelage.config import RunConfig
from tutelage.config.rl import ActorConfig, PolicyLossConfig
from tutelage.errors import ConfigError, RunError
from tutelage.policy.model import Policy, load_policy
from tutelage.policy.network import TokenScores
from tutelage.policy.numerics import Numerics
from tutelage.policy.packing import group_by_owner
from tutelage.policy.value import ValueModel
from tutelage.resources import POLICY
from tutelage.seeds import SeedTree
from tutelage.tools.loading import is_file_reference
from tutelage.types import Rollout
from tutelage.weights.batch import Batch, add_advantages, make_rows
from tutelage.weights.config.extensions import has_critic
from tutelage.weights.critic import Critic
from tutelage.weights.optim import Optimizer, learning_rate_factor, make_optimizer
from tutelage.weights.process_group import ONE_PROCESS, ProcessGroup
from tutelage.weights.reference import ReferencePolicy
from tutelage.weights.scoring import compute_logp

CLIP_RATIOS = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")
DISTANCE_ROWS = 8
"""Number of rows that are scored again after an update, to measure how far it moved the policy.
Each costs a forward pass."""


@dataclass(frozen=True, slots=True)
class MicroBatchReport:
    """The results of one micro-batch: rows, token scores, metrics and loss terms."""

    rows: list[int]
    scores: TokenScores
    metrics: dict[str, Tensor]
    terms: dict[str, Tensor]

    @property
    def tokens(self) -> tuple[Tensor, Tensor]:
        """Return the row and the column of each token in the batch."""
        return torch.tensor(self.rows)[self.scores.rows_K.cpu()], self.scores.columns_K.cpu()


class Learner:
    """The trainer of one policy, with its optimizer, critic and reference."""

    def __init__(
        self,
        policy: Policy,
        config: RunConfig,
        numerics: Numerics,
        *,
        fresh: bool = True,
        initial_weights: dict[str, Tensor] | None = None,
        name: str = POLICY,
        group: ProcessGroup = ONE_PROCESS,
    ) -> None:
        """Create a learner.

        `fresh` is True if the policy still has its initial weights; `initial_weights` are these
        weights if they were kept. `name` selects the calls to learn from (`Call.policy`), `group`
        the processes of the training.
        """
        self._name, self._group = name, group
        self._config, self._numerics, self._whole = config, numerics, policy
        self.critic: Critic | None = None
        self.reference: ReferencePolicy | None = None
        fsdp = config.actor.fsdp_config
        offload = fsdp.param_offload or fsdp.optimizer_offload
        if has_critic(config):
            path = config.critic.model.path
            source = policy.copy() if path is None else load_policy(path, device=policy.device)
            if config.model.enable_gradient_checkpointing:
                source.network.enable_checkpointing()
            described: Any = source.config.get_text_config()
            trunk = group.shard(source, numerics.dtype, offload=offload, head=False)
            model = ValueModel(trunk.network, described.hidden_size)
            self.critic = Critic(model, config, numerics, group)
        if config.needs_reference:
            frozen = group.shard(
                _make_reference(policy, config, fresh, initial_weights),
                numerics.dtype,
                offload=config.ref.fsdp_config.param_offload,
            )
            self.reference = ReferencePolicy(frozen, config, numerics, group)
        self._policy = own = group.shard(policy, numerics.dtype, offload=offload)
        self.optimizer = make_optimizer(own.named_tensors(), config.actor.optim, group=group)

    def make_rows(self, rollouts: Sequence[Rollout]) -> Batch:
        """Create a batch with the rows of this policy; see `batch.make_rows`."""
        return make_rows(rollouts, self._config, self._name, self._policy.version)

    def estimate_advantages(self, batch: Batch, baselines: Mapping[str, float] | None) -> Batch:
        """Return the batch with advantages, values and log-probabilities of the reference.

        `baselines` are rewards of greedy rollouts by group, for estimators that need them.
        """
        critic, reference = self.critic, self.reference
        if critic is not None or reference is not None:
            batch = replace(batch, trainer_logp_BT=self.trainer_logp(batch))
        if reference is not None:
            batch = reference.measure(self._policy, batch)
        return add_advantages(
            batch,
            self._config,
            values_BT=None if critic is None else critic.values(batch.rows),
            bootstrap_BT=None if critic is None else critic.bootstrap_values(batch),
            baselines=baselines,
            beta=0.0 if reference is None else reference.beta,
        )

    def optimize(
        self, batch: Batch, *, seeds: SeedTree, step: int, limit: int | None
    ) -> tuple[Batch, dict[str, float]]:
        """Update critic and policy with the batch of a step, counted from 0, of `limit` steps.

        The first `trainer.critic_warmup` steps train only the critic. Returns the batch with the
        trainer's log-probabilities, and metrics.
        """
        config, critic = self._config, self.critic
        values: dict[str, float] = {}
        if batch.stale:
            behind = [self._policy.version - row.oldest_version for row in batch.rows]
            values["staleness/mean"] = sum(behind) / len(behind)
            values["staleness/max"] = float(max(behind))
        if critic is not None:
            rate = learning_rate_factor(step, limit, config.critic.optim)
            values |= critic.update(batch, seeds=seeds.child("critic"), rate=rate)
            values["value/lr"] = config.critic.optim.lr * rate
        if critic is not None and step < config.trainer.critic_warmup:
            values |= {**batch.group_metrics, **batch.logprob_gap, "lr": 0.0}
        else:
            rate = learning_rate_factor(step, limit, config.actor.optim)
            batch, fields = self._update_policy(batch, seeds, rate)
            values |= {**fields, "lr": config.actor.optim.lr * rate}
            self._group.publish(self._policy, self._whole)
        if self.reference is not None:
            values |= self.reference.update(batch)
        return batch, values

    def state_dict(self) -> dict[str, Any]:
        """Return the training state, except the weights of the policy."""
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict. Raises `RunError` if a component is missing."""
        for name, part in self._parts.items():
            if name not in state_dict:
                raise RunError(
                    f"the checkpoint has no {name}, which this configuration needs; continue with "
                    "the configuration that saved it, or start a new run"
                )
            part.load_state_dict(state_dict[name])

    @property
    def _parts(self) -> dict[str, Optimizer | Critic | ReferencePolicy]:
        """Return the components with a state dict, by name."""
        parts = {"policy": self.optimizer, "critic": self.critic, "reference": self.reference}
        return {name: part for name, part in parts.items() if part is not None}

    def trainer_logp(self, batch: Batch) -> Tensor:
        """Return the trainer's log-probabilities before any update.

        The log-probabilities of the sampler are reused if the trainer computes the same values.
        """
        config, numerics = self._config, self._numerics
        if numerics.is_exact and config.rollout.correction == "none":
            return batch.old_logp_BT
        return compute_logp(self._policy, batch.rows, config, numerics.dtype, self._group)

    # ------------------------------------------------------------ the policy's update

    def _update_policy(
        self, batch: Batch, seeds: SeedTree, rate: float
    ) -> tuple[Batch, dict[str, float]]:
        """Train the policy on a batch, and return the batch with log-probabilities, and metrics.

        The policy's version increases by one. `max_dlogp` and `kl/rollout` compare sampler and
        trainer before the first optimizer step on the scored trained tokens; the first is missing
        without any. `kl/update` compares the policy before and after.
        """
        config, actor = self._config, self._config.actor
        if batch.trainer_logp_BT is None and not single_pass_logprobs(config, self._numerics):
            batch = replace(batch, trainer_logp_BT=self.trainer_logp(batch))
        known_BT = batch.trainer_logp_BT
        if known_BT is not None and known_BT is not batch.old_logp_BT:
            batch = replace(batch, weights_BT=_correction_weights(batch, known_BT, config))
        steps: list[list[MicroBatchReport]] = []
        norms: list[float] = []
        per_epoch = 0
        for epoch in range(actor.ppo_epochs):
            under = seeds.child("epoch", epoch)
            parts = batch.mini_batches(actor.ppo_mini_batch_size, under)
            per_epoch = len(parts)
            for number, part in enumerate(parts):
                steps.append(self._backward(batch, part, under.child("part", number)))
                # A batch without any variance has no gradient; the optimizer's clock still goes on.
                norms.append(self.optimizer.step(rate) if steps[-1] else 0.0)
        self._policy.version += 1
        metrics = _summarize(steps, norms, batch)
        batch = _add_values(batch, [r for found in steps[:per_epoch] for r in found], config)
        assert batch.logp_BT is not None, "the passes have said what they made of the tokens"
        # How far the policy moved: the KL from before to after, on a few of the scored rows.
        scored = [
            b for b, row in enumerate(batch.rows) if not batch.logp_BT[b, row.mask.index(1)].isnan()
        ]
        few = scored[:: max(1, len(scored) // DISTANCE_ROWS)][:DISTANCE_ROWS]
        if few:
            some, dtype = [batch.rows[b] for b in few], self._numerics.dtype
            after_BT = compute_logp(self._policy, some, config, dtype, self._group)
            gap_BT = batch.logp_BT[few, : after_BT.shape[1]] - after_BT
            moved = gap_BT[batch.mask_BT[few, : after_BT.shape[1]]].mean()
            metrics["kl/update"] = float(moved)
        if actor.use_kl_loss and batch.ref_logp_BT is not None:
            values = (batch.logp_BT, batch.ref_logp_BT, batch.advantages_BT, batch.mask_BT)
            pull = kl_gradient_ratio(*values, actor.kl_loss_type)
            metrics |= {} if pull is None else {"kl/pull": actor.kl_loss_coef * pull}
        return batch, metrics

    def _backward(self, batch: Batch, chunk: list[int], seeds: SeedTree) -> list[MicroBatchReport]:
        """Accumulate the gradient of one optimizer batch, given by its row numbers."""
        config, actor, rows = self._config, self._config.actor, batch.rows
        if not chunk:
            return []
        owners = [batch.rollouts_B[b] for b in chunk]
        scale = actor.loss_scale_factor or float(config.response_tokens)
        rule = LOSSES.find(actor.policy_loss.loss_mode)
        way = actor.loss_agg_mode or rule.aggregation
        denominator = aggregation_denominator(
            batch.mask_BT[chunk], way, rollouts_B=owners, scale=scale
        )
        live = chunk
        # Rows without any advantage may have a gradient anyway.
        always = actor.entropy_coeff > 0 or actor.use_kl_loss or rule.zero_advantages
        if actor.skip_zero_variance and not always:
            some = {batch.rollouts_B[b] for b in chunk if bool(batch.advantages_BT[b].any())}
            live = [b for b in chunk if batch.rollouts_B[b] in some]
        budget = batch.token_budget(live, actor.ppo_micro_batch_size_per_gpu, actor)
        plan = self._policy.micro_batches([rows[b] for b in live], budget)
        if way == "seq-mean-token-mean" or rule.whole_rollouts:
            plan = group_by_owner(plan, [batch.rollouts_B[b] for b in live])
        selection_BT = _select_tokens(batch, chunk, actor.policy_loss, seeds)
        full = actor.use_kl_loss and actor.kl_loss_type.startswith("full")
        exact = self.reference if full else None

        def loss(indices: list[int]) -> tuple[Tensor, MicroBatchReport]:
            numbers = [live[i] for i in indices]
            some = [rows[b] for b in numbers]
            scores = self._policy.score(
                some,
                temperature=config.rollout.temperature,
                dtype=self._numerics.dtype,
                entropy_gradient=actor.entropy_coeff > 0,
                reference_KV=self.reference.distribution(some)
                if self.reference and exact
                else None,
            )
            return _compute_loss(scores, batch, numbers, config, denominator, selection_BT)

        threads = self._numerics.threads
        return self._group.accumulate(self._policy.parameters(), plan, loss, threads=threads)


def _make_reference(
    policy: Policy, config: RunConfig, fresh: bool, initial_weights: dict[str, Tensor] | None
) -> Policy:
    """Return the reference policy: a separate model, or the policy before training."""
    if config.ref.path is not None:
        return load_policy(config.ref.path, device=policy.device)
    if fresh or initial_weights is not None:
        return policy.copy(None if fresh else initial_weights)
    if config.model.path is None:
        raise ConfigError(
            "KL to the initial policy is enabled, but this checkpoint has no initial policy; set a "
            "reference with ref.path"
        )
    if any(name.endswith(".lora_B") for name, _ in policy.named_tensors()):
        # Without what adapters add it is the model, of which the frozen tensors are shared.
        held = policy.snapshot()
        return policy.copy({n: t.zero_() if n.endswith(".lora_B") else t for n, t in held.items()})
    return load_policy(config.model.path, device=policy.device)


def single_pass_logprobs(config: RunConfig, numerics: Numerics) -> bool:
    """Return True if the training forward pass also computes the trainer's log-probabilities.

    This saves a separate pass over all rows. It needs a single optimizer step per batch, and is
    False if the log-probabilities are needed before the batch is split.
    """
    recomputed = not numerics.is_exact or config.rollout.correction != "none"
    selects = LOSSES.find(config.actor.policy_loss.loss_mode).select is not None
    whole = selects or config.rollout.correction.startswith("sequence")
    return recomputed and config.updates_per_batch == 1 and not whole


def _correction_weights(batch: Batch, logp_BT: Tensor, config: RunConfig) -> Tensor | None:
    """Return importance weights [B, T] between sampler and trainer."""
    gap_BT, rule = (logp_BT - batch.old_logp_BT).nan_to_num(), config.rollout
    return importance_weights(
        gap_BT, batch.mask_BT, rule.correction, rule.correction_cap, rollouts_B=batch.rollouts_B
    )


def _compute_loss(
    scores: TokenScores,
    batch: Batch,
    row_numbers: list[int],
    config: RunConfig,
    denominator: float,
    selection_BT: Tensor | None,
) -> tuple[Tensor, MicroBatchReport]:
    """Compute the loss of some rows of the batch, and the report of the micro-batch.

    `denominator` is that of the optimizer batch; `selection_BT` are the tokens selected by the
    loss.
    """
    actor = config.actor
    cut = batch.make_slicer(row_numbers, scores.logp_K.device)
    mask, sampled = cut(batch.mask_BT), cut(batch.old_logp_BT)
    owners = [batch.rollouts_B[b] for b in row_numbers]
    where = (scores.rows_K, scores.columns_K)
    before_BT = batch.trainer_logp_BT
    known = sampled if before_BT is None else cut(before_BT)
    logp = known.clone().index_put(where, scores.logp_K)
    old = logp.detach() if before_BT is None else known
    way = actor.loss_agg_mode or LOSSES.find(actor.policy_loss.loss_mode).aggregation

    def average(x_BT: Tensor) -> Tensor:
        return aggregate(x_BT, mask, way, rollouts_B=owners, denominator=denominator)

    options: dict[str, Any] = {"rollouts_B": owners, "denominator": denominator}
    if before_BT is None:
        correction = (config.rollout.correction, config.rollout.correction_cap)
        options["weights_BT"] = importance_weights(old - sampled, mask, *correction)
    elif batch.weights_BT is not None:
        options["weights_BT"] = cut(batch.weights_BT)
    if selection_BT is not None:
        options["selection_BT"] = cut(selection_BT)
    value, metrics = _policy_loss(actor, logp, old, cut(batch.advantages_BT), mask, **options)
    terms = {"loss/policy": value.detach()}
    if actor.use_kl_loss:
        assert batch.ref_logp_BT is not None, "a KL in the loss comes with its reference"
        reference, exact_K = cut(batch.ref_logp_BT), scores.full_kl_K
        if exact_K is None:
            token_kl = kl_penalty(logp, reference, actor.kl_loss_type)
        else:
            token_kl = torch.zeros_like(reference).index_put(where, exact_K)
        if actor.kl_loss_type == "full+":  # its value, with the gradient of k2
            slope = kl_penalty(logp, reference, "k2")
            token_kl = token_kl.detach() + (slope - slope.detach())
        kl = average(token_kl)
        value = value + actor.kl_loss_coef * kl
        terms["loss/kl"] = kl.detach()
    if actor.entropy_coeff > 0:
        entropy = average(torch.zeros_like(old).index_put(where, scores.entropy_K))
        value = value - actor.entropy_coeff * entropy
        terms["loss/entropy"] = -entropy.detach()
    return value, MicroBatchReport(row_numbers, scores.detach(), metrics, terms)


def _policy_loss(
    actor: ActorConfig, logp: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, **options: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the configured policy loss and its metrics. `options` are passed to the loss."""
    loss = LOSSES.find(actor.policy_loss.loss_mode)
    return policy_loss(
        actor.policy_loss.loss_mode,
        logp,
        old,
        advantages,
        mask,
        **{name: getattr(actor, name) for name in CLIP_RATIOS},
        aggregation=actor.loss_agg_mode or loss.aggregation,
        **_loss_options(actor.policy_loss, loss.options),
        **options,
    )


def _loss_options(config: PolicyLossConfig, names: Iterable[str]) -> dict[str, Any]:
    """Return the configured options of a loss, by name."""
    return {name: getattr(config, name) for name in names if name in PolicyLossConfig.model_fields}


def _select_tokens(
    batch: Batch, rows: list[int], settings: PolicyLossConfig, seeds: SeedTree
) -> Tensor | None:
    """Select the tokens [B, T] of an optimizer batch for the loss; None selects all tokens."""
    loss = LOSSES.find(settings.loss_mode)
    if loss.select is None:
        return None
    assert batch.trainer_logp_BT is not None, "tokens are selected by what the trainer said before"
    options = _loss_options(settings, loss.selection_options)
    if "generator" in loss.selection_options:
        draw = seeds.child(loss.name).value()
        options["generator"] = torch.Generator().manual_seed(draw)
    numbers = (batch.trainer_logp_BT[rows], batch.advantages_BT[rows], batch.mask_BT[rows])
    selection_BT = torch.zeros_like(batch.mask_BT)
    selection_BT[rows] = loss.select(*numbers, **options)
    return selection_BT


def _summarize(
    steps: list[list[MicroBatchReport]], norms: list[float], batch: Batch
) -> dict[str, float]:
    """Return the metrics of all optimizer steps of a batch, averaged over tokens."""
    reports, first = [r for found in steps for r in found], steps[0]
    out: dict[str, float] = {"grad_norm": sum(norms) / len(norms), **batch.group_metrics}
    if not reports:
        return {**out, **batch.logprob_gap, "loss/policy": 0.0}
    for name in reports[0].terms:
        out[name] = float(sum(r.terms[name] for r in reports)) / len(norms)
    merged = merge_metrics([r.metrics for r in reports])
    tokens = max(1, sum(len(r.scores.logp_K) for r in reports))
    # How far the trainer is from the sampler before it takes a step, at tokens of its own version.
    told = [r.scores.logp_K.float().cpu() - batch.old_logp_BT[r.tokens] for r in first]
    gap_K = torch.cat([torch.zeros(0), *told])
    fresh_K = torch.tensor([b not in batch.stale for r in first for b in r.tokens[0].tolist()])
    own_K = gap_K[fresh_K.bool()].abs()
    gaps = [*batch.logprob_gap.values(), *([float(own_K.max())] if len(own_K) else [])]
    return {
        **out,
        **({"max_dlogp": max(gaps)} if gaps else {}),
        "entropy": float(sum(r.scores.entropy_K.sum() for r in reports)) / tokens,
        "ratio/clip_fraction": float(merged["clip_fraction"]),
        "ratio/max": float(merged["ratio_max"]),
        "kl/rollout": float((gap_K.exp() - gap_K - 1).sum()) / max(1, len(gap_K)),
    }


def _add_values(batch: Batch, reports: Sequence[MicroBatchReport], config: RunConfig) -> Batch:
    """Add the values per token of the first epoch's forward passes to the batch.

    The values are log-probabilities before the step, entropies, and importance weights if a
    correction is on.
    """
    logp_BT, entropy_BT = (torch.full(batch.mask_BT.shape, torch.nan) for _ in range(2))
    before_BT = batch.trainer_logp_BT if config.updates_per_batch > 1 else None
    for report in reports:
        scores, where = report.scores, report.tokens
        known_K = scores.logp_K if before_BT is None else before_BT[where]
        logp_BT[where] = known_K.float().cpu()
        entropy_BT[where] = scores.entropy_K.float().cpu()
    weights_BT = batch.weights_BT
    if config.rollout.correction == "none":
        weights_BT = None
    elif weights_BT is None:
        weights_BT = _correction_weights(batch, logp_BT, config)
    if weights_BT is not None:
        weights_BT = weights_BT.masked_fill(logp_BT.isnan(), torch.nan)
    return replace(batch, logp_BT=logp_BT, entropy_BT=entropy_BT, weights_BT=weights_BT)


def try_extensions(config: RunConfig) -> None:
    """Test the user's estimators and loss on two short groups before the training.

    Raises `ConfigError` for their exceptions and invalid results.
    """
    members, actor = config.agent.num_chains, config.actor
    signs_BT = torch.ones(2 * members, 4)
    signs_BT[1::2] = -1.0
    mask_BT, rollouts_B = torch.ones_like(signs_BT, dtype=torch.bool), range(2 * members)
    with torch.random.fork_rng(devices=[]):  # their draws here change no others
        for name in {config.algorithm.adv_estimator, config.trainer.control}:
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
                )
        mode = actor.policy_loss.loss_mode
        if is_file_reference(mode):
            logp_BT = torch.full_like(signs_BT, -1.0, requires_grad=True)
            values = (logp_BT, logp_BT.detach() - 0.1, signs_BT, mask_BT)
            selected: dict[str, Any] = {"selection_BT": mask_BT} if LOSSES.find(mode).select else {}
            _policy_loss(actor, *values, rollouts_B=rollouts_B, **selected)
