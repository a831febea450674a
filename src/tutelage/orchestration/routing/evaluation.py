"""The one table in which every way to choose workers is compared with the trained one.

All run on the same workflows, so differences are paired. Success means right answers, not passed
ones. Routers that weigh cost are swept over how much a dollar and a second matter, which gives each
a curve of (cost, quality). `aiq`, the average improvement in quality of RouterBench (arXiv
2403.12031), is the mean height of its non-decreasing convex hull over the range of costs that
single workers span. `choosers.py` has the routers, `report.py` draws what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from tutelage.errors import DataError
from tutelage.orchestration.data.neighbours import hashed
from tutelage.orchestration.data.outcomes import Floats, OutcomeTable
from tutelage.orchestration.evaluation.judged import DEADLINE
from tutelage.orchestration.routing.choosers import (
    GREEDY,
    LOOKAHEAD,
    Chooser,
    baselines,
    greedy,
    node_utility,
    oracle,
    policy_chooser,
    run_chooser,
    single_worker,
)
from tutelage.orchestration.routing.decisions import RewardTerms
from tutelage.orchestration.routing.policy import ModelSelector
from tutelage.orchestration.routing.predictor import NEAREST
from tutelage.orchestration.routing.simulator import SimulationResult
from tutelage.orchestration.routing.workflows import QueryTable, WorkflowBatch
from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import Difference, paired_bootstrap
from tutelage.statistics.outcome import RewardKind, RolloutOutcome, add_up

POLICY = "PPO"
Row = dict[str, Any]
Point = tuple[float, float]
"""(cost, quality)."""
SWEEP = (0.02, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0)
"""Factors on the weights of cost and latency that a router is told, for its curve."""

CURVE = 2000
"""Workflows behind each point of a curve; a table's row is of all."""


@dataclass(frozen=True, slots=True)
class RouterEvaluation:
    """A table, the curves behind its AIQ, and the paired differences of rewards."""

    rows: list[Row]
    """A router each, in the order of the table, as `_row` makes them."""
    differences: Mapping[str, Difference]
    """The policy's reward less that of each other row, on the same workflows."""
    curves: Mapping[str, list[Point]]
    query_aiq: Mapping[str, float]
    """AIQ of one try a query, without workflows: what router data sets are compared by."""
    query_points: Mapping[str, Point]
    """The most accurate point of each of these curves."""
    queries: int
    """How many these are means over."""
    rewards: Mapping[str, Floats]
    """The reward of every workflow, by router: what differences over several seeds pool."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, the single rewards left out."""
        fields = asdict(self)
        del fields["rewards"]
        return fields


def evaluate_routers(
    query_table: QueryTable,
    flows: WorkflowBatch,
    terms: RewardTerms,
    train: OutcomeTable,
    seeds: SeedTree,
    models: Mapping[str, ModelSelector],
) -> RouterEvaluation:
    """Run all baselines and `models` (by name, `POLICY` among them) on the same workflows."""
    choosers = {
        **baselines(train, terms, seeds.child("random")),
        **{name: policy_chooser(model, terms) for name, model in models.items()},
        "oracle": oracle(terms),
    }
    outcomes = {
        name: run_chooser(query_table, flows, terms, choose) for name, choose in choosers.items()
    }
    few = flows.take(np.arange(min(CURVE, len(flows))))
    curves = _curves(query_table, few, terms, models)
    low, high = _range(curves["single workers"])
    areas = {name: aiq(points, low, high) for name, points in curves.items()}
    names = list(outcomes)
    points = [(float(o.cost_B.mean()), float(o.success_B.mean())) for o in outcomes.values()]
    front = {names[i] for i in pareto_front(points[:-1])}
    best = float(outcomes["oracle"].reward_B.mean())
    rows = [
        _row(name, outcome, best, name in front or name == "oracle", areas.get(name))
        for name, outcome in outcomes.items()
    ]
    rewards = {name: outcome.reward_B for name, outcome in outcomes.items()}
    differences = _differences(rewards, seeds.child("bootstrap"))
    query_level = _query_level(query_table, train)
    return RouterEvaluation(
        rows, differences, curves, *query_level, len(query_table.table), rewards
    )


def _differences(rewards: Mapping[str, Floats], seeds: SeedTree) -> dict[str, Difference]:
    """The policy's reward less each other router's, with paired bootstrap intervals."""
    mine = [float(r) for r in rewards[POLICY]]
    return {
        name: paired_bootstrap([float(r) for r in theirs], mine, seeds.child(name).numpy(), 2000)
        for name, theirs in rewards.items()
        if name != POLICY
    }


def _row(
    name: str, outcome: SimulationResult, oracle: float, pareto: bool, area: float | None
) -> Row:
    """One router. Costs in USD, latencies in seconds, means over workflows.

    All of `workflows` are judged, as outcomes are recorded; `late` is how many of them their
    deadline ended. `cost_per_success` is infinite without one, `gap_to_oracle` the oracle's mean
    reward less this one's; on the Pareto front no other router (except the oracle) has more
    success for less cost.
    """
    sides = zip(outcome.reward_B, outcome.success_B, outcome.late_B, strict=True)
    # Each is a task of its own: none is lost.
    judged = [
        RolloutOutcome(str(place), float(reward), bool(success), DEADLINE if late else None)
        for place, (reward, success, late) in enumerate(sides)
    ]
    outcome_sums = add_up(judged, RewardKind(graded=True))
    wins = int(outcome.success_B.sum())
    low, high = outcome_sums.interval or (0.0, 1.0)
    reward = float(outcome.reward_B.mean())
    reward_low, reward_high = outcome_sums.reward_interval or (reward, reward)
    return {
        "name": name,
        "workflows": outcome_sums.judged,
        "late": outcome_sums.failed.get(DEADLINE, 0),
        "success": outcome_sums.success or 0.0,
        "success_low": low,
        "success_high": high,
        "cost": float(outcome.cost_B.mean()),
        "cost_per_success": float(outcome.cost_B.sum()) / wins if wins else float("inf"),
        "latency": float(outcome.latency_B.mean()),
        "latency_p95": float(np.quantile(outcome.latency_B, 0.95)),
        "reward": reward,
        "reward_low": reward_low,
        "reward_high": reward_high,
        "tries": float(outcome.steps_B.mean()),
        "stopped": float(outcome.stopped_B.mean()),
        "gap_to_oracle": oracle - reward,
        "pareto": pareto,
        "aiq": area,
    }


def _curves(
    query_table: QueryTable,
    flows: WorkflowBatch,
    terms: RewardTerms,
    models: Mapping[str, ModelSelector],
) -> dict[str, list[Point]]:
    """(cost, success) of what can be swept, and of every worker alone."""

    def point(choose: Chooser, told: RewardTerms = terms) -> Point:
        outcome = run_chooser(query_table, flows, told, choose)
        return float(outcome.cost_B.mean()), float(outcome.success_B.mean())

    own = terms.weights
    weighed = [replace(own, beta=own.beta * x, gamma_latency=own.gamma_latency * x) for x in SWEEP]

    def swept(make: Callable[[RewardTerms], Chooser]) -> list[Point]:
        return [point(make(replace(terms, weights=weights))) for weights in weighed]

    return {
        "single workers": [
            point(single_worker(j, query_table.workers)) for j in range(query_table.workers)
        ],
        GREEDY: swept(node_utility),
        LOOKAHEAD: swept(greedy),
        **{name: swept(partial(policy_chooser, model)) for name, model in models.items()},
    }


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


def _query_curve(table: OutcomeTable, chances_QW: Floats) -> list[Point]:
    """One try a query, by worth * chance - cost, as the worth of a right answer goes up."""
    rows = np.arange(len(table))
    scores_QW = np.nan_to_num(table.scores_QW, nan=0.0)
    able_QW = table.known_QW
    points: list[Point] = []
    for worth in (0.0, *np.geomspace(1e-6, 1.0, 60)):
        gain_QW = np.where(able_QW, worth * chances_QW - table.costs_QW, -np.inf)
        chosen = rows, gain_QW.argmax(axis=1)
        points.append((float(table.costs_QW[chosen].mean()), float(scores_QW[chosen].mean())))
    return points


def _single_points(table: OutcomeTable) -> list[Point]:
    """Each worker on all queries that it was asked."""
    costs_QW = np.where(table.known_QW, table.costs_QW, np.nan)
    sides = zip(costs_QW.T, table.scores_QW.T, strict=True)
    return [(float(np.nanmean(cost)), float(np.nanmean(score))) for cost, score in sides]


def _range(points: Sequence[Point]) -> Point:
    costs = [cost for cost, _ in points]
    return min(costs), max(max(costs), min(costs) * 1.001 + 1e-12)


def _query_level(
    query_table: QueryTable, train: OutcomeTable
) -> tuple[dict[str, float], dict[str, Point]]:
    """AIQ and most accurate point of routing single queries, one try each.

    `kNN-40` is the plain one, exp(10 * cosine) as weights; `calibrated kNN` is this package's.
    """
    table, index = query_table.table, query_table.predictor.index
    near, cosines = index.nearest([hashed(t) for t in table.instructions], NEAREST)
    weights = np.exp(10.0 * cosines)
    weights /= weights.sum(axis=1, keepdims=True)
    known = np.nan_to_num(train.scores_QW, nan=0.0)
    columns = [train.names.index(name) for name in table.names]
    chances = {
        "training means": np.broadcast_to(known.mean(axis=0)[columns], table.scores_QW.shape),
        "kNN-40": np.einsum("qk,qkw->qw", weights, known[near][:, :, columns]),
        "calibrated kNN": query_table.chance_QW,
        "oracle": np.nan_to_num(table.scores_QW, nan=0.0),
    }
    singles = _single_points(table)
    low, high = _range(singles)
    curves = {name: _query_curve(table, p) for name, p in chances.items()}
    curves["single workers"] = singles
    areas = {name: aiq(points, low, high) for name, points in curves.items()}
    tops = {name: max(points, key=lambda p: (p[1], -p[0])) for name, points in curves.items()}
    return areas, tops
