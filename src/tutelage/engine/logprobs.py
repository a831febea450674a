"""Log-probabilities of tokens while they are sampled. `protocol.py` has the request that asks for
them, the gateway sends them on with the text; nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tutelage.types import Sampled

TokenLogprob = tuple[float, tuple[tuple[int, float], ...]]
"""A token's log-probability at temperature 1, and the most probable tokens with theirs."""
OnLogprobs = Callable[[Sequence[TokenLogprob]], None]
"""Is told the log-probabilities of the ids that `OnToken` is told next."""


def token_logprobs(sampled: Sampled) -> tuple[TokenLogprob, ...]:
    """Those of each token of a sample."""
    tops = sampled.top or ((),) * len(sampled.token_ids)
    return tuple(zip(sampled.raw_logprobs, tops, strict=True))
