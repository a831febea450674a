"""OPO: the baseline that minimises the variance of the gradient, by length-weighted rewards.

    A = R - sum_g(len * R) / sum_g(len), len = the rollout's trained tokens

Source: Hao et al., arXiv 2505.23585. Denominator: the group's trained tokens.
A single rollout: 0, or R with `single_member="verl"`. Shapes: N rollouts.
"""

from __future__ import annotations

from tutelage.algorithms.extensions import estimator
from tutelage.algorithms.rl.advantages.groups import centred, over_tokens
from tutelage.algorithms.rl.advantages.packed import Estimate, Packed


@estimator(groups=True)
def opo(batch: Packed) -> Estimate:
    """Return rewards minus the length-weighted mean of the group."""
    return over_tokens(batch, centred(batch, batch.lengths_N.to(batch.final_N.dtype)))
