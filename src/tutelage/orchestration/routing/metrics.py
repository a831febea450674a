"""Quality against cost: the Pareto front, its non-decreasing hull, and one number for a curve.

A router that can be told how much a dollar matters is a curve of points (cost, quality). `aiq`, the
average improvement in quality of RouterBench (arXiv 2403.12031), is the mean height of the curve's
non-decreasing convex hull over the range of costs that single workers span.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tutelage.errors import DataError
from tutelage.orchestration.data.outcomes import Floats, OutcomeTable

Point = tuple[float, float]
"""(cost, quality)."""


def pareto_front(points: Sequence[Point]) -> list[int]:
    """The places of the points that no other one beats in cost and quality, cheapest first."""
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    front: list[int] = []
    for i in order:
        if not front or points[i][1] > points[front[-1]][1]:
            front.append(i)
    return front


def hull(points: Sequence[Point]) -> list[Point]:
    """The upper convex hull up to its best point: what mixing two settings can reach."""
    upper: list[Point] = []
    for cost, quality in (points[i] for i in pareto_front(points)):
        while len(upper) >= 2 and _below(upper[-2], upper[-1], (cost, quality)):
            upper.pop()
        upper.append((cost, quality))
    return upper


def aiq(points: Sequence[Point], low: float, high: float) -> float:
    """The mean height of the hull over costs from `low` to `high`; flat beyond its ends.

    Raises `DataError` without points or for an empty range.
    """
    if not points or not low < high:
        raise DataError(f"aiq needs points and a range of costs, not {points!r}, {low!r}, {high!r}")
    known = hull(points)
    costs = np.linspace(low, high, 2001)
    heights = np.interp(costs, [c for c, _ in known], [q for _, q in known])
    return float(heights.mean())


def _below(a: Point, b: Point, c: Point) -> bool:
    """Whether b lies on or under the line from a to c."""
    return (b[1] - a[1]) * (c[0] - a[0]) <= (c[1] - a[1]) * (b[0] - a[0])


def query_curve(table: OutcomeTable, chances_QW: Floats) -> list[Point]:
    """One try a query, by worth * chance - cost, as the worth of a right answer goes up."""
    rows = np.arange(len(table))
    scores_QW = np.nan_to_num(table.scores_QW, nan=0.0)
    able_QW = table.known_QW
    points: list[Point] = []
    for worth in (0.0, *np.geomspace(1e-6, 1.0, 60)):
        gain_QW = np.where(able_QW, worth * chances_QW - table.costs_QW, -np.inf)
        chosen = gain_QW.argmax(axis=1)
        points.append((float(table.costs_QW[rows, chosen].mean()),
                       float(scores_QW[rows, chosen].mean())))  # fmt: skip
    return points


def single_points(table: OutcomeTable) -> list[Point]:
    """Each worker on all queries that it was asked."""
    return [
        (float(np.nanmean(np.where(known, cost, np.nan))), float(np.nanmean(score)))
        for known, cost, score in zip(
            table.known_QW.T, table.costs_QW.T, table.scores_QW.T, strict=True
        )
    ]
