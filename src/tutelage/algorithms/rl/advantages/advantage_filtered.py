"""Advantage-filtered imitation: imitate the rollouts above their group's mean reward, all equally.

    A = 1 where R > mean_g R, 0 else

This is the binary filter of CRR, with the group's mean as the value. Unlike RAFT it compares the
rewards of successes, and unlike GRPO it has no negative advantages.

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
    """Return 1 for each rollout above its group's mean reward, 0 for other rollouts."""
    centred_N = centred(batch)
    # What is at the mean but for rounding is not above it.
    above_N = centred_N > EPSILON * deviation(batch, centred_N)
    return over_tokens(batch, above_N.to(centred_N.dtype))
