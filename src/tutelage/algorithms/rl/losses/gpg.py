"""GPG: the plain policy gradient, without ratio, clip or reference.

    L = -A * logp

Source: Chu et al., arXiv 2504.02546. Shapes [B, T]. Denominator: that of the aggregation, over the
optimizer batch. It is on-policy only: off-policy steps are not corrected.
"""

from __future__ import annotations

import torch

from tutelage.algorithms.extensions import loss
from tutelage.algorithms.rl.losses.common import LossInputs, TokenLoss


@loss()
def gpg(inputs: LossInputs) -> TokenLoss:
    """Return the negative log-likelihood of each token times its advantage."""
    loss_BT = -inputs.advantages_BT * inputs.logp_BT
    return TokenLoss(loss_BT, torch.zeros_like(inputs.index.mask_BT))
