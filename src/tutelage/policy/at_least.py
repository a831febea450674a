"""A reply of at least N tokens: until then nothing may be drawn that ends a turn.

It is a grammar like those of `grammar.py`, so what it allowed is recorded with each token, and the
trainer scores a token among those that it was drawn from (`constrained.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tutelage.policy.grammar import Grammar, Matcher

if TYPE_CHECKING:
    from tutelage.policy.codec import Codec

Words = NDArray[np.int32]


class AtLeast(Grammar):
    """Any reply of at least `tokens` tokens, the end of the turn not counted."""

    def __init__(self, codec: Codec, tokens: int) -> None:
        self.text, self._tokens = f"at least {tokens} tokens", tokens
        vocabulary = len(codec.tokenizer)
        self._all = _bits(range(vocabulary), vocabulary)
        self._ends = _bits(codec.eos_ids, vocabulary)

    def after(self, ids: Sequence[int]) -> AtLeast:
        """What is left of it after the first tokens of a reply."""
        rest = copy(self)
        rest._tokens = max(0, self._tokens - len(ids))
        return rest

    def start(self) -> Matcher:
        """A matcher at the beginning of a reply."""
        return _Counter(self._all & ~self._ends, self._all, self._tokens)


class _Counter(Matcher):
    """Counts the tokens of one reply."""

    def __init__(self, before: Words, afterwards: Words, left: int) -> None:
        self._before, self._afterwards, self._left = before, afterwards, left

    def fill(self, words: Words) -> None:
        """Write the set of tokens that may come next; see `Matcher`."""
        found = self._before if self._left > 0 else self._afterwards
        words[:] = 0
        words[: len(found)] = found[: len(words)]

    def accept(self, token: int) -> None:
        """Go on after a token."""
        self._left -= 1


def _bits(ids: Collection[int], vocabulary: int) -> Words:
    """A set of tokens, one bit each, least significant first."""
    flags = np.zeros(-(-vocabulary // 32) * 32, np.uint8)
    flags[list(ids)] = 1
    return np.packbits(flags, bitorder="little").view(np.int32)
