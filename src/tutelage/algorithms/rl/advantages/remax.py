"""ReMax: the baseline is the reward of one greedy rollout of the same task.

    A[t] = sum of r[k] over trained k >= t, minus b

b is the reward of one greedy rollout through the same agent, tools included. Returns: the sum.
Source: Li et al., arXiv 2310.10505. No denominator. We differ from verl in that both outputs are
exactly 0 where the mask is 0. Shapes: N rollouts, L trained tokens of a rollout.
"""

from __future__ import annotations

from tutelage.algorithms.extensions import estimator
from tutelage.algorithms.rl.advantages.discount import discounted_sum
from tutelage.algorithms.rl.advantages.packed import Estimate, Packed


@estimator(baselines=True, chains=1)
def remax(batch: Packed) -> Estimate:
    """Return rewards-to-go minus the reward of a greedy rollout. Requires `baselines_B`."""
    if batch.baseline_N is None:
        raise ValueError("adv_estimator='remax' needs baselines_B, the reward of a greedy rollout")
    returns_NL = discounted_sum(batch.rewards_NL, 1.0)
    return Estimate(returns_NL - batch.baseline_N.unsqueeze(1), returns_NL)
