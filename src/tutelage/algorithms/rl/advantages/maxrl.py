"""MaxRL: rewards relative to the group's success rate, so that rare successes count most.

    A = (R - mean_g) / mean_g where mean_g > 0, else 0; rewards in [0, 1]

Source: Tajwar et al., "Maximum Likelihood Reinforcement Learning" (2026). Denominator: the group's
mean reward. A single rollout gets 0 in both settings of `single_member`. Shapes: N rollouts.
"""

from __future__ import annotations

import torch

from tutelage.algorithms.extensions import estimator
from tutelage.algorithms.rl.advantages.groups import (
    centred,
    group_ids,
    over_tokens,
    sizes_N,
    sum_G,
)
from tutelage.algorithms.rl.advantages.packed import Estimate, Packed


@estimator(groups=True, lonely=False)
def maxrl(batch: Packed) -> Estimate:
    """Return centred rewards divided by the group's mean."""
    group_N = group_ids(batch)
    size_N = sizes_N(batch)
    mean_N = sum_G(batch.final_N, group_N, batch.groups)[group_N] / size_N
    taught_N = (mean_N > 0) & (size_N >= 2)
    relative_N = centred(batch) / mean_N.masked_fill(~taught_N, 1)
    return over_tokens(batch, torch.where(taught_N, relative_N, 0))
