"""REINFORCE++ with a group baseline: centred in the group, whitened over the whole batch.

    A = whiten(R - mean_g)

Source: Hu, arXiv 2501.03262. Denominators: the group's rollouts (mean), the batch's trained tokens
(whitening). With `single_member="zero"` a single rollout is left out of the whitening too, and its
advantage is exactly 0. Shapes: N rollouts, L trained tokens of a rollout.
"""

from __future__ import annotations

from tutelage.algorithms.extensions import estimator
from tutelage.algorithms.rl.advantages.groups import centred, over_tokens, sizes_N
from tutelage.algorithms.rl.advantages.packed import Estimate, Packed
from tutelage.algorithms.rl.advantages.whiten import whiten


@estimator(groups=True)
def reinforce_plus_plus_baseline(batch: Packed) -> Estimate:
    """Return group-centred rewards, whitened over the batch's tokens."""
    counted_NL = batch.mask_NL
    if batch.single_member == "zero":
        counted_NL = counted_NL & (sizes_N(batch) >= 2).unsqueeze(1)
    spread = over_tokens(batch, centred(batch))
    advantages_NL = whiten(spread.advantages_NL, counted_NL)
    return Estimate(advantages_NL, advantages_NL)
