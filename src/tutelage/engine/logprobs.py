"""Read the log-probabilities of sampled tokens.

The gateway sends them with a reply. Does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tutelage.types import Sampled

TokenLogprob = tuple[float | None, tuple[tuple[int, float], ...]]
"""A token's log-probability at temperature 1 (None for the first token of a prompt), and the most
probable tokens with theirs."""


def token_logprobs(sampled: Sampled) -> tuple[TokenLogprob, ...]:
    """Return the log-probability and the most probable alternatives of each sampled token."""
    tops = sampled.top or ((),) * len(sampled.token_ids)
    return tuple(zip(sampled.raw_logprobs, tops, strict=True))
