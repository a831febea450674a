"""The inputs and the result of policy losses: one loss per token, before averaging.

`policy_loss` in `__init__.py` builds `LossInputs` (masked positions filled with 0, everything but
the log-probabilities detached), calls the mode's loss and averages its result. So a loss needs
neither mask nor denominator; statistics over a sequence use `index`. `../../extensions.py` has the
decorator that declares a loss.

Legend: B rows, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from tutelage.algorithms.rl.index import RolloutIndex

MAX_LOG_RATIO = 20.0
"""Limit of log-ratios, above which their exponentials would be too large."""


class TokenLoss(NamedTuple):
    """Loss of each token, and a mask of tokens changed by a clip or a selection, each [B, T]."""

    loss_BT: Tensor
    clipped_BT: Tensor


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Inputs of a loss: only `logp_BT` has a gradient, and all values are 0 where the mask is 0.

    `low`, `high` are the clip range 1 - low .. 1 + high, as configured, else as the loss declares
    it with `clip=(low, high)`, else 0.2; `dual` is the bound c of the dual clip. `index.sum_N` sums
    over rollouts, and `index.rows_B1` expands the sums to rows.
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
        """Compute the log-ratio `d = clip(logp - old_logp, -20, 20)`."""
        return (self.logp_BT - self.old_logp_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    @property
    def ratio_BT(self) -> Tensor:
        """Compute the ratio `q = exp(d)`."""
        return self.log_ratio_BT.exp()


def clipped_surrogate(inputs: LossInputs, ratio_BT: Tensor) -> TokenLoss:
    """Compute `max(-A s, -A clip(s, 1 - low, 1 + high))` for a ratio s per token."""
    plain_BT = -inputs.advantages_BT * ratio_BT
    held_BT = -inputs.advantages_BT * ratio_BT.clamp(1 - inputs.low, 1 + inputs.high)
    return TokenLoss(plain_BT.maximum(held_BT), held_BT > plain_BT)
