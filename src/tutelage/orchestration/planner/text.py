"""Text as hashed features: words, pairs of words, stems and character n-grams, word by word.

No vocabulary is built, so any language and any new tool name has features. A feature is a bucket
of 2^15; a bucket that a text holds n times counts 1/n each time, so that the sum over a text sees
every feature once. Features are kept by the word they begin at: `network.py` sums them over the
text for its meaning and over each word for the attention of its decoder.
"""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

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
_ROWS = 256
"""Texts that are multiplied at once."""


@dataclass(frozen=True, slots=True)
class Features:
    """One text: buckets, their shares, and where each word's features begin."""

    ids: np.ndarray
    """(F,) int64."""
    shares: np.ndarray
    """(F,) float32, 1 / how often the bucket occurs in the text."""
    words: np.ndarray
    """(P,) int64, ascending starts in `ids`; at least one word."""


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
    # Lower-case words and single digits; snake_case and camelCase come apart.
    spaced = _CAMEL.sub(" ", text).replace("_", " ")
    words = [word.lower() for word in _WORD.findall(spaced)] or [""]
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


def inverse_frequency(texts: Sequence[Features]) -> Tensor:
    """Return the (BUCKETS,) IDF: log(N / texts with the bucket) + 0.1; a bucket that no text has
    counts as one."""
    counts = np.zeros(BUCKETS)
    for text in texts:
        counts[np.unique(text.ids)] += 1
    idf = np.log(max(2, len(texts)) / np.maximum(counts, 1.0)) + 0.1
    return torch.from_numpy(idf.astype(np.float32))


class SparseRows(NamedTuple):
    """Texts as sparse unit vectors over the buckets (CSR)."""

    starts_M1: Tensor
    ids_F: Tensor
    values_F: Tensor

    @classmethod
    def of(cls, texts: Sequence[Features], weights: Tensor) -> SparseRows:
        """Each text as the unit vector of its features, weighed by (BUCKETS,) `weights`."""
        pairs = [_unit(text, weights.numpy()) for text in texts]
        sizes = np.cumsum([len(ids) for ids, _ in pairs])
        parts = ([[0], sizes], *zip(*pairs, strict=True))
        return cls(*(torch.from_numpy(np.concatenate(part)) for part in parts))

    def products(self, texts: Sequence[Features], weights: Tensor) -> Tensor:
        """(B, M): the inner products of texts, as unit vectors weighed by `weights`, with these."""
        size = (len(self.starts_M1) - 1, BUCKETS)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*Sparse CSR.*")
            matrix = torch.sparse_csr_tensor(*self, size=size, check_invariants=False)
        parts: list[Tensor] = []
        for begin in range(0, len(texts), _ROWS):
            some = texts[begin : begin + _ROWS]
            dense = torch.zeros(BUCKETS, len(some))
            for column, text in enumerate(some):
                ids, values = _unit(text, weights.numpy())
                dense[torch.from_numpy(ids), column] = torch.from_numpy(values)
            parts.append((matrix @ dense).T)
        return torch.cat(parts)


def _unit(text: Features, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found = np.unique(text.ids)
    values = weights[found]
    return found, (values / max(1e-9, float(np.sqrt((values**2).sum())))).astype(np.float32)
