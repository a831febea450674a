"""Curves of cost against quality: what no other point beats, their hull, and its mean height.

`aiq`, the average improvement in quality of RouterBench (arXiv 2403.12031), is the mean height of
the non-decreasing convex hull of a router's points over the range of costs that single workers
span. `evaluation.py` draws the curves of workflows, `query_level.py` those of single queries.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tutelage.errors import DataError

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
    own = np.array([cost for cost, _ in known])
    costs = np.concatenate([[low], own[(own > low) & (own < high)], [high]])
    heights = np.interp(costs, own, [quality for _, quality in known])
    return float(np.trapezoid(heights, costs) / (high - low))


def _below(a: Point, b: Point, c: Point) -> bool:
    """Whether b lies on or under the line from a to c."""
    return (b[1] - a[1]) * (c[0] - a[0]) <= (c[1] - a[1]) * (b[0] - a[0])


def cost_range(points: Sequence[Point]) -> Point:
    """The least and the greatest cost of these points; never empty."""
    costs = [cost for cost, _ in points]
    return min(costs), max(max(costs), min(costs) * 1.001 + 1e-12)
