"""Vectorized simulator of thousands of workflows in parallel, on recorded outcomes.

A workflow is a DAG whose nodes are rows of an outcome table. It has a shape (chain, fan-in, diamond
or independent) and, with some probability, a budget and a deadline, as multiples of the cost and
time of the median worker. A `QueryForecast` has the predictions before a run; a `QueryTable` adds
the outcomes and the verdicts of the verifier.

The simulator follows the rules of the executor exactly. A node is ready when its parents are done.
A try takes the recorded time and has the recorded cost. An answer that passes its verifier
completes the node; after a rejected answer, the next decision is another worker, accept, or stop,
which fails the workflow at once. Budgets are enforced; a workflow that reaches its deadline fails.
Decisions are ordered by time, then by node number. The reward of a decision is the change in the
current reward of the workflow, so the rewards of a workflow add up to `compute_reward` of its
result. Success means that every kept answer is correct, independent of the verdicts.

`WorkflowState` is the state of running workflows, and `DecisionBatch` the observation before a
decision. The router in the executor (`router.py`) fills the same fields, so a policy has the same
inputs as in training. The utility of an action is in units of the reward. With F the probability
that time and budget suffice, o the probability that all other nodes are correct, and rest the
expected cost of the nodes that have not started:

    try j:  P(pass) * max(0, alpha F o P(right | pass) - rest)
            + P(reject) * max(0, alpha F o P(right | reject) - rest) - cost_j - time_j
    accept: alpha F o P(last answer is right) - rest - time
    stop:   0

A test compares the simulator with the executor, action by action. Legend: B workflows, N nodes
(padded with -1), Q queries of the table, W workers, D decisions, A actions (the workers, accept,
stop).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tutelage.errors import ConfigError
from tutelage.orchestration.data.outcomes import Floats, OutcomeTable
from tutelage.orchestration.data.synthetic import builtin_graph
from tutelage.orchestration.evaluation.rewards import Preset, RewardWeights, reward_terms
from tutelage.orchestration.execution.worker_files import tool_kind
from tutelage.orchestration.execution.workers import Worker
from tutelage.orchestration.routing.predictor import (
    PASSES_RIGHT,
    PASSES_WRONG,
    NeighbourWeights,
    OutcomePredictor,
    verdict_probs,
)
from tutelage.seeds import SeedTree

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Shape = Literal["chain", "fan_in", "diamond", "independent"]
SHAPES: tuple[Shape, ...] = ("chain", "fan_in", "diamond", "independent")
WAITING, READY, RUNNING, DONE = 0, 1, 2, 3
TRUTHS = 12
"""Number of features that `WorkflowSimulator.true_features` returns for a decision."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Distribution of simulated workflows, and rules of their execution."""

    nodes: tuple[int, int] = (1, 5)
    """Minimum and maximum number of nodes."""
    max_tries: int = 3
    budgets: float = 0.5
    """Share of workflows with a budget."""
    budget_range: tuple[float, float] = (0.7, 3.0)
    """Range of the budget, as a multiple of the cost of all nodes with the median worker."""
    deadlines: float = 0.5
    deadline_range: tuple[float, float] = (1.2, 4.0)
    """Range of the deadline, as a multiple of the critical path with the median worker."""
    shapes: tuple[Shape, ...] = SHAPES


@dataclass(frozen=True, slots=True)
class QueryForecast:
    """Predictions for queries (rows of a table or nodes of a plan) before their execution."""

    predictor: OutcomePredictor
    support: NeighbourWeights
    columns: Ints
    """Index of each worker in the predictor."""
    chance_QW: Floats
    """Probability of a correct answer, before any try."""
    hope_Q: Floats
    """Probability that at least one of the best `max_tries` workers is correct."""
    cost_QW: Floats
    """Expected cost in USD."""
    seconds_QW: Floats
    legal_QW: Bools
    max_tries: int

    def posterior(self, query_D: Ints, failed_DW: Bools) -> Floats:
        """Return P(correct) of each worker, [D, W], conditioned on the failed workers."""
        chance_DW = self.chance_QW[query_D]
        again = failed_DW.any(axis=1)
        if again.any():
            failed_DV = np.zeros((int(again.sum()), len(self.predictor.workers)), dtype=np.bool_)
            failed_DV[:, self.columns] = failed_DW[again]
            support = self.support.take(query_D[again])
            chance_DV = self.predictor.p_correct(support, failed_DV)
            chance_DW[again] = chance_DV[:, self.columns]
        return chance_DW

    @staticmethod
    def make(
        predictor: OutcomePredictor,
        support: NeighbourWeights,
        tokens_in_Q: Floats,
        workers: Sequence[Worker],
        legal_QW: Bools,
        max_tries: int,
    ) -> QueryForecast:
        """Return the forecast of a predictor that was fitted on these workers."""
        names = [worker.name for worker in predictor.workers]
        columns = np.array([names.index(worker.name) for worker in workers])
        expected = (predictor.p_correct(support), *predictor.estimate(support, tokens_in_Q))
        chance_QW, cost_QW, seconds_QW = (values_QV[:, columns] for values_QV in expected)
        ranked_QV = np.full((len(legal_QW), len(names)), -1.0)
        ranked_QV[:, columns] = np.where(legal_QW, chance_QW, -1.0)
        hope_Q = predictor.p_any_correct(support, ranked_QV, max_tries)
        return QueryForecast(
            predictor, support, columns, chance_QW, hope_Q, cost_QW, seconds_QW, legal_QW, max_tries
        )


@dataclass(frozen=True, slots=True)
class QueryTable(QueryForecast):
    """Outcome table with forecasts for its queries."""

    table: OutcomeTable
    scenario: Scenario
    passes_QW: Bools
    """True if the verifier passes the answer."""
    bound_QW: Floats
    """Upper bound of the cost of a try in USD, which is reserved in the budget."""

    @staticmethod
    def from_table(
        table: OutcomeTable,
        predictor: OutcomePredictor,
        scenario: Scenario,
        support: NeighbourWeights | None = None,
    ) -> QueryTable:
        """Add the forecasts of a predictor to an outcome table. Pass `support` for the training
        table, where each row is excluded from its own neighbours.

        The capability that a type needs comes from the built-in catalog, or from the type's name.
        Raises `ConfigError` if no worker can do a query.
        """
        catalog, workers = builtin_graph().catalog, table.workers
        kinds = {kind: tool_kind(kind, "", catalog) for kind in set(table.types)}
        able = {kind: [w.supports(kind, needs) for w in workers] for kind, needs in kinds.items()}
        legal_QW = np.array([able[kind] for kind in table.types]) & table.known_QW
        if len(lost := np.flatnonzero(~legal_QW.any(axis=1))):
            row = int(lost[0])
            raise ConfigError(
                f"no worker supports query {table.ids[row]!r} of type {table.types[row]!r}; add "
                "that type to the capabilities of a worker, or remove the query"
            )
        support = support or predictor.neighbours(table.instructions, table.types)
        known = QueryForecast.make(
            predictor, support, table.tokens_in_Q, workers, legal_QW, scenario.max_tries
        )
        threshold_QW = np.where(table.right_QW, PASSES_RIGHT, PASSES_WRONG)
        return QueryTable(
            **{each.name: getattr(known, each.name) for each in fields(known)},
            table=table,
            scenario=scenario,
            passes_QW=table.draws_QW < threshold_QW,
            bound_QW=table.bounds_QW,
        )


@dataclass(frozen=True, slots=True)
class WorkflowBatch:
    """Batch of workflows. Their nodes are queries of one forecast."""

    query_BN: Ints
    """Row of each node in the table; -1 for padding."""
    parents_BNN: Bools
    """`[b, i, j]` is True if node i is a parent of node j. Parents come first: i < j."""
    budget_B: Floats
    """Budget in USD; infinite if there is none."""
    deadline_B: Floats
    """Deadline in seconds; infinite if there is none."""
    cost_ref_B: Floats
    """Expected cost in USD of the most expensive legal single-worker plan."""
    latency_ref_B: Floats
    """Expected seconds of the slowest legal single-worker plan."""
    group_B: Ints
    """Group of the workflow's queries; workflows of different groups share no queries."""

    def __len__(self) -> int:
        return len(self.query_BN)

    @staticmethod
    def from_plan(forecast: QueryForecast, parents_NN: Bools) -> WorkflowBatch:
        """Create a batch of one workflow from a forecast, without deadline or budget."""
        query_BN, parents_BNN = np.arange(len(parents_NN))[None], parents_NN[None]
        cost_BW, path_BW = _single_worker_costs(forecast, query_BN, parents_BNN)
        most = _row_max(cost_BW), _row_max(path_BW)
        free_B, group_B = np.array([np.inf]), np.zeros(1, dtype=np.int64)
        return WorkflowBatch(query_BN, parents_BNN, free_B, free_B, *most, group_B)

    @staticmethod
    def draw(
        query_table: QueryTable, count: int, seeds: SeedTree, groups: int = 1
    ) -> WorkflowBatch:
        """Sample `count` workflows. Nodes and shapes depend only on the seed and the table;
        budgets, deadlines and reference values depend on the forecast too.

        Queries are split into `groups` parts of equal size, at most one part per two workflows and
        per `nodes` queries. Each workflow takes its queries from one part.
        """
        rng, scenario = seeds.numpy(), query_table.scenario
        least, nodes = scenario.nodes
        size_B = rng.integers(least, nodes + 1, count)
        total = len(query_table.table)
        groups = max(1, min(groups, count // 2, total // nodes))
        query_BN = rng.integers(0, total // groups, (count, nodes))
        group_B = np.arange(count) % groups
        if groups > 1:
            order_Q = seeds.child("groups").numpy().permutation(total)
            query_BN = order_Q[group_B[:, None] * (total // groups) + query_BN]
        query_BN[np.arange(nodes)[None, :] >= size_B[:, None]] = -1
        shape_B = rng.integers(0, len(scenario.shapes), count)
        parents_BNN = np.zeros((count, nodes, nodes), dtype=np.bool_)
        for b in range(count):
            shape, size, parents_NN = scenario.shapes[shape_B[b]], int(size_B[b]), parents_BNN[b]
            if shape == "chain":
                parents_NN[range(size - 1), range(1, size)] = True
            elif shape == "fan_in" and size > 1:
                parents_NN[: size - 1, size - 1] = True
            elif shape == "diamond" and size > 1:
                parents_NN[0, 1 : max(2, size - 1)] = True
                if size > 2:
                    parents_NN[1 : size - 1, size - 1] = True
        cost_BW, path_BW = _single_worker_costs(query_table, query_BN, parents_BNN)

        def draw_limits(base_BW: Floats, share: float, factors: tuple[float, float]) -> Floats:
            drawn_B = rng.uniform(*factors, count) * np.median(base_BW, axis=1)
            return np.where(rng.random(count) < share, drawn_B, np.inf)

        budget_B = draw_limits(cost_BW, scenario.budgets, scenario.budget_range)
        deadline_B = draw_limits(path_BW, scenario.deadlines, scenario.deadline_range)
        most = _row_max(cost_BW), _row_max(path_BW)
        return WorkflowBatch(query_BN, parents_BNN, budget_B, deadline_B, *most, group_B)


def _row_max(values_BW: Floats) -> Floats:
    """Return the maximum of each row, or 1 if it is 0, so that it can be a divisor."""
    most_B = values_BW.max(axis=1)
    return np.where(most_B > 0, most_B, 1.0)


def _single_worker_costs(
    forecast: QueryForecast, query_BN: Ints, parents_BNN: Bools
) -> tuple[Floats, Floats]:
    """Return the expected cost in USD and latency in seconds of single-worker plans, both [B, W].

    For a node that a worker cannot do, the most expensive (or slowest) legal worker is used. Nodes
    without a legal worker are padding and count 0.
    """
    legal_BNW = forecast.legal_QW[query_BN] & (query_BN >= 0)[:, :, None]
    exists_BN: Bools = np.any(legal_BNW, axis=2)
    mine = [
        np.where(legal_BNW, x_BNW, np.where(legal_BNW, x_BNW, -np.inf).max(axis=2, keepdims=True))
        for x_BNW in (forecast.cost_QW[query_BN], forecast.seconds_QW[query_BN])
    ]
    used_BNW, lasts_BNW = (np.where(exists_BN[:, :, None], x_BNW, 0.0) for x_BNW in mine)
    end_BNW = np.zeros_like(lasts_BNW)
    for j in range(lasts_BNW.shape[1]):
        before_BNW = np.where(parents_BNN[:, :, j, None], end_BNW, 0.0)
        end_BNW[:, j] = before_BNW.max(axis=1) + lasts_BNW[:, j]
    return used_BNW.sum(axis=1), end_BNW.max(axis=1)


@dataclass(frozen=True, slots=True)
class DecisionBatch:
    """Observations of a batch of decisions. Costs are in USD, times in seconds since the start of
    the workflow."""

    mask_DA: Bools
    chance_DW: Floats
    """Probability that a worker's answer is correct, given the failed tries at this node."""
    cost_DW: Floats
    seconds_DW: Floats
    load_DW: Floats
    """Number of running subtasks of each worker."""
    last_D: Floats
    """Probability that the last answer is correct; 0 if there is none."""
    tries_D: Floats
    max_tries: int
    others_D: Floats
    """Probability that all other nodes are correct."""
    rest_cost_D: Floats
    """Expected cost of the other nodes that have not started."""
    rest_least_D: Floats
    """Minimum expected cost of the other nodes that have not started."""
    now_D: Floats
    ends_D: Floats
    """Expected end of the workflow if this node took no time."""
    tail_D: Floats
    """Expected time of the longest chain of descendants of this node."""
    spent_D: Floats
    """Cost so far; running tries count with their upper bound."""
    budget_D: Floats
    """Budget; infinite if there is none."""
    deadline_D: Floats
    cost_ref_D: Floats
    latency_ref_D: Floats
    nodes_D: Floats
    open_D: Floats
    """Number of unfinished nodes, including this one."""

    @property
    def end_D(self) -> Floats:
        """Expected end of the workflow if the last answer is accepted."""
        return np.maximum(self.ends_D, self.now_D + self.tail_D)

    @property
    def end_DW(self) -> Floats:
        """Expected end of the workflow if a worker is called."""
        after_DW = (self.now_D + self.tail_D)[:, None] + self.seconds_DW
        return np.maximum(self.ends_D[:, None], after_DW)


@dataclass(frozen=True, slots=True)
class RewardTerms:
    """Reward preset and weights, and the maximum number of decisions per workflow."""

    preset: Preset
    weights: RewardWeights
    max_steps: int = 50
    """Maximum number of decisions in one workflow, after which it fails."""

    def prices(self, cost_ref_D: Floats, latency_ref_D: Floats) -> tuple[Floats, Floats]:
        """Return the reward lost per dollar and per second, both [D]."""
        usd, second = self.weights.beta, self.weights.gamma_latency
        if self.preset == "normalized":
            return usd / cost_ref_D, second / latency_ref_D
        return np.full_like(cost_ref_D, usd), np.full_like(latency_ref_D, 1000.0 * second)


def look_ahead(obs: DecisionBatch, terms: RewardTerms) -> Floats:
    """Return the expected one-step utilities, [D, A], with -inf for masked actions.

    See the formula in the module docstring.
    """
    alpha = terms.weights.alpha
    shares = obs.nodes_D if terms.preset == "normalized" else np.ones_like(obs.nodes_D)
    shaped_D = terms.weights.shaped_reward / shares
    per_usd_D, per_second_D = terms.prices(obs.cost_ref_D, obs.latency_ref_D)
    pass_DW, right_if_pass_DW, right_if_fail_DW = verdict_probs(obs.chance_DW)
    # Actions: each worker, then accept, which has no cost.
    none_D1 = np.zeros((len(shaped_D), 1))
    end_DA = np.column_stack([obs.end_DW, obs.end_D])
    cost_DA = np.column_stack([obs.cost_DW, none_D1])
    # 1 if the budget covers this action and the minimum cost of the other nodes.
    left_D = obs.budget_D - obs.spent_D - obs.rest_least_D
    affordable_DA = (left_D[:, None] - cost_DA >= -1e-12).astype(np.float64)
    # Approximate probability of meeting the deadline: logistic in the relative distance to it.
    ahead_DA = np.maximum(end_DA - obs.now_D[:, None], 1e-6)
    with np.errstate(invalid="ignore"):
        far_DA = (obs.deadline_D[:, None] - end_DA) / (0.15 * ahead_DA)
    in_time_DA = 1.0 / (1.0 + np.exp(-np.clip(far_DA, -30, 30)))
    worth_DA = alpha * obs.others_D[:, None] * in_time_DA * affordable_DA
    rest_D1 = (per_usd_D * obs.rest_cost_D)[:, None]
    time_DA = per_second_D[:, None] * (end_DA - obs.now_D[:, None])
    worth_DW = worth_DA[:, :-1]
    try_DW = (
        pass_DW * (np.maximum(worth_DW * right_if_pass_DW - rest_D1, 0) + shaped_D[:, None])
        + (1 - pass_DW) * np.maximum(worth_DW * right_if_fail_DW - rest_D1, 0)
        - per_usd_D[:, None] * obs.cost_DW
        - time_DA[:, :-1]
    )
    right_D = alpha * obs.others_D * obs.last_D * in_time_DA[:, -1] * affordable_DA[:, -1]
    accept_D = right_D - rest_D1[:, 0] - time_DA[:, -1]
    utility_DA = np.concatenate([try_DW, accept_D[:, None], np.zeros((len(accept_D), 1))], axis=1)
    return np.where(obs.mask_DA, utility_DA, -np.inf)


class WorkflowState:
    """State of running workflows, with the expected results of their nodes."""

    def __init__(self, forecast: QueryForecast, flows: WorkflowBatch, terms: RewardTerms) -> None:
        self.known, self.flows, self.terms = forecast, flows, terms
        shape = flows.query_BN.shape
        self.exists_BN = flows.query_BN >= 0
        self.query_BN = np.maximum(flows.query_BN, 0)
        self.size_B = self.exists_BN.sum(axis=1)
        self.status_BN = np.where(self.exists_BN, WAITING, DONE)
        self.finish_BN = np.zeros(shape)
        """End time of each finished node."""
        self.expected_end_BN = np.zeros(shape)
        """Expected end time of each running node."""
        self.chance_BN = np.where(self.exists_BN, forecast.hope_Q[self.query_BN], 1.0)
        """Probability that each node is correct."""
        self.if_pass_BN = np.zeros(shape)
        """Probability that each node is correct if the running answer passes its verifier."""
        # USD and seconds of each node with the worker of highest utility before any try; chances
        # are halved, because other nodes may fail.
        cost_BNW, seconds_BNW = forecast.cost_QW[self.query_BN], forecast.seconds_QW[self.query_BN]
        legal_BNW = forecast.legal_QW[self.query_BN]
        per_usd_B, per_second_B = terms.prices(flows.cost_ref_B, flows.latency_ref_B)
        worth_BNW = (
            0.5 * terms.weights.alpha * forecast.chance_QW[self.query_BN]
            - per_usd_B[:, None, None] * cost_BNW
            - per_second_B[:, None, None] * seconds_BNW
        )
        best_BN1 = np.where(legal_BNW, worth_BNW, -np.inf).argmax(axis=2)[:, :, None]
        self._plan_cost_BN, self._plan_seconds_BN = (
            np.take_along_axis(x_BNW, best_BN1, 2)[:, :, 0] * self.exists_BN
            for x_BNW in (cost_BNW, seconds_BNW)
        )
        least_BN = np.where(legal_BNW, cost_BNW, np.inf).min(axis=2)
        self._least_BN = np.where(self.exists_BN, least_BN, 0.0)

    def call(self, rows: Ints, node: Ints, worker: Ints, chance_DW: Floats, now_D: Floats) -> None:
        """Update the state when workers are called. `chance_DW` is `DecisionBatch.chance_DW`.

        If the answer is rejected, the next best worker counts with half of its probability.
        """
        places = np.arange(len(worker))
        passes, if_pass, _ = verdict_probs(chance_DW[places, worker])
        others_DW = chance_DW.copy()
        others_DW[places, worker] = 0.0
        self.status_BN[rows, node] = RUNNING
        seconds_D = self.known.seconds_QW[self.query_BN[rows, node], worker]
        self.expected_end_BN[rows, node] = now_D + seconds_D
        self.if_pass_BN[rows, node] = if_pass
        self.chance_BN[rows, node] = passes * if_pass + (1 - passes) * 0.5 * others_DW.max(axis=1)

    def build_batch(
        self, rows: Ints, node: Ints, now_D: Floats, *, failed_DW: Bools, last_D: Ints, **extra: Any
    ) -> DecisionBatch:
        """Return the observations of a batch of decisions. `failed_DW` marks the workers that were
        rejected at the node, `last_D` is the worker of the last answer (-1 if there is none), and
        `extra` has the other fields of the batch.
        """
        places, query = np.arange(len(rows)), self.query_BN[rows, node]
        status_DN = self.status_BN[rows]
        done_DN, running_DN = status_DN == DONE, status_DN == RUNNING
        others_DN = self.chance_BN[rows]
        others_DN[places, node] = 1.0
        unstarted_DN = ~done_DN & ~running_DN
        unstarted_DN[places, node] = False
        lasts_DN = self._plan_seconds_BN[rows]
        lasts_DN[places, node] = 0.0
        # Expected end of each node, and longest chain of descendants. Actual ends of running tries
        # are not known at this time, so only expected durations are used.
        parents_DNN = self.flows.parents_BNN[rows]
        running_end_DN = np.maximum(self.expected_end_BN[rows], now_D[:, None])
        end_DN, tail_DN = np.zeros_like(lasts_DN), np.zeros_like(lasts_DN)
        for j in range(lasts_DN.shape[1]):
            before_D = np.where(parents_DNN[:, :, j], end_DN, 0.0).max(axis=1, initial=0.0)
            later_D = np.maximum(before_D, now_D) + lasts_DN[:, j]
            open_D = np.where(running_DN[:, j], running_end_DN[:, j], later_D)
            end_DN[:, j] = np.where(done_DN[:, j], self.finish_BN[rows, j], open_D)
        for i in reversed(range(lasts_DN.shape[1])):
            chains_DN = np.where(parents_DNN[:, i, :], tail_DN + lasts_DN, 0.0)
            tail_DN[:, i] = chains_DN.max(axis=1, initial=0.0)
        chance_DW = self.known.posterior(query, failed_DW)
        return DecisionBatch(
            chance_DW=chance_DW,
            cost_DW=self.known.cost_QW[query],
            seconds_DW=self.known.seconds_QW[query],
            last_D=np.where(last_D >= 0, chance_DW[places, last_D], 0.0),
            tries_D=failed_DW.sum(axis=1).astype(np.float64),
            max_tries=self.known.max_tries,
            others_D=others_DN.prod(axis=1),
            rest_cost_D=(self._plan_cost_BN[rows] * unstarted_DN).sum(axis=1),
            rest_least_D=(self._least_BN[rows] * unstarted_DN).sum(axis=1),
            now_D=now_D,
            ends_D=end_DN.max(axis=1),
            tail_D=tail_DN[places, node],
            cost_ref_D=self.flows.cost_ref_B[rows],
            latency_ref_D=self.flows.latency_ref_B[rows],
            nodes_D=self.size_B[rows].astype(np.float64),
            open_D=(~done_DN).sum(axis=1).astype(np.float64),
            **extra,
        )


class WorkflowSimulator(WorkflowState):
    """Simulation of a batch of workflows. `rows` need a decision; `step` executes decisions."""

    def __init__(self, query_table: QueryTable, flows: WorkflowBatch, terms: RewardTerms) -> None:
        super().__init__(query_table, flows, terms)
        self.query_table, self.workers = query_table, len(query_table.columns)
        count, _ = shape = flows.query_BN.shape
        self._due_BN = np.full(shape, np.inf)
        self._worker_BN = np.full(shape, -1)
        self._tried_BNW = np.zeros((*shape, self.workers), dtype=np.bool_)
        self._last_BN = np.full(shape, -1)
        self.kept_BN = np.full(shape, -1)
        """Worker of each kept answer; -1 if there is none."""
        self.passed_BN = np.zeros(shape, dtype=np.bool_)
        """True if a verifier passed the answer."""
        self.cost_B = np.zeros(count)
        """Cost in USD, including running tries, whose cost is added at their start."""
        self._unused_BN = np.zeros(shape)
        """Reservation of a running try beyond its cost, in USD."""
        self.steps_B = np.zeros(count, dtype=np.int64)
        """Number of decisions."""
        self._over_B = np.zeros(count, dtype=np.bool_)
        self.success_B = np.zeros(count, dtype=np.bool_)
        """True if every kept answer is correct."""
        self.now_B = np.zeros(count)
        """Seconds since the start; the latency of a finished workflow."""
        self.node_B = np.zeros(count, dtype=np.int64)
        """Node of the current decision of each workflow."""
        roots_BN = self.exists_BN & ~flows.parents_BNN.any(axis=1)
        self.status_BN[roots_BN] = READY
        self._due_BN[roots_BN] = 0.0
        self._advance(np.arange(count))
        self._so_far_B = self._current_reward()
        self.reward_B = self._so_far_B.copy()
        """Sum of the rewards of all decisions."""

    # Simulation

    @property
    def rows(self) -> Ints:
        """Indices of the workflows that need a decision, in order."""
        return np.flatnonzero(~self._over_B)

    def queries(self, rows: Ints) -> Ints:
        """Return the table row of the current node of each workflow."""
        return self.query_BN[rows, self.node_B[rows]]

    def last_workers(self, rows: Ints) -> Ints:
        """Return the worker of the last answer at each current node, or -1 if there is none."""
        return self._last_BN[rows, self.node_B[rows]]

    def step(self, rows: Ints, actions: Ints, chance_DW: Floats) -> Floats:
        """Execute an action in each workflow of `rows` (subset of `self.rows`); return the rewards.

        `chance_DW` is `DecisionBatch.chance_DW`.
        """
        self.steps_B[rows] += 1
        ask, accept, stop = (
            actions < self.workers,
            actions == self.workers,
            actions == self.workers + 1,
        )
        if ask.any():
            places, worker = rows[ask], actions[ask]
            node, query, now_D = self.node_B[places], self.queries(places), self.now_B[places]
            cost = self.query_table.table.costs_QW[query, worker]
            bound = self.query_table.bound_QW[query, worker]
            self.cost_B[places] += cost
            self._unused_BN[places, node] = np.maximum(0.0, bound - cost)
            self._worker_BN[places, node] = worker
            self._due_BN[places, node] = now_D + self.query_table.table.seconds_QW[query, worker]
            self.call(places, node, worker, chance_DW[ask], now_D)
        if accept.any():
            places, node = rows[accept], self.node_B[rows[accept]]
            last = self._last_BN[places, node]
            self.chance_BN[places, node] = chance_DW[accept][np.arange(len(last)), last]
            self._complete(places, node, last, passed=False)
        ended = ~self._over_B[rows] & (stop | (self.steps_B[rows] >= self.terms.max_steps))
        self._fail(rows[ended])
        self._advance(rows[~self._over_B[rows]])
        so_far_B = self._current_reward()
        gained = so_far_B[rows] - self._so_far_B[rows]
        self._so_far_B = so_far_B
        self.reward_B[rows] += gained
        return gained

    def _complete(self, rows: Ints, node: Ints, worker: Ints, *, passed: bool) -> None:
        """Mark nodes as completed, and mark children with completed parents as ready."""
        self.status_BN[rows, node] = DONE
        self.finish_BN[rows, node] = self.now_B[rows]
        self._due_BN[rows, node] = np.inf
        self.kept_BN[rows, node] = worker
        self.passed_BN[rows, node] = passed
        open_DN = self.status_BN[rows] != DONE
        waits_DN = (self.flows.parents_BNN[rows] & open_DN[:, :, None]).any(axis=1)
        places, children = np.nonzero((self.status_BN[rows] == WAITING) & ~waits_DN)
        self.status_BN[rows[places], children] = READY
        self._due_BN[rows[places], children] = self.now_B[rows[places]]
        complete = rows[~open_DN.any(axis=1)]
        self._over_B[complete] = True
        right_DN = self.query_table.table.right_QW[
            self.query_BN[complete], np.maximum(self.kept_BN[complete], 0)
        ]
        self.success_B[complete] = (right_DN | ~self.exists_BN[complete]).all(axis=1)

    def _fail(self, rows: Ints) -> None:
        """Mark workflows as failed. Running tries count with their maximum cost."""
        self.cost_B[rows] += self._unused_BN[rows].sum(axis=1)
        self._unused_BN[rows] = 0.0
        self._over_B[rows] = True

    def _advance(self, rows: Ints) -> None:
        """Advance the time until each workflow needs a decision or has ended."""
        while len(rows):
            node = self._due_BN[rows].argmin(axis=1)
            due = self._due_BN[rows, node]
            late = due > self.flows.deadline_B[rows]
            self.now_B[rows] = np.where(late, self.flows.deadline_B[rows], due)
            self._fail(rows[late])
            rows, node = rows[~late], node[~late]
            self.node_B[rows] = node
            running = self.status_BN[rows, node] == RUNNING
            answered, at = rows[running], node[running]
            worker = self._worker_BN[answered, at]
            passed = self.query_table.passes_QW[self.query_BN[answered, at], worker]
            self._unused_BN[answered, at] = 0.0
            self._tried_BNW[answered, at, worker] = True
            self._last_BN[answered, at] = worker
            good, good_at = answered[passed], at[passed]
            self.chance_BN[good, good_at] = self.if_pass_BN[good, good_at]
            self._complete(good, good_at, worker[passed], passed=True)
            self.status_BN[answered[~passed], at[~passed]] = READY
            # A ready node that no worker fits waits until running tries release reserved budget,
            # as in the executor; if nothing runs and accept is not legal, the workflow fails.
            ready, at = rows[~running], node[~running]
            mask_DA, wanted_DW = self._action_masks(ready)
            busy_DN = self.status_BN[ready] == RUNNING
            stuck = ~mask_DA[:, :-2].any(axis=1)
            waits = stuck & wanted_DW.any(axis=1) & busy_DN.any(axis=1)
            free_D = np.where(busy_DN, self._due_BN[ready], np.inf).min(axis=1, initial=np.inf)
            self._due_BN[ready[waits], at[waits]] = np.nextafter(free_D[waits], np.inf)
            self._fail(ready[stuck & ~waits & ~mask_DA[:, -2]])
            again = np.concatenate([answered, ready[waits]])
            rows = np.sort(again[~self._over_B[again]])

    def _action_masks(self, rows: Ints) -> tuple[Bools, Bools]:
        """Return masks of the legal actions of each row, [D, A], and of the workers that are legal
        without a budget, [D, W]."""
        query_D, tried_DW = self.queries(rows), self._tried_BNW[rows, self.node_B[rows]]
        more_D = tried_DW.sum(axis=1) < self.query_table.max_tries
        wanted_DW = self.query_table.legal_QW[query_D] & ~tried_DW & more_D[:, None]
        left_D = self.flows.budget_B[rows] - self.cost_B[rows] - self._unused_BN[rows].sum(axis=1)
        fits_DW = self.query_table.bound_QW[query_D] <= left_D[:, None] + 1e-12
        settle_D2 = np.stack([self.last_workers(rows) >= 0, np.ones(len(rows), np.bool_)], axis=1)
        return np.column_stack([wanted_DW & fits_DW, settle_D2]), wanted_DW

    # Observations

    def observe(self, rows: Ints) -> DecisionBatch:
        """Return the observations of these workflows."""
        load_DW = np.zeros((len(rows), self.workers))
        busy_D, busy_N = np.nonzero(self.status_BN[rows] == RUNNING)
        np.add.at(load_DW, (busy_D, self._worker_BN[rows[busy_D], busy_N]), 1)
        return self.build_batch(
            rows,
            self.node_B[rows],
            self.now_B[rows],
            failed_DW=self._tried_BNW[rows, self.node_B[rows]],
            last_D=self.last_workers(rows),
            mask_DA=self._action_masks(rows)[0],
            load_DW=load_DW,
            spent_D=self.cost_B[rows] + self._unused_BN[rows].sum(axis=1),
            budget_D=self.flows.budget_B[rows],
            deadline_D=self.flows.deadline_B[rows],
        )

    def true_features(self, rows: Ints, obs: DecisionBatch, weights_DW: Floats) -> Floats:
        """Return features of the true outcomes of these workflows, [D, TRUTHS].

        They are for the critic in training: if no worker answers some query correctly, the failure
        does not depend on the action. `weights_DW` has probabilities of selecting each worker, as
        weights of the outcomes at the current node.
        """
        query_table, places = self.query_table, np.arange(len(rows))
        node, query_DN, status_DN = self.node_B[rows], self.query_BN[rows], self.status_BN[rows]
        per_usd_D, per_second_D = self.terms.prices(obs.cost_ref_D, obs.latency_ref_D)
        right_DNW = query_table.table.right_QW[query_DN] & query_table.legal_QW[query_DN]
        price_DNW = (
            per_usd_D[:, None, None] * query_table.table.costs_QW[query_DN]
            + per_second_D[:, None, None] * query_table.table.seconds_QW[query_DN]
        ) / max(1.0, abs(self.terms.weights.alpha))
        least_DN = np.where(right_DNW, price_DNW, 1.0).min(axis=2)
        done_DN = (status_DN == DONE) & self.exists_BN[rows]

        def is_correct(worker_DN: Ints) -> Bools:
            """Return True where the worker answers correctly."""
            found_DN1 = np.take_along_axis(right_DNW, np.maximum(worker_DN, 0)[:, :, None], axis=2)
            return found_DN1[:, :, 0]

        kept_DN = self.kept_BN[rows]
        good_DN = is_correct(kept_DN) & (kept_DN >= 0)
        under_way_DN = is_correct(self._worker_BN[rows])
        others_DN = self.exists_BN[rows] & ~done_DN
        others_DN[places, node] = False
        share_DN, mine_DW = right_DNW.mean(axis=2), right_DNW[places, node]
        last_D = self.last_workers(rows)
        count_D = np.maximum(1, others_DN.sum(axis=1))
        parts = (
            (good_DN | ~done_DN).all(axis=1),
            (right_DNW.any(axis=2) | ~others_DN).all(axis=1),
            np.where(others_DN, share_DN, 0.0).sum(axis=1) / count_D,
            np.where(others_DN, share_DN, 1.0).prod(axis=1),
            np.where(others_DN, least_DN, 0.0).sum(axis=1),
            (under_way_DN | (status_DN != RUNNING)).all(axis=1),
            (mine_DW & obs.mask_DA[:, :-2]).any(axis=1),
            (last_D >= 0) & mine_DW[places, np.maximum(last_D, 0)],
            least_DN[places, node],
            (weights_DW * mine_DW).sum(axis=1),
            (weights_DW * query_table.passes_QW[query_DN[places, node]]).sum(axis=1),
            (weights_DW * price_DNW[places, node]).sum(axis=1),
        )
        return np.stack([part.astype(np.float64) for part in parts], axis=1)

    def _current_reward(self) -> Floats:
        """Return the current reward of each workflow, which is final when the workflow ends."""
        flows = self.flows
        ends_BN = np.where(self.status_BN == RUNNING, self._due_BN, self.finish_BN)
        ahead_B = np.minimum(ends_BN.max(axis=1), flows.deadline_B)
        parts = reward_terms(
            self.terms.preset,
            self.terms.weights,
            success=self.success_B,
            cost=self.cost_B,
            seconds=np.where(self._over_B, self.now_B, np.maximum(ahead_B, self.now_B)),
            outputs=((self.kept_BN >= 0) & self.exists_BN).sum(axis=1),
            verified=self.passed_BN.sum(axis=1) / self.size_B,
            references=(flows.cost_ref_B, flows.latency_ref_B),
        )
        return parts["success"] + parts["cost"] + parts["latency"] + parts["shaped"]


Chooser = Callable[[WorkflowSimulator, Ints, DecisionBatch], Ints]
"""Function that returns the action of each row, given the simulator, rows and observations."""


def run_policy(
    query_table: QueryTable, workflows: WorkflowBatch, terms: RewardTerms, policy: Chooser
) -> WorkflowSimulator:
    """Simulate all workflows to their end with a policy, and return the simulator."""
    simulator = WorkflowSimulator(query_table, workflows, terms)
    while len(rows := simulator.rows):
        at = simulator.observe(rows)
        simulator.step(rows, policy(simulator, rows, at), at.chance_DW)
    return simulator
