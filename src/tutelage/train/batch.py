"""Rollouts to a training batch: rows, rewards, groups, advantages, and what is left out and why.

A failed rollout is data: one that failed for the agent's own reasons counts with its failure
reward; one that infrastructure lost is left out of baselines and losses, and counted. A rollout
that became several rows stays one rollout in every statistic. `update.py` turns the batch into an
optimizer step; the mathematics is `algorithms/rl`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tutelage.algorithms.rl import estimate_advantages, group_counts
from tutelage.config import RunConfig
from tutelage.errors import FailureBudgetError
from tutelage.policy.packing import TokenRow
from tutelage.rollouts.rows import Row, build_rows
from tutelage.types import Rollout

FAILURE_BUDGET = 0.5
"""Share of a batch that may be lost to infrastructure before the run stops."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a batch with one advantage a token; B rows, T tokens, 0 where the mask is 0."""

    rows: list[Row]
    rollouts_B: list[int]
    """Number of the rollout that each row belongs to; rows of one rollout in time order."""
    mask_BT: Tensor
    old_logp_BT: Tensor
    advantages_BT: Tensor
    zero_variance: int
    """Groups whose rewards are all equal."""
    single_member: int
    """Groups of which fewer than two rollouts are left, so that there is nothing to compare."""
    groups: int

    def token_rows(self) -> list[TokenRow]:
        """The rows as the policy scores them."""
        return [TokenRow(r.ids, r.mask) for r in self.rows]


def make_batch(rollouts: Sequence[Rollout], config: RunConfig) -> Batch:
    """Rows and advantages of a step's rollouts.

    Raises `FailureBudgetError` when infrastructure lost too many, or nothing was sampled.
    """
    counted = [r for r in rollouts if r.reward is not None]
    if len(rollouts) - len(counted) > FAILURE_BUDGET * len(rollouts):
        raise FailureBudgetError(_lost(rollouts))
    rows: list[Row] = []
    owners: list[int] = []
    groups: list[str] = []
    rewards: list[float] = []
    for number, rollout in enumerate(counted):
        made = build_rows(rollout.last.calls)
        rows += made
        owners += [number] * len(made)
        groups += [rollout.group] * len(made)
        value = rollout.reward.value if rollout.reward is not None else 0.0
        rewards += [0.0] * (len(made) - 1) + [value] if made else []
    if not rows:
        raise FailureBudgetError(
            f"none of {len(rollouts)} rollouts of a step sampled a token ({_ends(rollouts)}), so "
            "there is nothing to learn from; look at one with: tutelage show ROLLOUT"
        )
    width = max(len(r.ids) for r in rows)
    mask_BT = torch.zeros(len(rows), width, dtype=torch.bool)
    old_logp_BT = torch.zeros(len(rows), width)
    rewards_BT = torch.zeros(len(rows), width)
    for b, row in enumerate(rows):
        mask_BT[b, : len(row.mask)] = torch.tensor(row.mask, dtype=torch.bool)
        old_logp_BT[b, : len(row.logprobs)] = torch.tensor(row.logprobs)
        rewards_BT[b, len(row.ids) - 1] = rewards[b]
    rule = config.algorithm
    advantages_BT, _ = estimate_advantages(
        rule.adv_estimator,
        rewards_BT,
        mask_BT,
        groups_B=groups,
        rollouts_B=owners,
        gamma=rule.gamma,
        lam=rule.lam,
        norm_by_std=rule.norm_adv_by_std_in_grpo,
        single_member=rule.single_member,
    )
    counts = group_counts(rewards_BT, mask_BT, groups, rollouts_B=owners)
    return Batch(
        rows=rows,
        rollouts_B=owners,
        mask_BT=mask_BT,
        old_logp_BT=old_logp_BT,
        advantages_BT=advantages_BT,
        zero_variance=counts.zero_variance,
        single_member=counts.single_member,
        groups=counts.groups,
    )


def _lost(rollouts: Sequence[Rollout]) -> str:
    """What to say when most rollouts were lost."""
    failures = [r.last.failure for r in rollouts if r.last.failure is not None]
    first = failures[0].message if failures else "unknown"
    return (
        f"{len(failures)} of {len(rollouts)} rollouts of a step failed ({_ends(rollouts)}), so "
        f"there is nothing to learn from. The first: {first}"
    )


def _ends(rollouts: Sequence[Rollout]) -> str:
    """How the rollouts ended, counted: causes of failure, and how agents stopped."""
    ends = (r.last.failure.cause.value if r.last.failure else r.last.stop for r in rollouts)
    return ", ".join(f"{count} x {end}" for end, count in Counter(ends).most_common())
