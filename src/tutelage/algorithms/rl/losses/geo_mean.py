"""GMPO: the geometric mean of the tokens' ratios, each clipped on the pessimistic side.

    e[t] = min(d[t], eh) where A > 0, max(d[t], -el) where A < 0, d[t] where A = 0
    L[t] = -A[t] * exp(mean_t e),  d = clip(logp - old_logp, -20, 20)

The mean is over the trained tokens of the rollout in all of its rows, and the gradient flows
through it, so **the rows of a rollout must be in the same micro-batch**. Every token of a rollout
has the rollout's loss; averaged with `seq-mean-token-mean` this is the paper's objective. The
paper clips ratios to e^-0.4 and e^0.4 (el = eh = 0.4 for log-ratios). These are the defaults.

Source: Zhao et al., arXiv 2507.20673. Shapes [B, T]. Denominator: that of the aggregation, over the
optimizer batch.
"""

from __future__ import annotations

import torch

from tutelage.algorithms.extensions import loss
from tutelage.algorithms.rl.losses.common import LossInputs, TokenLoss


@loss(aggregation="seq-mean-token-mean", clip=(0.4, 0.4), whole_rollouts=True)
def geo_mean(inputs: LossInputs) -> TokenLoss:
    """Return the geometric-mean surrogate of the rollout at each token."""
    advantages_BT, log_ratio_BT = inputs.advantages_BT, inputs.log_ratio_BT
    held_BT = torch.where(
        advantages_BT > 0,
        log_ratio_BT.clamp(max=inputs.high),
        torch.where(advantages_BT < 0, log_ratio_BT.clamp(min=-inputs.low), log_ratio_BT),
    )
    ratio_N = inputs.index.mean_N(held_BT).exp()
    loss_BT = -advantages_BT * inputs.index.rows_B1(ratio_N)
    return TokenLoss(loss_BT, (held_BT != log_ratio_BT).detach())
