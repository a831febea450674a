"""Read the log-probabilities of sampled tokens.

A request of `protocol.py` asks for them, and the gateway sends them with the text. Does not import
torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tutelage.types import Sampled

TokenLogprob = tuple[float, tuple[tuple[int, float], ...]]
"""A token's log-probability at temperature 1, and the most probable tokens with theirs."""
OnLogprobs = Callable[[Sequence[TokenLogprob]], None]
"""Callback that receives the log-probabilities of the token ids that `OnToken` receives next."""


def token_logprobs(sampled: Sampled) -> tuple[TokenLogprob, ...]:
    """Return the log-probability and the most probable alternatives of each sampled token."""
    tops = sampled.top or ((),) * len(sampled.token_ids)
    return tuple(zip(sampled.raw_logprobs, tops, strict=True))
