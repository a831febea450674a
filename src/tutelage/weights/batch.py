"""Convert rollouts to a training batch: rows, rewards, groups and advantages.

A failed rollout is data: one that failed for the agent's own reasons counts with its failure
reward, also where it failed before a token was sampled: it has no row then, and stays in its
group's statistics. One that infrastructure lost is left out of baselines and losses, and counted. A
rollout that became several rows stays one rollout in every statistic. `make_rows` makes rows of
rollouts, `add_advantages` gives them advantages; between the two `learner.py` asks models for what
an estimator needs (values, log-probabilities of a reference). `learner.py` turns the batch into an
optimizer step; the mathematics is `algorithms/rl`.

Legend: B rows, T tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose

import torch
from torch import Tensor

from tutelage.algorithms.rl import count_groups, estimate_advantages, kl_in_reward
from tutelage.config import RunConfig
from tutelage.config.rl import ActorConfig
from tutelage.errors import FailureBudgetError
from tutelage.policy.row import Row
from tutelage.resources import POLICY
from tutelage.rollouts.rows import build_rows
from tutelage.runs.metrics import is_truncated
from tutelage.seeds import SeedTree
from tutelage.statistics.outcome import Success, format_cause, is_success
from tutelage.types import Rollout

FAILURE_BUDGET = 0.5
"""Share of a batch that may be lost to infrastructure before the run stops."""


@dataclass(frozen=True, slots=True)
class _RolloutStats:
    """Statistics of a rollout that did not fail for infrastructure reasons."""

    id: str
    group: str
    reward: float
    success: bool
    truncated: bool
    overlong: float
    tool_errors: float
    """Deduction for failed tool calls, 0 or less, like `overlong`; `reward` includes both."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A training batch of B rows and T tokens, with values per token that are 0 outside the mask.

    `make_rows` creates it, `add_advantages` adds advantages, and the update adds the trainer's
    log-probabilities.
    """

    rollouts: list[_RolloutStats]
    rows: list[Row]
    rollouts_B: list[int]
    """Number of the rollout that each row belongs to; rows of one rollout in time order."""
    rowless: list[int]
    """Rollouts that count in their group and have no trained token: they failed before the first
    one, or a grammar left them nothing to choose."""
    mask_BT: Tensor
    old_logp_BT: Tensor
    """Log-probabilities that the engine recorded."""
    rewards_BT: Tensor
    """The rollout's reward on the last token of its last row, less those of its turns, each on the
    last trained token of its turn."""
    advantages_BT: Tensor
    returns_BT: Tensor
    """The critic's targets, or the estimator's returns without a critic."""
    old_values_BT: Tensor
    """The critic's values before the update, 0 without a critic."""
    left_out: frozenset[int] = frozenset()
    """Rollouts that count in their group and have no loss."""
    stale: frozenset[int] = frozenset()
    """Rows with a token sampled by an older version of the policy."""
    closed: int = 0
    """Number of groups without a valid rollout."""
    groups: int = 0
    zero_variance: int = 0
    """Number of groups whose rewards are all equal."""
    single_member: int = 0
    """Number of groups with fewer than two valid rollouts."""
    trainer_logp_BT: Tensor | None = None
    """The trainer's log-probabilities before the update, the denominator of ratios; None if the
    update's own forward pass computes them."""
    ref_logp_BT: Tensor | None = None
    """Log-probabilities of the reference, if there is one."""
    kl_BT: Tensor | None = None
    """The KL to subtract from the reward, if it is configured there."""
    weights_BT: Tensor | None = None
    """Importance weights between sampler and trainer, if a correction is on."""
    logp_BT: Tensor | None = None
    """Log-probabilities of the update's first pass over each token, NaN without one."""
    entropy_BT: Tensor | None = None

    @property
    def logprob_gap(self) -> dict[str, float]:
        """Return `max_dlogp`, the largest difference between sampler and trainer log-probabilities.

        Only rows sampled by the current version count, since other rows differ without an error.
        Empty if the trainer computed no log-probabilities itself.
        """
        known_BT = self.trainer_logp_BT
        fresh = [b for b in range(len(self.rows)) if b not in self.stale]
        if known_BT is None or known_BT is self.old_logp_BT or not fresh:
            return {}
        return {"max_dlogp": float((known_BT - self.old_logp_BT)[fresh].abs().max())}

    @property
    def group_metrics(self) -> dict[str, float]:
        """Return group metrics: rows per rollout, share of zero-variance groups, mean penalties."""
        out = {
            "rollout/rows": len(self.rows) / len(set(self.rollouts_B)),
            "group/zero_variance": self.zero_variance / max(1, self.groups),
            "group/single": self.single_member / max(1, self.groups),
        }
        for name in ("overlong", "tool_errors"):
            costs = [getattr(rollout, name) for rollout in self.rollouts]
            if any(costs):
                out[f"reward/{name}"] = sum(costs) / len(costs)
        return out

    def mini_batches(self, size: int | None, seeds: SeedTree) -> list[list[int]]:
        """Split the batch into optimizer batches of `size` rollouts and return their row numbers.

        Groups are shuffled if there are several optimizer batches.
        All rows of a rollout are in the same optimizer batch, and so are the rollouts of a task if
        `size` allows it. There is at least one optimizer batch, which is empty if all rollouts are
        left out.
        """
        rollouts = sorted(set(self.rollouts_B) - self.left_out)
        size = size or len(rollouts)
        groups = [[r] for r in rollouts]
        if size < len(rollouts):
            together: dict[str, list[int]] = {}
            for number in rollouts:
                together.setdefault(self.rollouts[number].group, []).append(number)
            if max(map(len, together.values())) <= size:
                groups = list(together.values())
            seeds.python().shuffle(groups)
        parts: list[set[int]] = []
        placed = 0
        for group in groups:
            if placed >= size * len(parts):
                parts.append(set())
            parts[-1] |= set(group)
            placed += len(group)
        return [
            [b for b, r in enumerate(self.rollouts_B) if r in part]
            for part in parts or [set[int]()]
        ]

    def token_budget(self, rows: Sequence[int], count: int | None, actor: ActorConfig) -> int:
        """Return the maximum tokens of a micro-batch: the configured number, or `count` times the
        longest row."""
        if count is None or not rows:
            return actor.max_tokens_per_micro_batch
        return count * max(len(self.rows[b].ids) for b in rows)

    def make_slicer(self, rows: list[int], device: torch.device) -> Callable[[Tensor], Tensor]:
        """Return a function that selects rows of a batch tensor, trims padding and moves them to
        `device`."""
        width = max(len(self.rows[b].ids) for b in rows)
        return lambda tensor_BT: tensor_BT[rows, :width].to(device)


def make_rows(
    rollouts: Sequence[Rollout], config: RunConfig, policy: str = POLICY, version: int = 0
) -> Batch:
    """Create a batch of training rows and rewards from the rollouts of a step.

    `policy` is the name of the policy to train, `version` its current version.

    A rollout in which only other trained policies were called is left out; one without any call
    counts for each policy. Raises `FailureBudgetError` if too many rollouts failed by
    infrastructure, or if no token was sampled.
    """
    judged = [r for r in rollouts if r.reward is not None]
    if len(rollouts) - len(judged) > FAILURE_BUDGET * len(rollouts):
        failures = [r.last.failure for r in rollouts if r.last.failure is not None]
        first = failures[0].message if failures else "unknown"
        raise FailureBudgetError(
            f"{len(failures)} of {len(rollouts)} rollouts of a step failed "
            f"({_count_outcomes(rollouts)}), too many to train on. First error: {first}"
        )
    rows: list[Row] = []
    owners: list[int] = []
    rowless: list[int] = []
    for number, rollout in enumerate(judged):
        made = build_rows(rollout.last.calls, policy)
        rows += made
        owners += [number] * len(made)
        spoke = {c.policy for c in rollout.last.calls if c.policy is not None}
        if not made and (not spoke or policy in spoke):
            rowless.append(number)
    if not rows:
        raise FailureBudgetError(
            f"none of {len(rollouts)} rollouts of a step sampled a token "
            f"({_count_outcomes(rollouts)}), so there is nothing to train on; "
            f"{_untrained_reason(judged)}inspect one with: tutelage show ROLLOUT"
        )
    width = max(len(r.ids) for r in rows)
    mask_BT = torch.zeros(len(rows), width, dtype=torch.bool)
    old_logp_BT = torch.zeros(len(rows), width)
    rewards_BT = torch.zeros(len(rows), width)
    for b, row in enumerate(rows):
        mask_BT[b, : len(row.mask)] = torch.tensor(row.mask, dtype=torch.bool)
        old_logp_BT[b, : len(row.logprobs)] = torch.tensor(row.logprobs)
    rule, buffer = Success.parse(config.reward.success), config.reward_model.overlong_buffer
    played: list[_RolloutStats] = []
    for r in judged:
        assert r.reward is not None, "it was judged"
        overlong, earned = 0.0, r.reward.value
        if buffer.enable:  # DAPO's soft length penalty as verl has it (arXiv 2503.14476, eq. 13)
            length = sum(len(call.sampled.token_ids) for call in r.last.calls)
            exceeding = length - (config.response_tokens - buffer.len)
            overlong = min(-exceeding / buffer.len * buffer.penalty_factor, 0.0)
        # Failed tool calls take from a positive reward. A failure has nothing to lose: else the one
        # with fewer errors would be better than its group.
        failed = sum(result.error is not None for result in r.last.tool_results)
        price = -min(1.0, failed * config.reward_model.tool_error_penalty) * max(earned, 0.0)
        reward = earned + sum((overlong, price))
        traits = (is_success(r, rule), is_truncated(r))
        played.append(_RolloutStats(r.id, r.group, reward, *traits, overlong, price))
    masked = config.algorithm.mask_truncated
    for number, last in {number: b for b, number in enumerate(owners)}.items():
        # The sum of the turns' rewards is the reward, unless a reward function gave another one.
        turns = [c.reward for c in judged[number].last.calls if c.reward is not None]
        total, placed = judged[number].reward, 0.0
        assert total is not None, "it was judged"
        if turns and (judged[number].last.failure is not None or isclose(total.value, sum(turns))):
            for b in (b for b, owner in enumerate(owners) if owner == number):
                for column, reward in rows[b].rewards:
                    rewards_BT[b, column] += reward
                    placed += reward
        rewards_BT[last, len(rows[last].ids) - 1] += played[number].reward - placed
    nothing_BT = torch.zeros_like(rewards_BT)
    return Batch(
        rollouts=played,
        rows=rows,
        rollouts_B=owners,
        rowless=rowless,
        mask_BT=mask_BT,
        old_logp_BT=old_logp_BT,
        rewards_BT=rewards_BT,
        advantages_BT=nothing_BT,
        returns_BT=nothing_BT,
        old_values_BT=nothing_BT,
        left_out=frozenset(n for n, p in enumerate(played) if masked and p.truncated),
        stale=frozenset(b for b, row in enumerate(rows) if row.oldest_version < version),
        closed=len({r.group for r in rollouts} - {played[n].group for n in owners + rowless}),
    )


def add_advantages(
    batch: Batch,
    config: RunConfig,
    *,
    values_BT: Tensor | None = None,
    bootstrap_BT: Tensor | None = None,
    baselines: Mapping[str, float] | None = None,
    beta: float = 0.0,
) -> Batch:
    """Return the batch with advantages and returns.

    `values_BT` are the critic's values and `bootstrap_BT` its values of the states after truncated
    rollouts. `baselines` are the greedy rewards by group. The KL of the batch times `beta` is
    subtracted from the token rewards; group statistics use the rewards without the KL.
    """
    rule = config.algorithm
    rewards_BT = batch.rewards_BT
    if bootstrap_BT is not None:
        rewards_BT = rewards_BT + rule.gamma * bootstrap_BT
    if batch.kl_BT is not None:
        rewards_BT = kl_in_reward(rewards_BT, batch.kl_BT, batch.mask_BT, beta)
    # Rollouts without a row get one without a trained token for as long as statistics are made.
    rowless_BT = torch.zeros(len(batch.rowless), rewards_BT.shape[1])
    rowless_BT[:, 0] = torch.tensor([batch.rollouts[number].reward for number in batch.rowless])
    nothing_BT = torch.zeros_like(rowless_BT)
    mask_BT = torch.cat([batch.mask_BT, nothing_BT.bool()])
    rollouts_B = batch.rollouts_B + batch.rowless
    played_B = [batch.rollouts[number] for number in rollouts_B]
    groups_B = [rollout.group for rollout in played_B]
    advantages_BT, returns_BT = estimate_advantages(
        rule.adv_estimator,
        torch.cat([rewards_BT, rowless_BT]),
        mask_BT,
        groups_B=groups_B,
        rollouts_B=rollouts_B,
        values_BT=None if values_BT is None else torch.cat([values_BT, nothing_BT]),
        baselines_B=None
        if baselines is None
        else torch.tensor([baselines[group] for group in groups_B]),
        successes_B=torch.tensor([rollout.success for rollout in played_B]),
        gamma=rule.gamma,
        lam=rule.lam,
        norm_by_std=rule.norm_adv_by_std_in_grpo,
        single_member=rule.single_member,
    )
    own_BT = torch.cat([batch.rewards_BT, rowless_BT])
    groups, alone, flat = count_groups(own_BT, mask_BT, groups_B, rollouts_B=rollouts_B)
    out = torch.tensor([number in batch.left_out for number in batch.rollouts_B])
    return replace(
        batch,
        advantages_BT=advantages_BT[: len(batch.rows)].masked_fill(out.unsqueeze(1), 0.0),
        returns_BT=returns_BT[: len(batch.rows)],
        old_values_BT=batch.old_values_BT if values_BT is None else values_BT,
        zero_variance=flat,
        single_member=alone + batch.closed,
        groups=groups + batch.closed,
    )


def _untrained_reason(rollouts: Sequence[Rollout]) -> str:
    """Return the reason why no call of the rollouts trains the policy, or an empty string."""
    calls = [call for r in rollouts for call in r.last.calls]
    if rollouts and not calls:
        return "your agent never called llm.endpoint or llm.chat; "
    if not calls or any(call.policy is not None for call in calls):
        return ""
    seen = ", ".join(map(repr, sorted({call.agent for call in calls})))
    return (
        f"no call of the agents {seen} trains the policy: mark one of them, or a name set by "
        "rollout.agent(NAME), with mark_agent_as_trainable; neither a frozen LLM nor a model on "
        "another server is trained, so call the LLM without an endpoint; "
    )


def _count_outcomes(rollouts: Sequence[Rollout]) -> str:
    """Count the rollouts by failure cause or stop reason."""
    outcomes = (format_cause(f.cause) if (f := r.last.failure) else r.last.stop for r in rollouts)
    return ", ".join(f"{count} x {end}" for end, count in Counter(outcomes).most_common())
