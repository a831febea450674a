"""What similar instructions were answered with: a prior for the decoder.

The training plans are kept with the TF-IDF vectors of their instructions. For a new instruction the
nearest ones vote, by similarity, for the tools that stand in their plans and for what follows what;
the votes are mixed into the decoder's scores with a weight that validation chose. `decode.py` asks,
`evaluation/results.py` uses the same products for the baseline that copies the nearest plan.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tutelage.orchestration.planner.text import BUCKETS, Features

NEIGHBOURS = 16
FLOOR = 0.01
"""Added to a vote before its logarithm is taken."""
UNKNOWN = 0.1
"""The vote for a tool that no memory can have: it was not in training."""
_SHARPNESS = 12.0
_ROWS = 256


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


Prior = Callable[[Tensor, int, int], Tensor]
"""(B, S, T+1): what to add to the scores of the tool at a step, given the tools before (B, S), the
number of the start, and the step.
"""


class PlanIndex(NamedTuple):
    """Instructions and their plans."""

    texts: SparseRows
    plans_MN: Tensor
    """Tools by number, the end after the last one, -1 beyond."""

    def prior(
        self,
        texts: Sequence[Features],
        idf: Tensor,
        numbers_V: Tensor,
        new_T: Tensor,
        weight: float,
    ) -> Prior:
        """The votes of the nearest memories, for tools in the numbers of the catalog.

        `numbers_V` gives the place in the catalog for each number of the memory's plans, -1 for a
        tool that the catalog lacks; its last entry is the end. `new_T` says which tools training
        never saw.
        """
        similar = self.texts.products(texts, idf)
        value, index = similar.topk(min(NEIGHBOURS, similar.shape[1]), dim=1)
        share_BK = (value * _SHARPNESS).softmax(1)
        raw = self.plans_MN[index]
        plans = torch.where(raw >= 0, numbers_V[raw.clamp(min=0)], -1)
        tools = int(numbers_V[-1])
        is_tool = (plans >= 0) & (plans < tools)
        anywhere = torch.zeros(len(plans), tools + 1)
        places = torch.where(is_tool, plans, tools).flatten(1)
        anywhere.scatter_add_(1, places, (share_BK[:, :, None] * is_tool).flatten(1))
        anywhere = anywhere[:, :tools].clamp(max=1.0)
        lengths_BK = ((raw >= 0).sum(2) - 1).clamp(min=0)

        def scores(before_BS: Tensor, start: int, step: int) -> Tensor:
            # The mean of "stands in the plan" (for the end: "is as long as this") and "follows the
            # tool before".
            follows = torch.zeros(*before_BS.shape, tools + 1)
            chains = torch.cat([torch.full((*plans.shape[:2], 1), start), plans], dim=2)
            for place in range(before_BS.shape[1]):
                match = (chains[:, :, :-1] == before_BS[:, place, None, None]) & (plans >= 0)
                votes = (match * share_BK[:, :, None]).flatten(1)
                follows[:, place].scatter_add_(1, plans.clamp(min=0).flatten(1), votes)
            as_long_B1 = ((lengths_BK == step) * share_BK).sum(1, keepdim=True)
            whole = torch.cat([anywhere, as_long_B1], dim=1)[:, None]
            votes = 0.5 * (follows + whole).clamp(max=2.0)
            votes[:, :, :-1] = torch.where(new_T, UNKNOWN, votes[:, :, :-1])
            return weight * torch.log(votes + FLOOR)

        return scores
