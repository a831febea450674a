"""Advantage-filtered imitation: what did better than its group is imitated, by how much is not.

    A = 1 where R > mean_g R, 0 else

The binary filter of CRR, with the group's mean for the value: unlike RAFT it weighs what a success
cost, and unlike GRPO it takes nothing away from what did worse.

Source: Wang et al., "Critic Regularized Regression", arXiv 2006.15134 (the binary max filter).
Denominator: the group's rollouts (mean). A single rollout: 0; with `single_member="verl"` its mean
is 0. Shapes: N rollouts.
"""

from __future__ import annotations

from tutelage.algorithms.extensions import estimator
from tutelage.algorithms.rl.advantages.groups import EPSILON, centred, deviation, over_tokens
from tutelage.algorithms.rl.advantages.packed import Estimate, Packed


@estimator(groups=True)
def advantage_filtered(batch: Packed) -> Estimate:
    """One for each that is above its group's mean."""
    centred_N = centred(batch)
    # What is at the mean but for rounding is not above it.
    above_N = centred_N > EPSILON * deviation(batch, centred_N)
    return over_tokens(batch, above_N.to(centred_N.dtype))
