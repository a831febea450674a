"""Routing of single queries, one try each: what router data sets are compared by.

A router of queries is a chance of a right answer for each worker. Asking the worker of the highest
`worth * chance - cost`, as the worth of a right answer goes up, gives its curve of cost and
accuracy, and that its AIQ (`curves.py`). Queries are resampled with replacement, the same
ones for every router, so each number has an interval and differences between routers are paired.

Legend: Q queries, W workers, P points of a curve.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from benchmarks.orchestration.curves import Point, aiq

from tutelage.orchestration.data.outcomes import Floats, OutcomeTable
from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import Difference, reliable_interval

DRAWS = 400
"""Resamples of the queries behind each interval."""
CALIBRATED = "calibrated kNN"
_SINGLE = "single workers"
_WORTHS = (0.0, *np.geomspace(1e-6, 1.0, 60))


@dataclass(frozen=True, slots=True)
class _Curve:
    """What each query costs and scores at each point of a router's curve."""

    costs_PQ: Floats
    scores_PQ: Floats

    def points(self, weights_DQ: Floats) -> list[list[Point]]:
        """For each row of weights the means over queries, of those that are known at a point."""
        known_PQ = ~np.isnan(self.scores_PQ)
        total_DP = np.maximum(weights_DQ @ known_PQ.T.astype(np.float64), 1e-12)
        cost_DP, score_DP = (
            weights_DQ @ np.where(known_PQ, values_PQ, 0.0).T / total_DP
            for values_PQ in (self.costs_PQ, self.scores_PQ)
        )
        pairs = zip(cost_DP.tolist(), score_DP.tolist(), strict=True)
        return [list(zip(costs, scores, strict=True)) for costs, scores in pairs]


@dataclass(frozen=True, slots=True)
class QueryEvaluation:
    """One row a router, and AIQ of the shipped one less that of the others."""

    rows: list[dict[str, Any]]
    """`name`, and `aiq`, `accuracy` and `cost` (USD a query, at the most accurate point), each with
    `_low` and `_high`, NaN where there is no interval."""
    differences: Mapping[str, Difference]
    """AIQ of `CALIBRATED` less that of each other row, resampled in pairs."""
    queries: int

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def measure_queries(
    table: OutcomeTable, chances: Mapping[str, Floats], seeds: SeedTree
) -> QueryEvaluation:
    """The rows of routers that go by these chances of a right answer, [Q, W], by name; `CALIBRATED`
    is among them, and is the one that others are compared with."""
    curves = {name: _curve(table, chance_QW) for name, chance_QW in chances.items()}
    costs_WQ = np.where(table.known_QW, table.costs_QW, np.nan).T
    curves[_SINGLE] = _Curve(costs_WQ, table.scores_QW.T)
    even = np.ones(len(table))
    rng = seeds.child("queries").numpy()
    drawn_DQ = rng.multinomial(len(table), even / len(table), DRAWS).astype(np.float64)
    own, *drawn = _measured(curves, np.vstack([even, drawn_DQ]))
    rows = [
        _row(name, own[name], np.array([one[name] for one in drawn]), len(table)) for name in curves
    ]
    differences: dict[str, Difference] = {}
    for name in curves:
        if name != CALIBRATED:
            gaps = np.array([one[CALIBRATED][0] - one[name][0] for one in drawn])
            low, high = _interval(gaps, len(table))
            mean = own[CALIBRATED][0] - own[name][0]
            signs = (int((gaps > 0).sum()), int((gaps < 0).sum()), int((gaps == 0).sum()))
            differences[name] = Difference(mean, low, high, *signs)
    return QueryEvaluation(rows, differences, len(table))


def _curve(table: OutcomeTable, chances_QW: Floats) -> _Curve:
    """What is asked at each worth of a right answer."""
    rows = np.arange(len(table))
    scores_QW = np.nan_to_num(table.scores_QW, nan=0.0)
    costs: list[Floats] = []
    scores: list[Floats] = []
    for worth in _WORTHS:
        gain_QW = np.where(table.known_QW, worth * chances_QW - table.costs_QW, -np.inf)
        chosen = rows, gain_QW.argmax(axis=1)
        costs.append(table.costs_QW[chosen])
        scores.append(scores_QW[chosen])
    return _Curve(np.array(costs), np.array(scores))


def _measured(
    curves: Mapping[str, _Curve], weights_DQ: Floats
) -> list[dict[str, tuple[float, float, float]]]:
    """AIQ, accuracy and cost of each router, for each row of how often a query counts."""
    points = {name: curve.points(weights_DQ) for name, curve in curves.items()}
    measured: list[dict[str, tuple[float, float, float]]] = []
    for draw in range(len(weights_DQ)):
        costs = [cost for cost, _ in points[_SINGLE][draw]]
        low, high = min(costs), max(max(costs), min(costs) * 1.001 + 1e-12)
        row: dict[str, tuple[float, float, float]] = {}
        for name, some in points.items():
            cost, accuracy = max(some[draw], key=lambda p: (p[1], -p[0]))
            row[name] = aiq(some[draw], low, high), accuracy, cost
        measured.append(row)
    return measured


def _interval(drawn_D: Floats, queries: int) -> tuple[float, float]:
    low, high = np.quantile(drawn_D, [0.025, 0.975])
    return reliable_interval((float(low), float(high)), queries)


def _row(
    name: str, own: tuple[float, float, float], drawn_D3: Floats, queries: int
) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name}
    for place, key in enumerate(("aiq", "accuracy", "cost")):
        low, high = _interval(drawn_D3[:, place], queries)
        row |= {key: own[place], f"{key}_low": low, f"{key}_high": high}
    return row
