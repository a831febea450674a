"""Nearest-neighbour search over texts: hashed word n-grams with IDF weights, cosine similarity.

Words and pairs of words are hashed into 2^16 features. The weight of a feature is log(N / number of
texts that contain it) + 0.1, and text vectors are normalized to length 1. The indexed texts form
one sparse torch matrix, so a batch of queries is one matrix product. `routing/predictor.py` uses
the neighbours.

Legend: N indexed texts, B texts to compare, K neighbours, F features.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

FEATURES = 1 << 16
UNSEEN = math.e**8
"""Ratio N / number of texts that is used for features that no indexed text contains."""
MOST_WORDS = 400
BATCH = 256

_WORD = re.compile(r"[a-z]+|\d|[^\sa-z\d]")


def hash_text(text: str) -> NDArray[np.int64]:
    """Hash a text to sorted feature ids of its words, pairs of words, and length class."""
    words = _WORD.findall(text.lower())[:MOST_WORDS]
    pairs = [f"{a}_{b}" for a, b in pairwise(words)]
    size = f"L{min(9, int(math.log2(len(words) + 1)))}"
    # crc32 is the same in every process, unlike hash().
    numbers = {zlib.crc32(gram.encode()) % FEATURES for gram in (*words, *pairs, size)}
    return np.array(sorted(numbers), dtype=np.int64)


class NearestTexts:
    """Index for nearest-neighbour search over texts."""

    def __init__(self, features: Sequence[NDArray[np.int64]]) -> None:
        self.features = list(features)
        """Hashed features of each indexed text; enough to restore the index from a checkpoint."""
        counts_F = np.zeros(FEATURES)
        for row in self.features:
            counts_F[row] += 1
        count = max(1, len(self.features))
        with np.errstate(divide="ignore"):
            self._rarity_F = np.log(np.where(counts_F > 0, count / counts_F, UNSEEN)) + 0.1
        # Only features of indexed texts can contribute to a product.
        self._column_F = np.full(FEATURES, -1, dtype=np.int64)
        used = np.flatnonzero(counts_F)
        self._column_F[used] = np.arange(len(used))
        self._width = len(used)

    @staticmethod
    def build(texts: Sequence[str]) -> NearestTexts:
        """Build an index of texts."""
        return NearestTexts([hash_text(text) for text in texts])

    def __len__(self) -> int:
        return len(self.features)

    @cached_property
    def _matrix(self) -> Tensor:
        import torch

        lengths = [len(row) for row in self.features]
        places = np.repeat(np.arange(len(lengths)), lengths)
        columns = self._column_F[np.concatenate(self.features)]
        values = np.concatenate([self._values(row) for row in self.features])
        return torch.sparse_coo_tensor(
            torch.from_numpy(np.stack([places, columns])),
            torch.from_numpy(values.astype(np.float32)),
            size=(len(self.features), self._width),
            is_coalesced=True,
            check_invariants=False,
        )

    def find_nearest(
        self, queries: Sequence[NDArray[np.int64]], k: int, *, skip: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return indices and cosines of the k nearest indexed texts, both [B, K], nearest first.

        `skip[b]` is the index of query b itself, which is excluded from its neighbours.
        """
        import torch

        k = min(k, len(self) - (skip is not None))
        places = np.empty((len(queries), k), dtype=np.int64)
        cosines = np.empty((len(queries), k))
        for start in range(0, len(queries), BATCH):
            batch = queries[start : start + BATCH]
            dense_FB = torch.zeros(self._width, len(batch))
            for b, row in enumerate(batch):
                columns = self._column_F[row]
                seen = columns >= 0
                values = torch.from_numpy(self._values(row)[seen].astype(np.float32))
                dense_FB[torch.from_numpy(columns[seen]), b] = values
            similar_BN = (self._matrix @ dense_FB).T.contiguous()
            if skip is not None:
                mine = torch.from_numpy(skip[start : start + BATCH])
                similar_BN[torch.arange(len(batch)), mine] = -1.0
            top = similar_BN.topk(k, dim=1)
            places[start : start + len(batch)] = top.indices.numpy()
            cosines[start : start + len(batch)] = top.values.numpy()
        return places, cosines

    def _values(self, row: NDArray[np.int64]) -> NDArray[np.float64]:
        weights = self._rarity_F[row]
        return weights / np.sqrt(np.square(weights).sum())
