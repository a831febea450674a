"""Hashed features of text: words, pairs of words, stems and character n-grams, per word.

There is no vocabulary, so text in any language and any new tool name has features. A feature is one
of 2^15 buckets. A bucket that occurs n times in a text has the share 1/n each time, so the sum over
a text counts every feature once. Features are grouped by their first word: `network.py` sums them
over the text for its meaning and over each word for the attention of its decoder.
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
"""Maximum number of words that the decoder attends to. Later words are only part of the sum."""

_WORD = re.compile(r"[^\W\d_]+|\d")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_STEM = 5
_GRAM = 4
_ROWS = 256
"""Number of texts per matrix multiplication."""


@dataclass(frozen=True, slots=True)
class Features:
    """Hashed features of a text: bucket ids, their shares, and the start index of each word."""

    ids: np.ndarray
    """(F,) int64."""
    shares: np.ndarray
    """(F,) float32, 1 / number of occurrences of the bucket in the text."""
    words: np.ndarray
    """(P,) int64, ascending start indices in `ids`; at least one word."""


@lru_cache(maxsize=1 << 16)
def _hash(feature: str) -> int:
    return zlib.crc32(feature.encode("utf-8", "surrogatepass")) % BUCKETS


@lru_cache(maxsize=1 << 16)
def _hash_word(word: str) -> tuple[int, ...]:
    """Return the bucket ids of a word, its stem and its character n-grams."""
    numbers = [_hash(word)]
    if len(word) > _STEM:
        numbers.append(_hash("^" + word[:_STEM]))
    framed = f"<{word}>"
    if len(word) > 2:
        numbers += [_hash("#" + framed[i : i + _GRAM]) for i in range(len(framed) - _GRAM + 1)]
    return tuple(numbers)


def split_words(text: str) -> list[str]:
    """Split a text into lower-case words and single digits, also at snake_case and camelCase."""
    spaced = _CAMEL.sub(" ", text).replace("_", " ")
    return [word.lower() for word in _WORD.findall(spaced)]


def features(text: str) -> Features:
    """Compute the hashed features of a text. A text without words counts as one empty word."""
    words = split_words(text) or [""]
    ids: list[int] = []
    starts: list[int] = []
    for index, word in enumerate(words):
        starts.append(len(ids))
        ids.extend(_hash_word(word))
        if index + 1 < len(words):
            ids.append(_hash(word + " " + words[index + 1]))
    array = np.asarray(ids, dtype=np.int64)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    shares = (1.0 / counts[inverse]).astype(np.float32)
    return Features(array, shares, np.asarray(starts, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Flat batch of text features: `B` texts with `W` words and `F` features in total."""

    ids_F: Tensor
    shares_F: Tensor
    word_starts_W: Tensor
    text_starts_B: Tensor
    """Index of the first feature of each text."""
    places_BP: Tensor
    """Word indices of each text, padded with 0 to `P`."""
    real_BP: Tensor
    """True for words, False for padding."""

    @classmethod
    def make(cls, texts: Sequence[Features]) -> TextBatch:
        """Concatenate texts into a batch for `EmbeddingBag`."""
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
    """Compute IDF weights (BUCKETS,): log(N / max(1, number of texts with the bucket)) + 0.1."""
    counts = np.zeros(BUCKETS)
    for text in texts:
        counts[np.unique(text.ids)] += 1
    idf = np.log(max(2, len(texts)) / np.maximum(counts, 1.0)) + 0.1
    return torch.from_numpy(idf.astype(np.float32))


class SparseRows(NamedTuple):
    """Sparse matrix of texts in CSR format. Rows are unit vectors over the buckets."""

    starts_M1: Tensor
    ids_F: Tensor
    values_F: Tensor

    @classmethod
    def make(cls, texts: Sequence[Features], weights: Tensor) -> SparseRows:
        """Convert texts to unit vectors of their features, weighted by `weights` (BUCKETS,)."""
        pairs = [_unit_vector(text, weights.numpy()) for text in texts]
        sizes = np.cumsum([len(ids) for ids, _ in pairs])
        parts = ([[0], sizes], *zip(*pairs, strict=True))
        return cls(*(torch.from_numpy(np.concatenate(part)) for part in parts))

    def products(self, texts: Sequence[Features], weights: Tensor) -> Tensor:
        """Return the inner products (B, M) of `texts`, as weighted unit vectors, with the rows of
        the matrix."""
        size = (len(self.starts_M1) - 1, BUCKETS)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*Sparse CSR.*")
            matrix = torch.sparse_csr_tensor(*self, size=size, check_invariants=False)
        parts: list[Tensor] = []
        for begin in range(0, len(texts), _ROWS):
            some = texts[begin : begin + _ROWS]
            dense = torch.zeros(BUCKETS, len(some))
            for column, text in enumerate(some):
                ids, values = _unit_vector(text, weights.numpy())
                dense[torch.from_numpy(ids), column] = torch.from_numpy(values)
            parts.append((matrix @ dense).T)
        return torch.cat(parts)


def _unit_vector(text: Features, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found = np.unique(text.ids)
    values = weights[found]
    return found, (values / max(1e-9, float(np.sqrt((values**2).sum())))).astype(np.float32)
