"""GRPO for pass@k: the best rollout of a group gets its margin over the second best.

    A = (R1 - R2) / (std_g + 1e-6) for the best, 0 for the others; two equal best ones get 0

Source: Chen et al., arXiv 2503.19595. Denominator: the rollouts of the group. Without
`norm_by_std` the division is left out. A single rollout: 0, or an error with
`single_member="verl"`. Shapes: N rollouts, G groups.
"""

from __future__ import annotations

import torch

from tutelage.algorithms.extensions import estimator
from tutelage.algorithms.rl.advantages.groups import (
    EPSILON,
    centred,
    deviation,
    extreme_G,
    group_ids,
    over_tokens,
    sizes_N,
    sum_G,
)
from tutelage.algorithms.rl.advantages.packed import Estimate, Packed
from tutelage.errors import ConfigError


@estimator(
    groups=True,
    lonely=False,
    settings=("algorithm.norm_adv_by_std_in_grpo",),
)
def grpo_passk(batch: Packed) -> Estimate:
    """Return best minus second-best reward for the best rollout of a group, 0 for others."""
    group_N, reward_N = group_ids(batch), batch.final_N
    lonely_N = sizes_N(batch) < 2
    if batch.single_member == "verl" and bool(lonely_N.any()):
        raise ConfigError(
            f"adv_estimator='grpo_passk' needs at least two rollouts in each group, but "
            f"{int(lonely_N.sum())!r} groups have one; raise agent.num_chains or use "
            "single_member='zero'"
        )
    best_N = reward_N == extreme_G(reward_N, group_N, batch.groups, "amax")[group_N]
    winners_N = sum_G(best_N.to(reward_N.dtype), group_N, batch.groups)[group_N]
    # With the winner out of the way, the greatest of the rest is the second best.
    rest_N = reward_N.masked_fill(best_N, -torch.inf)
    second_N = extreme_G(rest_N, group_N, batch.groups, "amax")[group_N]
    alone_N = best_N & (winners_N == 1) & ~lonely_N
    lead_N = torch.where(alone_N, reward_N - second_N, 0)
    if batch.norm_by_std:
        lead_N = lead_N / (deviation(batch, centred(batch)) + EPSILON)
    return over_tokens(batch, lead_N)
