"""RAFT: imitation of the rollouts that succeeded, nothing else; no baseline, no group.

    A = 1 for a success, 0 else

A success is what `successes_B` says, by default a reward of at least 1. With a clipped ratio in the
loss this is RAFT++, rejection sampling fine-tuning inside the RL loop; nothing tells an expensive
success from a cheap one, nor that a failure was bad.

Source: Xiong et al., arXiv 2504.11343. Denominator: none here; the loss divides by all rollouts of
the optimizer batch, failures included, a factor that Adam's step does not see. Shapes: N rollouts.
"""

from __future__ import annotations

from tutelage.algorithms.extensions import estimator
from tutelage.algorithms.rl.advantages.groups import over_tokens
from tutelage.algorithms.rl.advantages.packed import Estimate, Packed


@estimator()
def raft(batch: Packed) -> Estimate:
    """One for each success."""
    return over_tokens(batch, batch.success_N.to(batch.final_N.dtype))
