"""Curves of cost and quality of routers, and their AIQ: what router data sets are compared by.

Routers that weigh cost are swept over how much a dollar and a second matter, which gives each a
curve of (cost, success).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tutelage.orchestration.routing.policy import try_once
from tutelage.orchestration.routing.simulator import (
    Chooser,
    QueryTable,
    RewardTerms,
    WorkflowBatch,
    run_policy,
)

SINGLE = "single workers"
SWEEP = (0.02, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0)
"""Factors on the weights of cost and latency."""

Point = tuple[float, float]
"""(cost, quality)."""


def measured_aiq(
    query_table: QueryTable,
    flows: WorkflowBatch,
    terms: RewardTerms,
    routers: Mapping[str, Callable[[RewardTerms], Chooser]],
) -> dict[str, float]:
    """Return the AIQ of routers by name, and that of all single workers."""

    def point(choose: Chooser) -> Point:
        outcome = run_policy(query_table, flows, terms, choose)
        return float(outcome.cost_B.mean()), float(outcome.success_B.mean())

    own = terms.weights
    weighed = [
        replace(terms, weights=replace(own, beta=own.beta * x, gamma_latency=own.gamma_latency * x))
        for x in SWEEP
    ]
    curves = {SINGLE: [point(lambda _, rows, at, one=one: try_once(one, at))
                       for one in np.eye(len(query_table.columns))]}  # fmt: skip
    curves |= {name: [point(make(under)) for under in weighed] for name, make in routers.items()}
    costs = [cost for cost, _ in curves[SINGLE]]
    low, high = min(costs), max(max(costs), min(costs) * 1.001 + 1e-12)
    return {name: aiq(points, low, high) for name, points in curves.items()}


def pareto_front(points: Sequence[Point]) -> list[int]:
    """Return the places of the points that no other one beats, cheapest first."""
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    front: list[int] = []
    for i in order:
        if not front or points[i][1] > points[front[-1]][1]:
            front.append(i)
    return front


def hull(points: Sequence[Point]) -> list[Point]:
    """Return the upper convex hull up to its best point: what mixing two settings can reach."""
    upper: list[Point] = []
    for cost, quality in (points[i] for i in pareto_front(points)):
        while len(upper) >= 2:
            (x1, y1), (x2, y2) = upper[-2:]
            if (y2 - y1) * (cost - x1) > (quality - y1) * (x2 - x1):
                break
            upper.pop()  # it lies on or under the line between its neighbours
        upper.append((cost, quality))
    return upper


def aiq(points: Sequence[Point], low: float, high: float) -> float:
    """Return the mean height of the hull over costs from `low` to `high`; flat beyond its ends: the
    average improvement in quality of RouterBench (arXiv 2403.12031)."""
    known = hull(points)
    own = np.array([cost for cost, _ in known])
    costs = np.concatenate([[low], own[(own > low) & (own < high)], [high]])
    heights = np.interp(costs, own, [quality for _, quality in known])
    return float(np.trapezoid(heights, costs) / (high - low))
