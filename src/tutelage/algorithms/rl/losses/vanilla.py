"""PPO's clipped surrogate with the dual clip.

    L = max(-A q, -A clip(q, 1 - el, 1 + eh));  where A < 0 also L = min(L, -A c)

q = exp(clip(logp - old_logp, -20, 20)), [B, T]. The dual clip bounds the loss of a token with a
negative advantage and a large ratio; c is `clip_ratio_c`.

Sources: PPO (arXiv 1707.06347), dual clip (arXiv 1912.09729), el != eh as in DAPO (arXiv
2503.14476). Denominator: that of the aggregation, over the optimizer batch.
"""

from __future__ import annotations

import torch

from tutelage.algorithms.extensions import loss
from tutelage.algorithms.rl.losses.common import (
    LossInputs,
    TokenLoss,
    clipped_surrogate,
)


@loss(clip=(0.2, 0.2), dual_clip=True)
def vanilla(inputs: LossInputs) -> TokenLoss:
    """Return the dual-clipped surrogate of each token."""
    loss_BT, clipped_BT = clipped_surrogate(inputs, inputs.ratio_BT)
    bound_BT = -inputs.advantages_BT * inputs.dual
    bounded_BT = (inputs.advantages_BT < 0) & (loss_BT > bound_BT)
    return TokenLoss(torch.where(bounded_BT, bound_BT, loss_BT), clipped_BT | bounded_BT)
