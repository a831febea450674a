"""Who does the next try at a node: the contract of routers, simple rules, and their comparison.

A router is asked once before every try, in the order in which the executor dispatches, and what it
chooses is what runs: the mask that it is given already leaves out workers that lack the capability,
were tried, or cost more than the budget has left. Actions are numbers: a worker's place in the
pool, then `accept` (keep the last answer although its verifier did not pass it), then `stop` (give
the node up). The trained router is in `router.py`.

`baselines` are the same rules for the simulator, and `evaluate_routers` compares them with the
trained policy on the same workflows, so differences are paired. Success means right answers, not
passed ones. The queries of a test stand in groups and no workflow takes queries of two: workflows
of one group share queries and are no independent evidence, so intervals are those of the groups.
Routers that weigh cost are swept over how much a dollar and a second matter, which gives each a
curve of (cost, success) and its AIQ. Legend: B workflows, D decisions, W workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, get_args

import numpy as np

from tutelage.errors import ConfigError, DataError
from tutelage.orchestration.data.outcomes import Floats, OutcomeTable
from tutelage.orchestration.evaluation.judged import DEADLINE
from tutelage.orchestration.evaluation.rewards import Preset, References, RewardWeights
from tutelage.orchestration.execution.workers import Subtask, Worker, WorkerAnswer, WorkerEstimate
from tutelage.orchestration.plan.dag import Plan
from tutelage.orchestration.routing.settings import weights_of
from tutelage.orchestration.routing.simulator import (
    Chooser,
    DecisionBatch,
    RewardTerms,
    SimulationResult,
    WorkflowSimulator,
    look_ahead,
    plain_utility,
    run_chooser,
)
from tutelage.orchestration.routing.workflows import Bools, Ints, QueryTable, WorkflowBatch
from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import Difference, mean_interval, shown_interval
from tutelage.statistics.outcome import RewardKind, RolloutOutcome, add_up

GREEDY, LOOKAHEAD, POLICY, ORACLE = "greedy utility", "one-step lookahead", "PPO", "oracle"
SINGLE = "single workers"
SWEEP = (0.02, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0)
"""Factors on the weights of cost and latency, for the curve of a router that weighs them."""
CURVE = 2000
"""Workflows behind each point of a curve and each reward of a preset; a table's row is of all."""

Point = tuple[float, float]
"""(cost, quality)."""
Row = dict[str, Any]
Score = Callable[[Any, Any, Any], Any]
"""What a rule ranks workers by, of cost, seconds and chance or skill: numbers or arrays."""
RULES: Mapping[str, Score] = {
    "cheapest": lambda cost, seconds, chance: -cost,
    "fastest": lambda cost, seconds, chance: -seconds,
    "accurate": lambda cost, seconds, chance: chance,
}


# ------------------------------------------------------------------ routers of the executor


@dataclass(frozen=True, slots=True)
class PreviousTry:
    """One try that has ended at the node that is being routed."""

    worker: int
    answer: WorkerAnswer
    passed: bool
    """What the verifier said; False when there was no usable answer."""


@dataclass(frozen=True, slots=True)
class RouteState:
    """What a router sees before one try. Money in USD, times in seconds."""

    plan: Plan
    work: Subtask
    workers: tuple[Worker, ...]
    mask: tuple[bool, ...]
    """Legal actions: workers, then accept, then stop."""
    estimates: tuple[WorkerEstimate, ...]
    """What each worker may come to for this work."""
    tries: tuple[PreviousTry, ...] = ()
    """At this node, the earliest first."""
    load: tuple[int, ...] = ()
    """How many works each worker has, running or waiting."""
    done: Mapping[int, bool] = field(default_factory=dict[int, bool])
    """The nodes that ended, and whether each succeeded."""
    ends: Mapping[int, float] = field(default_factory=dict[int, float])
    """For each node that ended, its end along the critical path, from the workflow's start."""
    spent: float = 0.0
    budget_left: float | None = None
    """None: no budget."""
    elapsed: float = 0.0
    deadline_left: float | None = None
    max_tries: int = 3
    seeds: SeedTree = field(default_factory=lambda: SeedTree(0))
    """For the router's own draws at this try."""
    references: References | None = None
    """What cost and latency are measured against; None where nothing costs or takes anything."""

    @property
    def accept(self) -> int:
        """The action that keeps the last answer."""
        return len(self.workers)

    @property
    def stop(self) -> int:
        """The action that gives the node up."""
        return len(self.workers) + 1

    @property
    def candidates(self) -> tuple[int, ...]:
        """The workers that may be chosen."""
        return tuple(i for i, may in enumerate(self.mask[:-2]) if may)

    def checked(self, choice: Choice) -> Choice:
        """The choice with its mask filled in. Raises `ConfigError` for a forbidden action."""
        mask, legal = choice.mask or self.mask, [i for i, may in enumerate(self.mask) if may]
        narrowed = [i for i, may in enumerate(mask) if may]
        widened = len(mask) != len(self.mask) or not set(narrowed) <= set(legal)
        if widened or choice.action not in narrowed:
            raise ConfigError(
                f"the router chose action {choice.action!r} at node {self.work.node}, and legal "
                f"are {legal!r} of {len(self.mask)}; a router keeps to the mask"
            )
        return choice if mask is choice.mask else replace(choice, mask=mask)


@dataclass(frozen=True, slots=True)
class Choice:
    """An action, and what training needs to credit it.

    `mask` is the one under which `log_prob` was computed: the state's, or a narrower one. A router
    that does not draw leaves both as they are.
    """

    action: int
    log_prob: float = 0.0
    mask: tuple[bool, ...] = ()
    features: Any = field(default=None, compare=False, repr=False)
    """The `DecisionFeatures` that a policy saw, a state of `ModelSelector.compute_loss`; None for
    routers without one, and for steps that were read back from disk."""


class Router(Protocol):
    """Chooses the next action; see `RouteState`. Called in the event loop, so it must not wait."""

    def choose(self, state: RouteState) -> Choice:
        """An action that `state.mask` allows; another one is refused with `ConfigError`."""
        ...


class RankedRouter:
    """Takes the worker with the least finite key; gives up when none is left.

    `escalate` False tries one worker a node.
    """

    def __init__(
        self, key: Callable[[RouteState, int], float], *, escalate: bool = True, name: str = ""
    ) -> None:
        self.name = name
        self._key, self._escalate = key, escalate

    def choose(self, state: RouteState) -> Choice:
        """See `Router`."""
        keys = [(self._key(state, i), i) for i in state.candidates]
        known = [pair for pair in keys if pair[0] < math.inf]
        give_up = not known or (state.tries and not self._escalate)
        return Choice(state.stop if give_up else min(known)[1])


def _by_rule(name: str, *, escalate: bool = True) -> RankedRouter:
    def key(state: RouteState, i: int) -> float:
        estimate, skill = state.estimates[i], state.workers[i].skill(*state.work.labels)
        return -RULES[name](estimate.cost, estimate.seconds, skill)

    return RankedRouter(key, escalate=escalate, name=name)


def cheapest(*, escalate: bool = True) -> RankedRouter:
    """The worker whose expected cost for this work is least."""
    return _by_rule("cheapest", escalate=escalate)


def fastest() -> RankedRouter:
    """The worker that is expected to answer soonest."""
    return _by_rule("fastest")


def most_accurate(*, escalate: bool = True) -> RankedRouter:
    """The worker whose own share of right answers for this type is highest."""
    return _by_rule("accurate", escalate=escalate)


def greedy(weights: RewardWeights | None = None) -> RankedRouter:
    """The worker of the highest expected utility; after the first try, none when all are below 0.

    Utility = alpha * skill - beta * cost / references.cost - gamma * seconds / references.latency,
    with the weights of the reward: alpha is what a verified node is worth.
    """
    reward_weights = weights or RewardWeights()

    def key(state: RouteState, worker: int) -> float:
        estimate, against = state.estimates[worker], state.references or References(1.0, 1.0)
        utility = (
            reward_weights.alpha * state.workers[worker].skill(*state.work.labels)
            - reward_weights.beta * estimate.cost / against.cost
            - reward_weights.gamma_latency * estimate.seconds / against.latency
        )
        return math.inf if state.tries and utility <= 0 else -utility

    return RankedRouter(key, name="greedy")


def cascade(names: Sequence[str]) -> RankedRouter:
    """A fixed order of workers by name; those that it does not name are never asked.

    Raises `ConfigError` when it is empty.
    """
    if not names:
        raise ConfigError("a cascade names no workers; give them in the order of asking")
    order = {name: float(place) for place, name in enumerate(names)}
    return RankedRouter(lambda s, i: order.get(s.workers[i].name, math.inf), name="cascade")


class RandomRouter:
    """A worker drawn evenly among the legal ones, by the seed of the try."""

    name = "random"

    def __init__(self, *, escalate: bool = True) -> None:
        self._escalate = escalate

    def choose(self, state: RouteState) -> Choice:
        """See `Router`. The log-probability is that of the even draw."""
        numbers = state.candidates
        if not numbers or (state.tries and not self._escalate):
            return Choice(state.stop)
        mask = (*state.mask[:-2], False, False)
        return Choice(state.seeds.python().choice(numbers), -math.log(len(numbers)), mask)


# ------------------------------------------------------------------ rules of the simulator


def baselines(train: OutcomeTable, terms: RewardTerms, seeds: SeedTree) -> dict[str, Chooser]:
    """Return what the trained policy is compared with, by name; the oracle stands apart.

    Rules that try once accept whatever the verifier says. Most accurate and best of the type are
    those of the training table; a worker that was never tried on a type has its mean there.
    """
    rng, overall_W = seeds.numpy(), _means(train)
    kinds = np.array(train.types)
    by_type = {kind: _means(train.take(np.flatnonzero(kinds == kind)), overall_W)
               for kind in dict.fromkeys(train.types)}  # fmt: skip

    def random(simulator: WorkflowSimulator, rows: Ints, at: DecisionBatch) -> Ints:
        keys_DA = np.where(at.mask_DA, rng.random(at.mask_DA.shape), -1.0)
        keys_DA[:, -1] -= 1.0  # stops when nothing else is left
        return keys_DA.argmax(axis=1)

    def best_of_the_type(simulator: WorkflowSimulator, rows: Ints, at: DecisionBatch) -> Ints:
        types = simulator.query_table.table.types
        scores = [by_type.get(types[q], overall_W) for q in simulator.queries(rows)]
        return _ranked(np.array(scores), at)

    def by_rule(score: Score) -> Chooser:
        return lambda _, rows, at: _ranked(score(at.cost_DW, at.seconds_DW, at.chance_DW), at)

    return {
        "random": random,
        "cheapest": by_rule(RULES["cheapest"]),
        "fastest": by_rule(RULES["fastest"]),
        "most accurate": _favouring(overall_W),
        "best of the type": best_of_the_type,
        "kNN": by_rule(RULES["accurate"]),
        GREEDY: node_utility(terms),
        LOOKAHEAD: lookahead(terms),
    }


def _means(table: OutcomeTable, unknown_W: Floats | float = 0.0) -> Floats:
    """How often each worker was right, `unknown_W` where it was never asked."""
    known_W = table.known_QW.sum(axis=0)
    right_W = (table.right_QW & table.known_QW).sum(axis=0)
    return np.where(known_W > 0, right_W / np.maximum(known_W, 1), unknown_W)


def _ranked(scores_DW: Floats, at: DecisionBatch, *, escalate: bool = False) -> Ints:
    """The legal worker of the highest score; accept or stop when there is none to ask."""
    workers = scores_DW.shape[1]
    able_DW = at.mask_DA[:, :workers]
    best_D = np.where(able_DW, scores_DW, -np.inf).argmax(axis=1)
    ask_D = able_DW.any(axis=1) & (escalate | (at.tries_D == 0))
    settle_D = np.where(at.mask_DA[:, workers], workers, workers + 1)
    return np.where(ask_D, best_D, settle_D)


def _favouring(scores_W: Floats) -> Chooser:
    return lambda _, rows, at: _ranked(np.broadcast_to(scores_W, at.chance_DW.shape), at)


def lookahead(terms: RewardTerms) -> Chooser:
    """The action of the highest expected utility one step ahead (`simulator.look_ahead`)."""
    return lambda _, rows, at: look_ahead(at, terms).argmax(axis=1)


def node_utility(terms: RewardTerms) -> Chooser:
    """Greedy as it is usual: the action of the highest utility at this node, alone
    (`simulator.plain_utility`)."""
    return lambda _, rows, at: plain_utility(at, terms).argmax(axis=1)


def oracle(terms: RewardTerms) -> Chooser:
    """Knows every outcome: at each node the cheapest right worker, and no start where one lacks.

    A bound that nobody can reach without looking, and nearly the highest: it weighs cost and
    seconds node by node and does not search over plans.
    """

    def choose(simulator: WorkflowSimulator, rows: Ints, at: DecisionBatch) -> Ints:
        query_table = simulator.query_table
        query = simulator.queries(rows)
        right_DW = query_table.table.right_QW[query]
        passes_DW = query_table.passes_QW[query]
        per_usd_D, per_second_D = terms.prices(at.cost_ref_D, at.latency_ref_D)
        price_DW = (
            per_usd_D[:, None] * query_table.table.costs_QW[query]
            + per_second_D[:, None] * query_table.table.seconds_QW[query]
            # A right answer that is rejected costs a decision more, and is accepted then.
            + 1e-6 * ~passes_DW
        )
        workers = right_DW.shape[1]
        chosen = _ranked(np.where(right_DW, -price_DW, -np.inf), at, escalate=True)
        possible_D = (right_DW & at.mask_DA[:, :workers]).any(axis=1)
        last_D = simulator.last(rows)
        held_D = (last_D >= 0) & right_DW[np.arange(len(rows)), np.maximum(last_D, 0)]
        good_Q: Bools = np.any(query_table.table.right_QW & query_table.legal_QW, axis=1)
        solvable_DN = good_Q[simulator.query_BN[rows]] | ~simulator.exists_BN[rows]
        hopeless_D = ~solvable_DN.all(axis=1) | (~possible_D & ~held_D)
        chosen = np.where(held_D, workers, chosen)
        return np.where(hopeless_D, workers + 1, chosen)

    return choose


# ------------------------------------------------------------------ the comparison


@dataclass(frozen=True, slots=True)
class RouterEvaluation:
    """A table, the curves behind its AIQ, and the paired differences of rewards."""

    router: str
    """The row of the router that is shipped."""
    rows: list[Row]
    """A router each. Costs in USD, latencies in seconds, means over workflows: all of `workflows`
    are judged, `late` is how many of them their deadline ended. `cost_per_success` is infinite
    without one, `gap_to_oracle` the oracle's mean reward less this one's; on the Pareto front no
    other router (except the oracle) has more success for less cost. Ends of intervals are NaN if
    there is none, see `shown_interval`."""
    differences: Mapping[str, Difference]
    """The shipped router's reward less that of each other row, on the same workflows."""
    curves: Mapping[str, list[Point]]
    presets: Mapping[str, list[Row]]
    """By reward preset: `name`, `reward`, `low`, `high` and `success` of routers that weigh it."""
    rewards: Mapping[str, Floats]
    """The reward of every workflow, by router: what differences over several seeds pool."""
    group_B: Ints
    """The group of queries that each of these workflows is made of."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, the single rewards left out; null for what is not finite."""

        def finite(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: finite(inner) for key, inner in value.items()}  # pyright: ignore
            if isinstance(value, list):
                return [finite(inner) for inner in value]  # pyright: ignore
            return None if isinstance(value, float) and not math.isfinite(value) else value

        names = ("router", "rows", "curves", "presets")
        differences = {name: asdict(gap) for name, gap in self.differences.items()}
        return finite({**{n: getattr(self, n) for n in names}, "differences": differences})


def evaluate_routers(
    query_table: QueryTable,
    flows: WorkflowBatch,
    terms: RewardTerms,
    train: OutcomeTable,
    seeds: SeedTree,
    policies: Mapping[str, Callable[[RewardTerms], Chooser]],
) -> RouterEvaluation:
    """Run all baselines and trained `policies` by name on the same workflows.

    `POLICY` is the shipped router where it is among the policies, else `LOOKAHEAD`. `train` are the
    outcomes that the predictor was fitted on.
    """

    def routers(under: RewardTerms, draws: SeedTree) -> dict[str, Chooser]:
        trained = {name: make(under) for name, make in policies.items()}
        return {**baselines(train, under, draws), **trained, ORACLE: oracle(under)}

    choosers = routers(terms, seeds.child("random"))
    outcomes = {
        name: run_chooser(query_table, flows, terms, choose) for name, choose in choosers.items()
    }
    few = flows.take(np.arange(min(CURVE, len(flows))))

    def point(choose: Chooser) -> Point:
        outcome = run_chooser(query_table, few, terms, choose)
        return float(outcome.cost_B.mean()), float(outcome.success_B.mean())

    own = terms.weights
    weighed = [
        replace(terms, weights=replace(own, beta=own.beta * x, gamma_latency=own.gamma_latency * x))
        for x in SWEEP
    ]
    swept = {GREEDY: node_utility, LOOKAHEAD: lookahead, **policies}
    workers = query_table.workers
    curves = {
        SINGLE: [point(_favouring(np.eye(workers)[j])) for j in range(workers)],
        **{name: [point(make(under)) for under in weighed] for name, make in swept.items()},
    }
    costs = [cost for cost, _ in curves[SINGLE]]
    low, high = min(costs), max(max(costs), min(costs) * 1.001 + 1e-12)
    points = [(float(o.cost_B.mean()), float(o.success_B.mean())) for o in outcomes.values()]
    names = list(outcomes)
    front = {ORACLE, *(names[i] for i in pareto_front(points[:-1]))}
    best = float(outcomes[ORACLE].reward_B.mean())
    rows = [
        _row(name, outcome, flows.group_B)
        | {
            "gap_to_oracle": best - float(outcome.reward_B.mean()),
            "pareto": name in front,
            "aiq": aiq(curves[name], low, high) if name in curves else None,
        }
        for name, outcome in outcomes.items()
    ]
    presets: dict[str, list[Row]] = {}
    shown = ("cheapest", "most accurate", "best of the type", GREEDY, LOOKAHEAD, *policies, ORACLE)
    for preset in get_args(Preset):
        # Its own weights but for the one that is trained for.
        weights = own if preset == terms.preset else weights_of(preset)
        under = replace(terms, preset=preset, weights=weights)
        by_name, presets[preset] = routers(under, SeedTree(0)), []
        for name in shown:
            outcome = run_chooser(query_table, few, under, by_name[name])
            ends = _interval(outcome.reward_B, few.group_B)
            numbers = (float(outcome.reward_B.mean()), *ends, float(outcome.success_B.mean()))
            keys = ("reward", "low", "high", "success")
            presets[preset].append({"name": name, **dict(zip(keys, numbers, strict=True))})
    rewards = {name: outcome.reward_B for name, outcome in outcomes.items()}
    router = POLICY if POLICY in policies else LOOKAHEAD
    differences = {
        name: paired_difference(theirs, rewards[router], flows.group_B)
        for name, theirs in rewards.items()
        if name != router
    }
    return RouterEvaluation(router, rows, differences, curves, presets, rewards, flows.group_B)


def _row(name: str, outcome: SimulationResult, group_B: Ints) -> Row:
    """The numbers of one router, see `RouterEvaluation.rows`."""
    tasks = [str(group) for group in group_B]
    sides = zip(tasks, outcome.reward_B, outcome.success_B, outcome.late_B, strict=True)
    judged = [
        RolloutOutcome(task, float(reward), bool(success), DEADLINE if late else None)
        for task, reward, success, late in sides
    ]
    sums = add_up(judged, RewardKind(graded=True))
    low, high = sums.interval or (0.0, 1.0)
    reward_low, reward_high = shown_interval(sums.reward_interval, sums.tasks)
    wins = int(outcome.success_B.sum())
    return {
        "name": name,
        "workflows": sums.judged,
        "late": sums.failed.get(DEADLINE, 0),
        "success": sums.success or 0.0,
        "success_low": low,
        "success_high": high,
        "cost": float(outcome.cost_B.mean()),
        "cost_per_success": float(outcome.cost_B.sum()) / wins if wins else float("inf"),
        "latency": float(outcome.latency_B.mean()),
        "latency_p95": float(np.quantile(outcome.latency_B, 0.95)),
        "reward": float(outcome.reward_B.mean()),
        "reward_low": reward_low,
        "reward_high": reward_high,
        "tries": float(outcome.steps_B.mean()),
        "stopped": float(outcome.stopped_B.mean()),
    }


def paired_difference(theirs_B: Floats, mine_B: Floats, group_B: Ints) -> Difference:
    """Mean of mine less theirs over workflows, with the interval of their groups of queries."""
    gap_B = mine_B - theirs_B
    mean = float(gap_B.mean())
    low, high = _interval(gap_B, group_B)
    signs = (int((gap_B > 0).sum()), int((gap_B < 0).sum()), int((gap_B == 0).sum()))
    return Difference(mean, low, high, *signs)


def _interval(value_B: Floats, group_B: Ints) -> tuple[float, float]:
    """95 % interval of a mean over workflows, clustered by group; two NaN if there is none."""
    tasks = [str(group) for group in group_B]
    return shown_interval(mean_interval([float(v) for v in value_B], tasks), len({*tasks}))


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
        while len(upper) >= 2:
            (x1, y1), (x2, y2) = upper[-2:]
            if (y2 - y1) * (cost - x1) > (quality - y1) * (x2 - x1):
                break
            upper.pop()  # it lies on or under the line between its neighbours
        upper.append((cost, quality))
    return upper


def aiq(points: Sequence[Point], low: float, high: float) -> float:
    """The mean height of the hull over costs from `low` to `high`; flat beyond its ends: the
    average improvement in quality of RouterBench (arXiv 2403.12031).

    Raises `DataError` without points or for an empty range.
    """
    if not points or not low < high:
        raise DataError(f"aiq needs points and a range of costs, not {points!r}, {low!r}, {high!r}")
    known = hull(points)
    own = np.array([cost for cost, _ in known])
    costs = np.concatenate([[low], own[(own > low) & (own < high)], [high]])
    heights = np.interp(costs, own, [quality for _, quality in known])
    return float(np.trapezoid(heights, costs) / (high - low))
