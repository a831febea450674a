"""Predictor of the probability that each worker answers a query correctly: a calibrated kNN.

The support of a query is its 40 nearest known queries, weighted by exp(temperature * cosine), and
24 known queries of its type, which give the average for the type. The probability that a worker is
correct is its weighted accuracy on the support. Earlier tries at a node are evidence: each support
query is weighted by the likelihood of the verdicts so far, so a failure of one worker lowers the
probabilities of correlated workers. Temperature, the weight of the type's queries and a logistic
calibration are fitted out of fold: a known query is never in its own support. Missing outcomes,
such as those of a worker added later, are filled with the worker's accuracy on the type.

`data/neighbours.py` finds the support; `policy.py` uses the probabilities. Torch is imported only
for search, fitting and saving. Legend: B queries, Q known queries, K support, W workers.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tutelage.errors import DataError
from tutelage.orchestration.data.neighbours import NearestTexts, hash_text
from tutelage.orchestration.data.outcomes import Floats, OutcomeTable
from tutelage.orchestration.execution.worker_files import parse_worker, worker_to_json
from tutelage.orchestration.execution.workers import Worker
from tutelage.seeds import SeedTree

NEAREST = 40
OF_TYPE = 24
TEMPERATURES = (5.0, 10.0, 20.0)
SHARES = (0.05, 0.1, 0.2, 0.4, 0.6, 0.75)
"""Candidate shares of the support weight for queries of the same type."""
CLIP = 0.01
"""Minimum distance of probabilities from 0 and 1, because the support is small."""


PASSES_RIGHT, PASSES_WRONG = 0.95, 0.1
"""Probabilities that a verifier passes a correct and a wrong answer."""


def verdict_probs(p_correct: Floats) -> tuple[Floats, Floats, Floats]:
    """Return P(pass), P(correct | pass) and P(correct | reject) of an answer; `p_correct` is the
    probability that it is correct."""
    passes = PASSES_WRONG + (PASSES_RIGHT - PASSES_WRONG) * p_correct
    return (
        passes,
        p_correct * PASSES_RIGHT / np.maximum(passes, 1e-9),
        p_correct * (1 - PASSES_RIGHT) / np.maximum(1 - passes, 1e-9),
    )


@dataclass(frozen=True, slots=True)
class NeighbourWeights:
    """Nearest training queries of each query: their indices, and weights that sum to 1 per row."""

    rows_BK: NDArray[np.int64]
    weights_BK: Floats

    def take(self, rows: NDArray[np.int64]) -> NeighbourWeights:
        """Return the neighbour weights of a subset of the queries."""
        return NeighbourWeights(self.rows_BK[rows], self.weights_BK[rows])


@dataclass(frozen=True, slots=True)
class OutcomePredictor:
    """Predictor of the correctness, cost and latency of workers. Created by `fit`."""

    workers: tuple[Worker, ...]
    index: NearestTexts
    types: tuple[str, ...]
    right_QW: Floats
    """1 for correct, 0 for wrong; estimated accuracy if the worker was not called."""
    tokens_QW: Floats
    """Number of output tokens; NaN if only costs are known."""
    costs_QW: Floats
    seconds_QW: Floats
    seeds: SeedTree
    temperature: float = 10.0
    share: float = 0.1
    slope: float = 1.0
    offset: float = 0.0

    @staticmethod
    def fit(table: OutcomeTable, seeds: SeedTree) -> tuple[OutcomePredictor, NeighbourWeights]:
        """Fit a predictor on a table of outcomes; return it and the out-of-fold neighbours of rows.

        Raises `DataError` if the table has fewer than two queries or a worker without outcomes.
        """
        import torch

        from tutelage.orchestration.planner.confidence import fit_logistic

        if len(table) < 2:
            raise DataError(
                f"the outcome table needs at least 2 queries for predictions, got {len(table)}"
            )
        known_QW, right_QW = table.known_QW, table.right_QW.astype(np.float64)
        filled_QW, kinds = right_QW.copy(), np.array(table.types)
        for j, worker in enumerate(table.workers):
            # Fill missing outcomes with the accuracy on the type, shrunk toward the worker's mean.
            if not known_QW[:, j].any():
                raise DataError(f"the table has no outcomes of worker {worker.name!r}; remove it")
            mean = right_QW[known_QW[:, j], j].mean()
            for kind in set(table.types):
                rows = kinds == kind
                seen = rows & known_QW[:, j]
                share = (right_QW[seen, j].sum() + 4 * mean) / (seen.sum() + 4)
                filled_QW[rows & ~known_QW[:, j], j] = share
        predictor = OutcomePredictor(
            workers=table.workers,
            index=NearestTexts.build(table.instructions),
            types=table.types,
            right_QW=filled_QW,
            tokens_QW=table.tokens_out_QW,
            costs_QW=table.costs_QW,
            seconds_QW=table.seconds_QW,
            seeds=seeds.child("predictor"),
        )
        own = np.arange(len(table))
        near = predictor.index.find_nearest(predictor.index.features, NEAREST, skip=own)
        found: list[tuple[float, OutcomePredictor, NeighbourWeights]] = []
        for temperature, share in itertools.product(TEMPERATURES, SHARES):
            candidate = replace(predictor, temperature=temperature, share=share)
            support = candidate._weight(near, table.types, own)
            chance, right = candidate.p_correct(support)[known_QW], right_QW[known_QW]
            clipped = np.clip(chance, CLIP, 1 - CLIP)
            loss = float(-(right * np.log(clipped) + (1 - right) * np.log(1 - clipped)).mean())
            found.append((loss, candidate, support))
        _, best, support = min(found, key=lambda each: each[0])
        raw = _logit(best.p_correct(support))
        rows = np.column_stack([np.ones(int(known_QW.sum())), raw[known_QW]])
        # Regularized toward offset 0 and slope 1: no calibration.
        first = torch.tensor([0.0, 1.0], dtype=torch.float64)
        wanted = torch.from_numpy(right_QW[known_QW])
        offset, slope = fit_logistic(torch.from_numpy(rows), wanted, torch.ones_like(first), first)
        return replace(best, slope=float(slope), offset=float(offset)), support

    def neighbours(self, texts: Sequence[str], types: Sequence[str]) -> NeighbourWeights:
        """Return the weighted nearest neighbours of new queries."""
        return self._weight(self.index.find_nearest([hash_text(t) for t in texts], NEAREST), types)

    def _weight(
        self,
        nearest: tuple[NDArray[np.int64], Floats],
        types: Sequence[str],
        skip: NDArray[np.int64] | None = None,
    ) -> NeighbourWeights:
        """Compute neighbour weights. `nearest` has indices and cosines of the nearest queries;
        `skip` has the index of each query if the queries are training queries."""
        near_BK, cosines_BK = nearest
        mine = np.exp(self.temperature * (cosines_BK - cosines_BK.max(axis=1, keepdims=True)))
        mine *= (1 - self.share) / mine.sum(axis=1, keepdims=True)
        # A fixed sample of known queries of the type; of all types if the type is unknown.
        known, pools = np.array(self.types), dict[str, NDArray[np.int64]]()
        for kind in dict.fromkeys(types):
            rows = np.flatnonzero(known == kind)
            rows = rows if len(rows) else np.arange(len(known))
            order = self.seeds.child("of-type", kind).numpy().permutation(rows)
            pools[kind] = np.resize(order, OF_TYPE)
        wide_BK = np.array([pools[kind] for kind in types]).reshape(len(types), -1)
        even = np.ones(wide_BK.shape)
        if skip is not None:
            even[wide_BK == skip[:, None]] = 0.0
        even *= self.share / np.maximum(1, even.sum(axis=1, keepdims=True))
        weights = np.concatenate([mine, even], axis=1)
        rows = np.concatenate([near_BK, wide_BK], axis=1)
        return NeighbourWeights(rows, weights / weights.sum(axis=1, keepdims=True))

    def p_correct(
        self, support: NeighbourWeights, failed_BW: NDArray[np.bool_] | None = None
    ) -> Floats:
        """Return P(correct) of each worker, [B, W], conditioned on the failed workers."""
        right_BKW = self.right_QW[support.rows_BK]
        weights_BK = support.weights_BK
        if failed_BW is not None:
            # Likelihood of these failures under each support query; clipped, because a perfect
            # verifier could otherwise exclude the whole support.
            pass_BKW, _, _ = verdict_probs(right_BKW)
            log_fail = np.log((1 - pass_BKW).clip(0.02, 1))
            likely_BK = np.exp(np.einsum("bkw,bw->bk", log_fail, failed_BW.astype(np.float64)))
            weights_BK = weights_BK * likely_BK
            weights_BK = weights_BK / weights_BK.sum(axis=1, keepdims=True)
        return self._calibrate(np.einsum("bk,bkw->bw", weights_BK, right_BKW))

    def _calibrate(self, raw: Floats) -> Floats:
        return 1.0 / (1.0 + np.exp(-np.clip(self.slope * _logit(raw) + self.offset, -30, 30)))

    def p_any_correct(self, support: NeighbourWeights, chances_BW: Floats, tries: int) -> Floats:
        """Return the probability that any of the best `tries` workers is correct, [B].

        `chances_BW` ranks the workers of the predictor, or the first of them; workers with negative
        values are excluded.
        """
        tries = min(tries, chances_BW.shape[1])
        best_BT = np.argsort(-chances_BW, axis=1)[:, :tries]
        usable_BT = np.take_along_axis(chances_BW, best_BT, axis=1) >= 0
        right_BKT = self.right_QW[support.rows_BK[:, :, None], best_BT[:, None, :]]
        any_BK = 1 - np.prod(1 - right_BKT * usable_BT[:, None, :], axis=2)
        return self._calibrate(np.einsum("bk,bk->b", support.weights_BK, any_BK))

    def estimate(self, support: NeighbourWeights, tokens_in_B: Floats) -> tuple[Floats, Floats]:
        """Return the expected cost in USD and latency in seconds of each worker, both [B, W]."""
        written_BW, costs_BW, seconds_BW = (
            np.einsum("bk,bkw->bw", support.weights_BK, values_QW[support.rows_BK])
            for values_QW in (self.tokens_QW, self.costs_QW, self.seconds_QW)
        )
        prices_2W = np.array([(w.price_in, w.price_out) for w in self.workers]).T
        priced_BW = (tokens_in_B[:, None] * prices_2W[0] + written_BW * prices_2W[1]) / 1e6
        return np.where(np.isnan(self.tokens_QW).any(axis=0), costs_BW, priced_BW), seconds_BW

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors, numbers and strings; loadable with `weights_only=True`."""
        import torch

        features = self.index.features
        return {
            "features": torch.from_numpy(np.concatenate(features)),
            "lengths": torch.tensor([len(row) for row in features]),
            "types": list(self.types),
            "workers": [worker_to_json(w) for w in self.workers],
            **{k: torch.from_numpy(getattr(self, k)) for k in _MATRICES},
            **{k: float(getattr(self, k)) for k in _NUMBERS},
            "seed": self.seeds.seed,
            "path": [str(part) for part in self.seeds.path],
        }

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> OutcomePredictor:
        """Restore a predictor from its `state_dict`."""
        cuts = np.cumsum(state["lengths"].numpy())[:-1]
        return OutcomePredictor(
            workers=tuple(parse_worker(w) for w in state["workers"]),
            index=NearestTexts(np.split(state["features"].numpy(), cuts)),
            types=tuple(state["types"]),
            seeds=SeedTree(state["seed"], tuple(state["path"])),
            **{k: state[k].numpy() for k in _MATRICES},
            **{k: state[k] for k in _NUMBERS},
        )


_MATRICES = ("right_QW", "tokens_QW", "costs_QW", "seconds_QW")
_NUMBERS = ("temperature", "share", "slope", "offset")


def _logit(p: Floats) -> Floats:
    clipped = np.clip(p, CLIP, 1 - CLIP)
    return np.log(clipped / (1 - clipped))
