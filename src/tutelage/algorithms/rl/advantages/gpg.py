"""GPG: group-centred rewards, scaled up if few rollouts of the batch have a reward.

    A = B / max(1, number of rollouts with R != 0) * (R - mean_g), B = rollouts of the batch

Source: Chu et al., arXiv 2504.02546. Denominators: the group's rollouts (mean), the batch's
rollouts with a reward (scale). B counts rollouts, not rows. Shapes: N rollouts.
"""

from __future__ import annotations

from tutelage.algorithms.extensions import estimator
from tutelage.algorithms.rl.advantages.groups import centred, over_tokens
from tutelage.algorithms.rl.advantages.packed import Estimate, Packed


@estimator(groups=True)
def gpg(batch: Packed) -> Estimate:
    """Return centred rewards, divided by the fraction of rollouts with a nonzero reward."""
    rewarded = int(batch.final_N.count_nonzero())
    scale = batch.final_N.shape[0] / max(1, rewarded)
    return over_tokens(batch, scale * centred(batch))
