"""The index of a batch's rows by rollout, used by all sums and means over rollouts.

A rollout has several rows if its history changed between calls (`rollouts/rows.py`). Estimators and
losses are defined on rollouts, so sums and means use `RolloutIndex`, and do not depend on how a
rollout is split into rows. `aggregate.py` and `losses/` use it directly; `rl/advantages/packed.py`
builds on it.

Legend: B rows, T tokens of a row, N rollouts.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tutelage.errors import pluralize

Ids = Sequence[Hashable] | Tensor
"""One id per row: any hashable values, or a tensor of integers."""


@dataclass(frozen=True, slots=True)
class RolloutIndex:
    """Mask of a batch's trained tokens, and the rollout of each row.

    `mask_BT` is bool, `rollout_B` numbers the rollouts 0..N-1 by first appearance, `lengths_N`
    counts the trained tokens of a rollout (int64; 0 for an empty one).
    """

    mask_BT: Tensor
    rollout_B: Tensor
    lengths_N: Tensor

    @staticmethod
    def build(mask_BT: Tensor, rollouts_B: Ids | None) -> RolloutIndex:
        """Index the rows of a batch by rollout. Without ids, each row is a separate rollout."""
        if mask_BT.ndim != 2:
            raise ValueError(f"mask_BT must be [rows, tokens], got shape {tuple(mask_BT.shape)!r}")
        mask_BT = mask_BT != 0
        rollout_B, count = number_ids(rollouts_B, len(mask_BT), "rollouts_B", mask_BT.device)
        lengths_N = torch.zeros(count, dtype=torch.int64, device=mask_BT.device)
        lengths_N = lengths_N.index_add(0, rollout_B, mask_BT.sum(dim=1))
        return RolloutIndex(mask_BT, rollout_B, lengths_N)

    @property
    def rollouts(self) -> int:
        """Return the number of rollouts N, including those without trained tokens."""
        return self.lengths_N.shape[0]

    def sum_N(self, x_BT: Tensor) -> Tensor:
        """Return the sum of `x_BT` over each rollout's trained tokens, with gradients, in its
        dtype."""
        row_sums_B = x_BT.masked_fill(~self.mask_BT, 0).sum(dim=1)
        return x_BT.new_zeros(self.rollouts).index_add(0, self.rollout_B, row_sums_B)

    def mean_N(self, x_BT: Tensor) -> Tensor:
        """Return the mean of `x_BT` over each rollout's trained tokens, and 0 for a rollout without
        trained tokens."""
        return self.sum_N(x_BT) / self.lengths_N.clamp(min=1).to(x_BT.dtype)

    def rows_B1(self, x_N: Tensor) -> Tensor:
        """Return the value of each row's rollout, shaped to broadcast over tokens."""
        return x_N[self.rollout_B].unsqueeze(1)


def number_ids(ids: Ids | None, rows: int, name: str, device: torch.device) -> tuple[Tensor, int]:
    """Number ids by first appearance; return an int64 tensor [rows] and the number of distinct ids.

    Without ids each row gets a separate number. Raises `ValueError` if there is not one id per row.
    """
    if ids is None:
        return torch.arange(rows, device=device), rows
    keys: list[Hashable] = ids.tolist() if isinstance(ids, Tensor) else list(ids)
    if len(keys) != rows:
        raise ValueError(
            f"{name} has length {len(keys)!r} for {pluralize(rows, 'row')}; pass one id per row"
        )
    numbers: dict[Hashable, int] = {}
    # A 0-dim tensor hashes by identity: without .item() equal ids would count as different.
    plain = [key.item() if isinstance(key, Tensor) else key for key in keys]
    numbered = [numbers.setdefault(key, len(numbers)) for key in plain]
    return torch.tensor(numbered, dtype=torch.int64, device=device), len(numbers)


def check_shapes(mask_BT: Tensor, **tensors_BT: Tensor) -> None:
    """Raise `ValueError` unless all tensors have the mask's shape."""
    for name, tensor in tensors_BT.items():
        if tensor.shape != mask_BT.shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)!r} but mask_BT has "
                f"{tuple(mask_BT.shape)!r}; both must be [rows, tokens]"
            )
