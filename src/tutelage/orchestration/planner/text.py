"""Text as hashed features: words, pairs of words, stems and character n-grams, word by word.

No vocabulary is built, so any language and any new tool name has features. A feature is a bucket
of 2^15; a bucket that a text holds n times counts 1/n each time, so that the sum over a text sees
every feature once. Features are kept by the word they begin at: `network.py` sums them over the
text for its meaning and over each word for the attention of its decoder.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

BUCKETS = 1 << 15
MAX_WORDS = 128
"""Words that the decoder attends to; those beyond count in the sum only."""

_WORD = re.compile(r"[^\W\d_]+|\d")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_STEM = 5
_GRAM = 4


@dataclass(frozen=True, slots=True)
class Features:
    """One text: buckets, their shares, and where each word's features begin."""

    ids: np.ndarray
    """(F,) int64."""
    shares: np.ndarray
    """(F,) float32, 1 / how often the bucket occurs in the text."""
    words: np.ndarray
    """(P,) int64, ascending starts in `ids`; at least one word."""


def _split_words(text: str) -> list[str]:
    """Lower-case words and single digits; snake_case and camelCase come apart."""
    return [word.lower() for word in _WORD.findall(_CAMEL.sub(" ", text).replace("_", " "))]


@lru_cache(maxsize=1 << 16)
def _bucket(feature: str) -> int:
    return zlib.crc32(feature.encode("utf-8", "surrogatepass")) % BUCKETS


@lru_cache(maxsize=1 << 16)
def _of_word(word: str) -> tuple[int, ...]:
    """The word itself, its stem, and its character n-grams."""
    numbers = [_bucket(word)]
    if len(word) > _STEM:
        numbers.append(_bucket("^" + word[:_STEM]))
    framed = f"<{word}>"
    if len(word) > 2:
        numbers += [_bucket("#" + framed[i : i + _GRAM]) for i in range(len(framed) - _GRAM + 1)]
    return tuple(numbers)


def features(text: str) -> Features:
    """The features of one text; a text without a word has one feature, that of the empty word."""
    words = _split_words(text) or [""]
    ids: list[int] = []
    starts: list[int] = []
    for index, word in enumerate(words):
        starts.append(len(ids))
        ids.extend(_of_word(word))
        if index + 1 < len(words):
            ids.append(_bucket(word + " " + words[index + 1]))
    array = np.asarray(ids, dtype=np.int64)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    shares = (1.0 / counts[inverse]).astype(np.float32)
    return Features(array, shares, np.asarray(starts, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class TextBatch:
    """A batch of texts, flat. `B` texts, `W` words in all, `F` features in all."""

    ids_F: Tensor
    shares_F: Tensor
    word_starts_W: Tensor
    text_starts_B: Tensor
    """Where each text begins among the features."""
    places_BP: Tensor
    """Numbers of the words of each text, 0 where it has fewer than `P`."""
    real_BP: Tensor
    """Which of those are words."""

    def __len__(self) -> int:
        return len(self.text_starts_B)

    @classmethod
    def of(cls, texts: Sequence[Features]) -> TextBatch:
        """Texts side by side, as an `EmbeddingBag` takes them."""
        sizes = np.asarray([len(t.ids) for t in texts], dtype=np.int64)
        counts = np.asarray([len(t.words) for t in texts], dtype=np.int64)
        starts, firsts = np.cumsum(sizes) - sizes, np.cumsum(counts) - counts
        width = min(MAX_WORDS, int(counts.max()))
        steps = np.arange(width)
        real = steps[None, :] < counts[:, None]
        places = np.where(real, firsts[:, None] + steps[None, :], 0)
        ids, shares = (np.concatenate([getattr(t, k) for t in texts]) for k in ("ids", "shares"))
        words = np.concatenate([t.words + s for t, s in zip(texts, starts, strict=True)])
        return cls(*map(torch.from_numpy, (ids, shares, words, starts, places, real)))
