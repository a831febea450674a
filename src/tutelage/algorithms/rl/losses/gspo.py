"""GSPO: PPO's clip on the ratio of a whole sequence, with the gradient of each token.

    s[t] = exp(min(logp[t] - sg(logp[t]) + sg(mean_t d), 10)),  d = logp - old_logp
    L = max(-A s, -A clip(s, 1 - el, 1 + eh))

sg stops the gradient. The mean is over the trained tokens of the rollout in all of its rows,
so **the rows of a rollout must be in the same micro-batch**. The paper averages by sequence and
clips at 3e-4 below and 4e-4 above (section 5.1): a mean over tokens moves a thousand times less
than a token's ratio, so PPO's 0.2 would never clip. These are the defaults.

Source: Zheng et al., arXiv 2507.18071 (GSPO-token). Shapes [B, T]. Denominator: that of the
aggregation, over the optimizer batch.
"""

from __future__ import annotations

from tutelage.algorithms.extensions import loss
from tutelage.algorithms.rl.losses.common import (
    LossInputs,
    TokenLoss,
    clipped_surrogate,
)

MAX_LOG_SEQUENCE_RATIO = 10.0
"""Limit of the sequence's log-ratio, which would otherwise be unbounded for negative advantages."""


@loss(aggregation="seq-mean-token-mean", clip=(3e-4, 4e-4), whole_rollouts=True)
def gspo(inputs: LossInputs) -> TokenLoss:
    """Return the clipped surrogate of each token, with the sequence-level ratio."""
    logp_BT = inputs.logp_BT
    mean_N = inputs.index.mean_N(logp_BT.detach() - inputs.old_logp_BT)
    log_ratio_BT = logp_BT - logp_BT.detach() + inputs.index.rows_B1(mean_N)
    return clipped_surrogate(inputs, log_ratio_BT.clamp(max=MAX_LOG_SEQUENCE_RATIO).exp())
