"""GRPO: the reward's distance from the group's mean, in standard deviations.

    A = (R - mean_g) / (std_g + 1e-6), std with n - 1; without the division: Dr.GRPO

Source: DeepSeekMath (arXiv 2402.03300); Dr.GRPO (arXiv 2503.20783), `norm_by_std=False`.
Denominator: the rollouts of the group, not rows. The same A at each trained token.
Shapes: N rollouts.
"""

from __future__ import annotations

from tutelage.algorithms.extensions import estimator
from tutelage.algorithms.rl.advantages.groups import EPSILON, centred, deviation, over_tokens
from tutelage.algorithms.rl.advantages.packed import Estimate, Packed


@estimator(groups=True, settings=("algorithm.norm_adv_by_std_in_grpo",))
def grpo(batch: Packed) -> Estimate:
    """Return group-normalised rewards."""
    advantages_N = centred(batch)
    if batch.norm_by_std:
        advantages_N = advantages_N / (deviation(batch, advantages_N) + EPSILON)
    return over_tokens(batch, advantages_N)
