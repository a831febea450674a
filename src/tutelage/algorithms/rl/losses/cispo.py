"""CISPO: REINFORCE with a clipped importance weight, so that no token loses its gradient.

    L = -sg(clip(q, 1 - el, 1 + eh)) * A * logp

sg stops the gradient. The paper has no lower bound (el = 1, since a ratio is never below 0) and
tunes only eh, whose value it does not print; verl's example has 0.2, and its `clip_ratio_low=10`
has the same effect as 1. The defaults are 1 and 0.2.

Source: MiniMax-M1, arXiv 2506.13585, equations 4 and 5. Shapes [B, T]. Denominator: that of the
aggregation, over the optimizer batch.
"""

from __future__ import annotations

from tutelage.algorithms.extensions import loss
from tutelage.algorithms.rl.losses.common import LossInputs, TokenLoss


@loss(clip=(1.0, 0.2))
def cispo(inputs: LossInputs) -> TokenLoss:
    """Return the weighted negative log-likelihood of each token."""
    ratio_BT = inputs.ratio_BT.detach()
    weight_BT = ratio_BT.clamp(1 - inputs.low, 1 + inputs.high)
    return TokenLoss(-weight_BT * inputs.advantages_BT * inputs.logp_BT, weight_BT != ratio_BT)
