"""The control of a training by rewards: the same steps with advantages that say nothing.

tutelage train rl ... trainer.control=benchmarks/real_model/shuffled.py:shuffled
"""

from __future__ import annotations

from tutelage.algorithms.rl import Estimate, Packed, estimator
from tutelage.algorithms.rl.advantages.groups import EPSILON, centred, deviation, over_tokens


@estimator(groups=True)
def shuffled(batch: Packed) -> Estimate:
    """The control: GRPO's advantages, each given to a rollout of another task."""
    advantages_N = centred(batch)
    advantages_N = advantages_N / (deviation(batch, advantages_N) + EPSILON)
    return over_tokens(batch, advantages_N.roll(len(advantages_N) // 2))
