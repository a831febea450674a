"""Statistics of groups, which are the rollouts of one task.

All group estimators (`grpo.py`, `rloo.py`, `opo.py`, ...) use these functions, so they treat a
group of one rollout in the same way. With `single_member="zero"` its advantage is 0, and
`count_groups` counts such groups. With `"verl"` its mean is taken as 0 and its deviation as 1, as
verl does.

Legend: B rows, N rollouts, G groups, L trained tokens of a rollout.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tutelage.algorithms.rl.advantages.packed import (
    Estimate,
    Packed,
    TokenSlots,
)
from tutelage.algorithms.rl.index import Ids

EPSILON = 1e-6
"""Added to a group's standard deviation before dividing by it."""


def count_groups(
    rewards_BT: Tensor, mask_BT: Tensor, groups_B: Ids, *, rollouts_B: Ids | None = None
) -> tuple[int, int, int]:
    """Return the numbers of all groups, of groups with fewer than two rollouts, and of larger
    groups with equal rewards; arguments as in `estimate_advantages`."""
    places = TokenSlots.build(mask_BT, rollouts_B)
    _, final_N = places.pack_rewards(rewards_BT)
    group_N, groups = places.groups(groups_B)
    sizes_G = torch.bincount(group_N, minlength=groups)
    flat_G = extreme_G(final_N, group_N, groups, "amin") == extreme_G(
        final_N, group_N, groups, "amax"
    )
    return groups, int((sizes_G < 2).sum()), int((flat_G & (sizes_G >= 2)).sum())


def group_ids(batch: Packed) -> Tensor:
    """Return the group of each rollout. Raises `ValueError` if the batch has no groups."""
    if batch.group_N is None:
        raise ValueError("group estimators need groups_B, the task id of each row")
    return batch.group_N


def sizes_N(batch: Packed) -> Tensor:
    """Return the size of each rollout's group."""
    group_N = group_ids(batch)
    return torch.bincount(group_N, minlength=batch.groups)[group_N]


def sum_G(x_N: Tensor, group_N: Tensor, groups: int) -> Tensor:
    """Return the sum of `x_N` over each group."""
    return x_N.new_zeros(groups).index_add(0, group_N, x_N)


def extreme_G(x_N: Tensor, group_N: Tensor, groups: int, reduce: str) -> Tensor:
    """Return the minimum (`amin`) or maximum (`amax`) of `x_N` in each group."""
    return x_N.new_zeros(groups).scatter_reduce(0, group_N, x_N, reduce, include_self=False)


def centred(batch: Packed, weights_N: Tensor | None = None) -> Tensor:
    """Compute `R - mean_g` [N], the reward minus the (weighted) mean of the group.

    A single rollout gets 0, or R as in verl. The group's minimum is subtracted from rewards first,
    so that equal rewards give exactly 0 and a tiny deviation does not enlarge a rounding error.
    """
    group_N = group_ids(batch)
    shifted_N = batch.final_N - extreme_G(batch.final_N, group_N, batch.groups, "amin")[group_N]
    weights_N = torch.ones_like(shifted_N) if weights_N is None else weights_N
    total_G = sum_G(weights_N, group_N, batch.groups)
    # A group whose weights are all 0 has no trained token: any finite mean will do.
    mean_G = sum_G(weights_N * shifted_N, group_N, batch.groups) / total_G.masked_fill(
        total_G == 0, 1
    )
    centred_N = shifted_N - mean_G[group_N]
    lonely = batch.final_N if batch.single_member == "verl" else torch.zeros_like(centred_N)
    return torch.where(sizes_N(batch) < 2, lonely, centred_N)


def deviation(batch: Packed, centred_N: Tensor) -> Tensor:
    """Return the standard deviation (n - 1) of each rollout's group [N]; 1 for a single rollout."""
    group_N = group_ids(batch)
    size_N = sizes_N(batch)
    squares_G = sum_G(centred_N.square(), group_N, batch.groups)
    std_N = (squares_G[group_N] / (size_N - 1).clamp(min=1)).sqrt()
    return std_N.masked_fill(size_N < 2, 1)


def over_tokens(batch: Packed, advantages_N: Tensor) -> Estimate:
    """Expand one advantage per rollout to all of its tokens, also as the returns."""
    spread_NL = advantages_N.unsqueeze(1).expand_as(batch.rewards_NL)
    return Estimate(spread_NL, spread_NL)
