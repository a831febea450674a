"""The one table in which every way to choose workers stands beside the trained one.

All run on the same workflows, so differences are paired. Success means right answers, not passed
ones. Routers that weigh cost are swept over how much a dollar and a second matter, which gives
each a curve and its AIQ. `baselines.py` has the rows, `report.py` draws what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from tutelage.orchestration.data.neighbours import hashed
from tutelage.orchestration.data.outcomes import Floats, OutcomeTable
from tutelage.orchestration.evaluation.judged import DEADLINE, workflow_sums
from tutelage.orchestration.routing import baselines
from tutelage.orchestration.routing.environment import Environment
from tutelage.orchestration.routing.metrics import (
    Point,
    aiq,
    pareto_front,
    query_curve,
    single_points,
)
from tutelage.orchestration.routing.outcome import Outcome
from tutelage.orchestration.routing.policy import ModelSelector
from tutelage.orchestration.routing.predictor import NEAREST, OutcomePredictor
from tutelage.orchestration.routing.rollout import Chooser, play
from tutelage.orchestration.routing.situation import Situation, Terms
from tutelage.orchestration.routing.workflows import Board, Ints, Workflows
from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import Difference, paired_bootstrap

POLICY = "PPO"
GREEDY = "greedy utility"
LOOKAHEAD = "one-step lookahead"
SWEEP = (0.02, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0)
"""Factors on the weights of cost and latency that a router is told, for its curve."""

CURVE = 2000
"""Workflows behind each point of a curve; a table's row is of all."""


@dataclass(frozen=True, slots=True)
class Row:
    """One router. Costs in USD, latencies in seconds, means over workflows."""

    name: str
    workflows: int
    """All are judged: outcomes are recorded, so none is lost."""
    late: int
    """Of those, how many their deadline ended; they count as they then stood."""
    success: float
    success_low: float
    success_high: float
    cost: float
    cost_per_success: float
    """Infinite without a success."""
    latency: float
    latency_p95: float
    reward: float
    reward_low: float
    reward_high: float
    tries: float
    stopped: float
    gap_to_oracle: float
    """The oracle's mean reward less this one's."""
    pareto: bool
    """No other router (the oracle left aside) has more success for less cost."""
    aiq: float | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A table, the curves behind its AIQ, and the paired differences of rewards."""

    rows: tuple[Row, ...]
    curves: Mapping[str, list[Point]]
    differences: Mapping[str, Difference]
    """The policy's reward less that of each other row, on the same workflows."""
    rewards: Mapping[str, Floats]
    """The reward of every workflow, by router: what differences over several seeds pool."""
    query_aiq: Mapping[str, float]
    """AIQ of one try a query, without workflows: what router data sets are compared by."""
    query_points: Mapping[str, Point]
    """The most accurate point of each of these curves."""
    queries: int
    """How many these are means over."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, the single rewards left out."""
        return {
            "rows": [{name: getattr(row, name) for name in Row.__slots__} for row in self.rows],
            "differences": {
                name: {k: getattr(d, k) for k in ("mean", "low", "high", "wins", "losses", "ties")}
                for name, d in self.differences.items()
            },
            "curves": {name: [list(p) for p in points] for name, points in self.curves.items()},
            "query_aiq": dict(self.query_aiq),
            "query_points": {name: list(p) for name, p in self.query_points.items()},
            "queries": self.queries,
        }


def evaluate_routers(
    board: Board,
    flows: Workflows,
    terms: Terms,
    train: OutcomeTable,
    seeds: SeedTree,
    models: Mapping[str, ModelSelector],
    *,
    max_steps: int = 50,
) -> Evaluation:
    """Run all baselines and `models` (by name, `POLICY` among them) on the same workflows."""
    choosers: dict[str, Chooser] = {
        "random": baselines.random_choice(seeds.child("random")),
        "cheapest": baselines.cheapest,
        "fastest": baselines.fastest,
        "most accurate": baselines.most_accurate(train),
        "best of the type": baselines.per_type_best(train),
        "kNN": baselines.nearest_best,
        "kNN, escalating": baselines.nearest_cascade,
        "fixed cascade": baselines.cascade(train),
        GREEDY: baselines.node_utility(terms),
        LOOKAHEAD: baselines.greedy(terms),
        **{name: baselines.of_policy(model, terms) for name, model in models.items()},
        "oracle": baselines.oracle(terms),
    }
    outcomes = {
        name: play(board, flows, terms, choose, max_steps) for name, choose in choosers.items()
    }
    few = flows.take(np.arange(min(CURVE, len(flows))))
    curves = _curves(board, few, terms, models, max_steps)
    low, high = _range(curves["single workers"])
    areas = {name: aiq(points, low, high) for name, points in curves.items()}
    names = list(outcomes)
    points = [(float(o.cost_B.mean()), float(o.success_B.mean())) for o in outcomes.values()]
    front = {names[i] for i in pareto_front(points[:-1])}
    best = float(outcomes["oracle"].reward_B.mean())
    rows = tuple(
        _row(name, outcome, best, name in front or name == "oracle", areas.get(name))
        for name, outcome in outcomes.items()
    )
    rewards = {name: outcome.reward_B for name, outcome in outcomes.items()}
    query_aiq, query_points = _query_level(board.table, board.predictor, train)
    return Evaluation(
        rows=rows,
        curves=curves,
        differences=differences(rewards, seeds.child("bootstrap")),
        rewards=rewards,
        query_aiq=query_aiq,
        query_points=query_points,
        queries=len(board.table),
    )


def differences(rewards: Mapping[str, Floats], seeds: SeedTree) -> dict[str, Difference]:
    """The policy's reward less each other router's, with paired bootstrap intervals."""
    mine = [float(r) for r in rewards[POLICY]]
    return {
        name: paired_bootstrap([float(r) for r in theirs], mine, seeds.child(name).numpy(), 2000)
        for name, theirs in rewards.items()
        if name != POLICY
    }


def _row(name: str, outcome: Outcome, oracle: float, pareto: bool, area: float | None) -> Row:
    told = workflow_sums(outcome.reward_B, outcome.success_B, outcome.late_B)
    wins = int(outcome.success_B.sum())
    low, high = told.interval or (0.0, 1.0)
    cost = float(outcome.cost_B.mean())
    reward = float(outcome.reward_B.mean())
    reward_low, reward_high = told.reward_interval or (reward, reward)
    return Row(
        name=name,
        workflows=told.judged,
        late=told.failed.get(DEADLINE, 0),
        success=told.success or 0.0,
        success_low=low,
        success_high=high,
        cost=cost,
        cost_per_success=float(outcome.cost_B.sum()) / wins if wins else float("inf"),
        latency=float(outcome.latency_B.mean()),
        latency_p95=float(np.quantile(outcome.latency_B, 0.95)),
        reward=reward,
        reward_low=reward_low,
        reward_high=reward_high,
        tries=float(outcome.steps_B.mean()),
        stopped=float(outcome.stopped_B.mean()),
        gap_to_oracle=oracle - reward,
        pareto=pareto,
        aiq=area,
    )


def _curves(
    board: Board,
    flows: Workflows,
    terms: Terms,
    models: Mapping[str, ModelSelector],
    max_steps: int,
) -> dict[str, list[Point]]:
    """(cost, success) of what can be swept, and of every worker alone."""

    def swept(make: Callable[[Terms], Chooser]) -> list[Point]:
        points: list[Point] = []
        for factor in SWEEP:
            weights = replace(
                terms.weights,
                beta=terms.weights.beta * factor,
                gamma_latency=terms.weights.gamma_latency * factor,
            )
            chooser = make(replace(terms, weights=weights))
            outcome = play(board, flows, terms, chooser, max_steps)
            points.append((float(outcome.cost_B.mean()), float(outcome.success_B.mean())))
        return points

    def alone(worker: int) -> Chooser:
        def choose(environment: Environment, rows: Ints, at: Situation) -> Ints:
            scores = np.zeros_like(at.chance_DW)
            scores[:, worker] = 1.0
            return baselines.ranked(scores, at, escalate=False)

        return choose

    singles: list[Point] = []
    for worker in range(board.workers):
        outcome = play(board, flows, terms, alone(worker), max_steps)
        singles.append((float(outcome.cost_B.mean()), float(outcome.success_B.mean())))
    curves = {
        "single workers": singles,
        GREEDY: swept(baselines.node_utility),
        LOOKAHEAD: swept(baselines.greedy),
    }
    for name, model in models.items():
        curves[name] = swept(partial(baselines.of_policy, model))
    return curves


def _range(points: Sequence[Point]) -> Point:
    costs = [cost for cost, _ in points]
    return min(costs), max(max(costs), min(costs) * 1.001 + 1e-12)


def _query_level(
    table: OutcomeTable, predictor: OutcomePredictor, train: OutcomeTable
) -> tuple[dict[str, float], dict[str, Point]]:
    """AIQ and most accurate point of routing single queries, one try each.

    `kNN-40` is the plain one, exp(10 * cosine) as weights; `calibrated kNN` is this package's.
    """
    near, cosines = predictor.index.nearest([hashed(t) for t in table.instructions], NEAREST)
    weights = np.exp(10.0 * cosines)
    weights /= weights.sum(axis=1, keepdims=True)
    known = np.nan_to_num(train.scores_QW, nan=0.0)
    columns = [train.names.index(name) for name in table.names]
    support = predictor.support(table.instructions, table.types)
    ours = [[w.name for w in predictor.workers].index(name) for name in table.names]
    chances = {
        "training means": np.broadcast_to(known.mean(axis=0)[columns], table.scores_QW.shape),
        "kNN-40": np.einsum("qk,qkw->qw", weights, known[near][:, :, columns]),
        "calibrated kNN": predictor.chances(support)[:, ours],
        "oracle": np.nan_to_num(table.scores_QW, nan=0.0),
    }
    singles = single_points(table)
    low, high = _range(singles)
    curves = {name: query_curve(table, p) for name, p in chances.items()}
    areas = {name: aiq(points, low, high) for name, points in curves.items()}
    areas["single workers"] = aiq(singles, low, high)
    tops = {name: max(points, key=lambda p: (p[1], -p[0])) for name, points in curves.items()}
    tops["single workers"] = max(singles, key=lambda p: (p[1], -p[0]))
    return areas, tops
