"""What every policy loss is given and returns: one loss per token, before any averaging.

`policy_loss` in `__init__.py` builds `LossInputs` (masked positions filled with 0, everything but
the log-probabilities detached), calls the loss of the mode and averages what comes back. A loss
therefore needs no mask and no denominator of its own; sequence statistics go through `index`. What
a loss declares of itself is in `../../extensions.py`.

Legend: B rows, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from tutelage.algorithms.rl.index import RolloutIndex

MAX_LOG_RATIO = 20.0
"""Beyond this a log-ratio says only that the policies are far apart; its exponential would run."""


class TokenLoss(NamedTuple):
    """[B, T] each: the loss of a token, and whether a clip or a selection changed it."""

    loss_BT: Tensor
    clipped_BT: Tensor


@dataclass(frozen=True, slots=True)
class LossInputs:
    """The batch of one call: `logp_BT` carries the gradient, all is 0 where the mask is 0.

    `low`, `high` are the clip range 1 - low .. 1 + high, as configured, else what the loss declares
    with `clip=(low, high)`, else 0.2; `dual` is the bound c of the dual clip. Sums over a rollout
    come from `index.sum_N`, and `index.rows_B1` is the place of a row's rollout in them.
    """

    logp_BT: Tensor
    old_logp_BT: Tensor
    advantages_BT: Tensor
    index: RolloutIndex
    low: float
    high: float
    dual: float

    @property
    def log_ratio_BT(self) -> Tensor:
        """`d = clip(logp - old_logp, -20, 20)`."""
        return (self.logp_BT - self.old_logp_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    @property
    def ratio_BT(self) -> Tensor:
        """`q = exp(d)`."""
        return self.log_ratio_BT.exp()


def clipped_surrogate(inputs: LossInputs, ratio_BT: Tensor) -> TokenLoss:
    """`max(-A s, -A clip(s, 1 - low, 1 + high))` for a ratio s per token."""
    plain_BT = -inputs.advantages_BT * ratio_BT
    held_BT = -inputs.advantages_BT * ratio_BT.clamp(1 - inputs.low, 1 + inputs.high)
    return TokenLoss(plain_BT.maximum(held_BT), held_BT > plain_BT)
