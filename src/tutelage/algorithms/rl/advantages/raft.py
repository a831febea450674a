"""RAFT: imitate the successful rollouts, without baseline or groups.

    A = 1 for a success, 0 else

`successes_B` marks the successes, by default rewards of at least 1. With a clipped ratio in the
loss this is RAFT++, rejection sampling fine-tuning inside the RL loop. All successes count equally,
whatever their costs, and failures have no negative advantage.

Source: Xiong et al., arXiv 2504.11343. Denominator: none here; the loss divides by all rollouts of
the optimizer batch, failures included, a factor that Adam's step does not see. Shapes: N rollouts.
"""

from __future__ import annotations

from tutelage.algorithms.extensions import estimator
from tutelage.algorithms.rl.advantages.groups import over_tokens
from tutelage.algorithms.rl.advantages.packed import Estimate, Packed


@estimator()
def raft(batch: Packed) -> Estimate:
    """Return 1 for each successful rollout, 0 for other rollouts."""
    return over_tokens(batch, batch.success_N.to(batch.final_N.dtype))
