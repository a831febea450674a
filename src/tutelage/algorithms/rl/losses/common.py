"""What every policy loss is given and returns: one loss per token, before any averaging.

`policy_loss` in `__init__.py` builds `LossInputs` (masked positions filled with 0, everything but
the log-probabilities detached), calls the loss of the mode and averages what comes back. A loss
therefore needs no mask and no denominator of its own; sequence statistics go through `index`.

Legend: B rows, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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
class LossDefaults:
    """What a loss takes where nobody says otherwise: each loss declares its own, in its file."""

    source: str
    """Who says so, in words that follow "as"."""
    aggregation: str = "token-mean"
    clip: tuple[float, float] | None = (0.2, 0.2)
    """Clip distances, low and high; None where the loss clips no ratio."""
    sequence_level: bool = False
    """Whether its paper averages by sequence, so that another aggregation is another algorithm."""
    fitting_low: tuple[float, float] = (0.0, math.inf)
    """Clip distances below that its paper does not contradict."""
    fitting_high: tuple[float, float] = (0.0, math.inf)
    """Clip distances above that its paper does not contradict."""

    def contradictions(
        self, aggregation: str | None, low: float | None, high: float | None
    ) -> Iterator[tuple[str, object, object]]:
        """(key of `actor`, value, the loss's own) of each choice that its paper contradicts; None
        is no choice."""
        if aggregation is not None and self.sequence_level and aggregation != self.aggregation:
            yield "loss_agg_mode", aggregation, self.aggregation
        if self.clip is None:
            return
        for key, value, fitting, own in (
            ("clip_ratio_low", low, self.fitting_low, self.clip[0]),
            ("clip_ratio_high", high, self.fitting_high, self.clip[1]),
        ):
            if value is not None and not fitting[0] <= value <= fitting[1]:
                yield key, value, own


@dataclass(frozen=True, slots=True)
class LossInputs:
    """The batch of one call: `logp_BT` carries the gradient, all is 0 where the mask is 0.

    `low`, `high` are the clip range 1 - low .. 1 + high; `dual` is the bound c of the dual clip.
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
