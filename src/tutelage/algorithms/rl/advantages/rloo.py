"""RLOO: the baseline of a rollout is the mean reward of the other rollouts in its group.

    A = n / (n - 1) * (R - mean_g) = R - mean of the others

Source: Ahmadian et al., arXiv 2402.14740. Denominator: the other rollouts of the group.
A single rollout: 0, or R with `single_member="verl"`. Shapes: N rollouts.
"""

from __future__ import annotations

from tutelage.algorithms.extensions import estimator
from tutelage.algorithms.rl.advantages.groups import centred, over_tokens, sizes_N
from tutelage.algorithms.rl.advantages.packed import Estimate, Packed


@estimator(groups=True)
def rloo(batch: Packed) -> Estimate:
    """Return leave-one-out advantages."""
    centred_N = centred(batch)
    size_N = sizes_N(batch).to(centred_N.dtype)
    factor_N = size_N / (size_N - 1).clamp(min=1)
    return over_tokens(batch, factor_N * centred_N)
