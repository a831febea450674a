"""CISPO: REINFORCE with a clipped importance weight, so that no token loses its gradient.

    L = -sg(clip(q, 1 - el, 1 + eh)) * A * logp

sg stops the gradient. Source: MiniMax-M1, arXiv 2506.13585. Shapes [B, T]. Denominator: that of
the aggregation, over the optimizer batch.
"""

from __future__ import annotations

from tutelage.algorithms.rl.losses.common import LossInputs, TokenLoss


def cispo(inputs: LossInputs) -> TokenLoss:
    """The weighted log-likelihood of each token."""
    ratio_BT = inputs.ratio_BT.detach()
    weight_BT = ratio_BT.clamp(1 - inputs.low, 1 + inputs.high)
    return TokenLoss(-weight_BT * inputs.advantages_BT * inputs.logp_BT, weight_BT != ratio_BT)
