"""The one table in which every way to choose workers is compared with the trained one.

All run on the same workflows, so differences are paired. Success means right answers, not passed
ones. The queries of a test stand in groups and no workflow takes queries of two: workflows of one
group share queries and are no independent evidence, so intervals are those of the groups. Routers
that weigh cost are swept over how much a dollar and a second matter, which gives each a curve of
(cost, quality) and its AIQ (`curves.py`). Under each reward preset, routers that weigh cost get
it; a table of its own has their mean rewards. `choosers.py` has the routers, `query_level.py`
routes single queries, `report.py` draws the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, get_args

import numpy as np

from tutelage.orchestration.data.outcomes import Floats, OutcomeTable
from tutelage.orchestration.evaluation.judged import DEADLINE
from tutelage.orchestration.evaluation.rewards import Preset
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
from tutelage.orchestration.routing.curves import Point, aiq, cost_range, pareto_front
from tutelage.orchestration.routing.decisions import RewardTerms
from tutelage.orchestration.routing.policy import ModelSelector
from tutelage.orchestration.routing.predictor import OutcomePredictor
from tutelage.orchestration.routing.query_level import QueryEvaluation, evaluate_queries
from tutelage.orchestration.routing.settings import weights_of
from tutelage.orchestration.routing.simulator import SimulationResult
from tutelage.orchestration.routing.workflows import Ints, QueryTable, WorkflowBatch
from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import Difference, mean_interval, shown_interval
from tutelage.statistics.outcome import RewardKind, RolloutOutcome, add_up

POLICY = "PPO"
Row = dict[str, Any]
SWEEP = (0.02, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0)
"""Factors on the weights of cost and latency that a router is told, for its curve."""

CURVE = 2000
"""Workflows behind each point of a curve; a table's row is of all."""


@dataclass(frozen=True, slots=True)
class RouterEvaluation:
    """A table, the curves behind its AIQ, and the paired differences of rewards."""

    router: str
    """The row of the router that is shipped."""
    rows: list[Row]
    """A router each, in the order of the table, as `_row` makes them."""
    differences: Mapping[str, Difference]
    """The shipped router's reward less that of each other row, on the same workflows."""
    curves: Mapping[str, list[Point]]
    presets: Mapping[str, list[Row]]
    """By reward preset: `name`, `reward`, `low`, `high` and `success` of the routers told it. Ends
    of intervals are NaN here and in `rows` if there is none, see `shown_interval`."""
    by_query: QueryEvaluation
    """One try a query, without workflows: what router data sets are compared by."""
    rewards: Mapping[str, Floats]
    """The reward of every workflow, by router: what differences over several seeds pool."""
    group_B: Ints
    """The group of queries that each of these workflows is made of."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, the single rewards left out."""
        fields = asdict(self)
        del fields["rewards"], fields["group_B"]
        return fields


def evaluate_routers(
    query_table: QueryTable,
    flows: WorkflowBatch,
    terms: RewardTerms,
    train: OutcomeTable,
    seeds: SeedTree,
    models: Mapping[str, ModelSelector],
    before: OutcomePredictor | None = None,
) -> RouterEvaluation:
    """Run all baselines and `models` by name on the same workflows.

    `POLICY` is the shipped router where it is among the models, else `LOOKAHEAD`. `train` are the
    outcomes that the predictor was fitted on; `before` is the predictor before it knew all of them.
    """
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
    low, high = cost_range(curves["single workers"])
    areas = {name: aiq(points, low, high) for name, points in curves.items()}
    names = list(outcomes)
    points = [(float(o.cost_B.mean()), float(o.success_B.mean())) for o in outcomes.values()]
    front = {names[i] for i in pareto_front(points[:-1])}
    best = float(outcomes["oracle"].reward_B.mean())
    rows = [
        _row(name, outcome, flows.group_B, best, name in front or name == "oracle", areas.get(name))
        for name, outcome in outcomes.items()
    ]
    rewards = {name: outcome.reward_B for name, outcome in outcomes.items()}
    router = POLICY if POLICY in models else LOOKAHEAD
    return RouterEvaluation(
        router=router,
        rows=rows,
        differences={
            name: paired_difference(theirs, rewards[router], flows.group_B)
            for name, theirs in rewards.items()
            if name != router
        },
        curves=curves,
        presets=_by_preset(query_table, few, terms, train, models),
        by_query=evaluate_queries(query_table, train, seeds.child("bootstrap"), before),
        rewards=rewards,
        group_B=flows.group_B,
    )


def paired_difference(theirs_B: Floats, mine_B: Floats, group_B: Ints) -> Difference:
    """Mean of mine less theirs over workflows, with the interval of their groups of queries."""
    gap_B = mine_B - theirs_B
    mean = float(gap_B.mean())
    low, high = _interval(gap_B, group_B)
    signs = (int((gap_B > 0).sum()), int((gap_B < 0).sum()), int((gap_B == 0).sum()))
    return Difference(mean, low, high, *signs)


def _interval(value_B: Floats, group_B: Ints) -> tuple[float, float]:
    """95 % interval of a mean over workflows, clustered by group; two NaN if there is none."""
    tasks = _tasks(group_B)
    return shown_interval(mean_interval([float(v) for v in value_B], tasks), len({*tasks}))


def _tasks(group_B: Ints) -> list[str]:
    return [str(group) for group in group_B]


def _by_preset(
    query_table: QueryTable,
    flows: WorkflowBatch,
    terms: RewardTerms,
    train: OutcomeTable,
    models: Mapping[str, ModelSelector],
) -> dict[str, list[Row]]:
    """Mean rewards under each preset, with its own weights but for the one that is trained for."""
    found: dict[str, list[Row]] = {}
    for preset in get_args(Preset):
        own = terms.weights if preset == terms.preset else weights_of(preset)
        told = replace(terms, preset=preset, weights=own)
        rules = baselines(train, told, SeedTree(0))
        asked = ("cheapest", "most accurate", "best of the type", GREEDY, LOOKAHEAD)
        choosers = {
            **{name: rules[name] for name in asked},
            **{name: policy_chooser(model, told) for name, model in models.items()},
            "oracle": oracle(told),
        }  # fmt: skip
        found[preset] = []
        for name, choose in choosers.items():
            outcome = run_chooser(query_table, flows, told, choose)
            low, high = _interval(outcome.reward_B, flows.group_B)
            found[preset].append(
                {"name": name, "reward": float(outcome.reward_B.mean()), "low": low, "high": high,
                 "success": float(outcome.success_B.mean())}
            )  # fmt: skip
    return found


def _row(
    name: str,
    outcome: SimulationResult,
    group_B: Ints,
    oracle: float,
    pareto: bool,
    area: float | None,
) -> Row:
    """One router. Costs in USD, latencies in seconds, means over workflows.

    All of `workflows` are judged, as outcomes are recorded; `late` is how many of them their
    deadline ended. `cost_per_success` is infinite without one, `gap_to_oracle` the oracle's mean
    reward less this one's; on the Pareto front no other router (except the oracle) has more
    success for less cost.
    """
    sides = zip(outcome.reward_B, outcome.success_B, outcome.late_B, strict=True)
    judged = [
        RolloutOutcome(task, float(reward), bool(success), DEADLINE if late else None)
        for task, (reward, success, late) in zip(_tasks(group_B), sides, strict=True)
    ]
    outcome_sums = add_up(judged, RewardKind(graded=True))
    wins = int(outcome.success_B.sum())
    low, high = outcome_sums.interval or (0.0, 1.0)
    reward = float(outcome.reward_B.mean())
    reward_low, reward_high = shown_interval(outcome_sums.reward_interval, outcome_sums.tasks)
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
