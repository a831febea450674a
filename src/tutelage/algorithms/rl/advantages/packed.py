"""Packed rollouts, the input of estimators: only trained tokens, in time order, a line per rollout.

Packing ensures three rules for all estimators. Masked tokens are left out, so they take no discount
step. The rows of a rollout are joined in one line. The reward of a masked token moves to the
rollout's last trained token. Estimators (`gae.py` and its neighbours) map `Packed` to an
`Estimate`; `__init__.py` unpacks the result into rows.

Legend: B rows, T tokens of a row, N rollouts, L trained tokens of a rollout (padded on the right),
K trained tokens of the batch in row order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tutelage.algorithms.rl.index import (
    Ids,
    RolloutIndex,
    check_shapes,
    number_ids,
)


class Estimate(NamedTuple):
    """Advantages and returns of an estimator, each [N, L]; values in padding are ignored."""

    advantages_NL: Tensor
    returns_NL: Tensor


@dataclass(frozen=True, slots=True)
class Packed:
    """A batch grouped by rollout, with the settings of the estimator.

    `rewards_NL` and `values_NL` are 0 in padding. `final_N` is R, the sum of a rollout's rewards;
    it counts in its group even if the rollout has no trained token. `group_N` numbers the groups
    0..`groups`-1.
    """

    rewards_NL: Tensor
    mask_NL: Tensor
    lengths_N: Tensor
    final_N: Tensor
    group_N: Tensor | None
    groups: int
    values_NL: Tensor | None
    baseline_N: Tensor | None
    success_N: Tensor
    gamma: float
    lam: float
    norm_by_std: bool
    single_member: str


@dataclass(frozen=True, slots=True)
class TokenSlots:
    """Positions of a batch's trained tokens in the packed form."""

    slot_K: Tensor
    """Position of each trained token in the flattened [N * L]."""
    shape: tuple[int, int]
    """(N, L)."""
    index: RolloutIndex

    @staticmethod
    def build(mask_BT: Tensor, rollouts_B: Ids | None) -> TokenSlots:
        """Compute the position of every trained token: its rollout, and the number of earlier
        trained tokens."""
        index = RolloutIndex.build(mask_BT, rollouts_B)
        mask_BT = index.mask_BT
        order_B = index.rollout_B.argsort(stable=True)
        sorted_lengths_B = mask_BT.sum(dim=1)[order_B]
        # Trained tokens before a row, less those before its rollout: what earlier rows of it hold.
        before_B = sorted_lengths_B.cumsum(0) - sorted_lengths_B
        before_N = index.lengths_N.cumsum(0) - index.lengths_N
        start_B = torch.empty_like(before_B)
        start_B[order_B] = before_B - before_N[index.rollout_B[order_B]]
        longest = int(index.lengths_N.max()) if index.rollouts else 0
        position_BT = start_B.unsqueeze(1) + mask_BT.cumsum(dim=1) - 1
        slot_BT = index.rollout_B.unsqueeze(1) * longest + position_BT
        return TokenSlots(slot_BT[mask_BT], (index.rollouts, longest), index)

    def pack(self, x_BT: Tensor) -> Tensor:
        """Convert rows [B, T] to rollouts [N, L], with zeros in padding."""
        flat = x_BT.new_zeros(self.shape[0] * self.shape[1])
        flat[self.slot_K] = x_BT[self.index.mask_BT]
        return flat.view(self.shape)

    def unpack(self, x_NL: Tensor) -> Tensor:
        """Convert rollouts [N, L] to rows [B, T], exactly 0 where the mask is 0."""
        x_BT = x_NL.new_zeros(self.index.mask_BT.shape)
        x_BT[self.index.mask_BT] = x_NL.reshape(-1)[self.slot_K]
        return x_BT

    def pack_rewards(self, rewards_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return rewards [N, L] with masked rewards on the last trained token, and their sums
        [N]."""
        index = self.index
        check_shapes(index.mask_BT, rewards_BT=rewards_BT)
        rewards_NL = self.pack(rewards_BT)
        stray_B = rewards_BT.masked_fill(index.mask_BT, 0).sum(dim=1)
        stray_N = rewards_BT.new_zeros(index.rollouts).index_add(0, index.rollout_B, stray_B)
        final_N = rewards_NL.sum(dim=1) + stray_N
        trained_N = index.lengths_N > 0
        last_N = index.lengths_N[trained_N] - 1
        rewards_NL[trained_N.nonzero().squeeze(1), last_N] += stray_N[trained_N]
        return rewards_NL, final_N

    def reduce_rows(self, x_B: Tensor, name: str) -> Tensor:
        """Convert one value per row to one per rollout. Raises `ValueError` if rows of a rollout
        differ."""
        index = self.index
        if x_B.shape != index.rollout_B.shape:
            raise ValueError(
                f"{name} has shape {tuple(x_B.shape)!r}; pass one number for each of the "
                f"{index.rollout_B.shape[0]!r} rows"
            )
        x_N = x_B.new_zeros(index.rollouts)
        x_N[index.rollout_B] = x_B
        if not torch.equal(x_N[index.rollout_B], x_B):
            raise ValueError(f"{name} differs between rows of one rollout; it must be the same")
        return x_N

    def groups(self, groups_B: Ids) -> tuple[Tensor, int]:
        """Return the group of each rollout, numbered from 0, and the number of groups."""
        index = self.index
        rows = index.rollout_B.shape[0]
        group_B, count = number_ids(groups_B, rows, "groups_B", index.rollout_B.device)
        return self.reduce_rows(group_B, "groups_B"), count
