"""SAPO: a smooth gate in place of PPO's hard clip.

    L = -A * (4 / tau) * sigmoid(tau * (q - 1)), tau = tau_pos where A > 0, else tau_neg

At q = 1 the gradient is that of REINFORCE and it fades on both sides; nothing is ever clipped.

Source: Gao et al., arXiv 2511.20347, with its temperatures 1.0 and 1.05. Shapes [B, T].
Denominator: that of the aggregation, over the optimizer batch: by default the paper's
`seq-mean-token-mean`.
"""

from __future__ import annotations

import torch

from tutelage.algorithms.extensions import loss
from tutelage.algorithms.rl.losses.common import LossInputs, TokenLoss
from tutelage.errors import ConfigError


@loss(aggregation="seq-mean-token-mean")
def sapo(inputs: LossInputs, *, tau_pos: float = 1.0, tau_neg: float = 1.05) -> TokenLoss:
    """Return the gated loss of each token."""
    for name, tau in (("tau_pos", tau_pos), ("tau_neg", tau_neg)):
        if not tau > 0:
            raise ConfigError(f"actor.policy_loss.{name}={tau!r} must be above 0")
    advantages_BT, ratio_BT = inputs.advantages_BT, inputs.ratio_BT
    gate_BT = torch.where(
        advantages_BT > 0,
        (4.0 / tau_pos) * torch.sigmoid(tau_pos * (ratio_BT - 1)),
        (4.0 / tau_neg) * torch.sigmoid(tau_neg * (ratio_BT - 1)),
    )
    return TokenLoss(-advantages_BT * gate_BT, torch.zeros_like(inputs.index.mask_BT))
