"""Workflows made of recorded queries: a DAG whose nodes are rows of a table of outcomes.

A batch of workflows is a few arrays, so that thousands run at once. A workflow draws its queries,
its shape (chain, fan-in, diamond or independent), and in some runs a budget and a deadline, as
multiples of what the median worker would cost and take. A `QueryForecast` keeps what is known
before a run: support of each query, expected costs and seconds, who can do it; a `QueryTable` adds
the outcomes themselves and what a verifier will say. `simulator.py` runs them, `router.py` a plan
of its own.

Legend: B workflows, N nodes (padded with -1), Q queries of the table, W workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tutelage.errors import ConfigError
from tutelage.orchestration.data.outcomes import Floats, OutcomeTable
from tutelage.orchestration.data.synthetic import builtin_graph
from tutelage.orchestration.execution.worker_files import tool_kind
from tutelage.orchestration.execution.workers import Worker
from tutelage.orchestration.routing.predictor import (
    NeighbourWeights,
    OutcomePredictor,
    VerifierRates,
)
from tutelage.seeds import SeedTree

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Shape = Literal["chain", "fan_in", "diamond", "independent"]
SHAPES: tuple[Shape, ...] = ("chain", "fan_in", "diamond", "independent")


@dataclass(frozen=True, slots=True)
class Scenario:
    """What kind of workflows there are, and how they are run."""

    nodes: tuple[int, int] = (1, 5)
    """Least and most nodes."""
    max_tries: int = 3
    rates: VerifierRates = field(default_factory=VerifierRates)
    budgets: float = 0.5
    """Share of the workflows that have a budget."""
    budget_range: tuple[float, float] = (0.7, 3.0)
    """A budget is this multiple of what the worker of median cost would take for all nodes."""
    deadlines: float = 0.5
    deadline_range: tuple[float, float] = (1.2, 4.0)
    """A deadline is this multiple of the critical path of the worker of median speed."""
    shapes: tuple[Shape, ...] = SHAPES

    def __post_init__(self) -> None:
        if not 1 <= self.nodes[0] <= self.nodes[1] or self.max_tries < 1:
            raise ConfigError(
                f"nodes={self.nodes!r}, max_tries={self.max_tries!r}: at least 1 each, in order"
            )
        for share in (self.budgets, self.deadlines):
            if not 0 <= share <= 1:
                raise ConfigError(
                    f"budgets, deadlines: {share!r} is no share, 0 to 1, of workflows"
                )
        if not self.shapes or any(shape not in SHAPES for shape in self.shapes):
            raise ConfigError(f"shapes={self.shapes!r}: choose from {SHAPES!r}")


SEPARABLE = Scenario(nodes=(1, 1), max_tries=1, budgets=0.0, deadlines=0.0)
"""One node, one try, no limits: no choice depends on another."""


def able_workers(workers: Sequence[Worker], kind: str) -> list[bool]:
    """Whether each worker can do subtasks of a type; the built-in catalog tells what a tool needs,
    else the words of its name."""
    return [worker.can(kind, tool_kind(kind, "", builtin_graph().catalog)) for worker in workers]


@dataclass(frozen=True, slots=True)
class QueryForecast:
    """What is known of queries before anything is run: rows of a table, or the nodes of a plan."""

    predictor: OutcomePredictor
    support: NeighbourWeights
    columns: Ints
    """The predictor's number of each worker; -1 for one that it does not know."""
    chance_QW: Floats
    """Chance of a right answer, before any try."""
    hope_Q: Floats
    """Chance that one of the best workers, as many as there are tries, is right."""
    cost_QW: Floats
    """Expected USD."""
    seconds_QW: Floats
    legal_QW: Bools
    max_tries: int

    @property
    def workers(self) -> int:
        """W."""
        return len(self.columns)

    def after(self, query_D: Ints, failed_DW: Bools, rates: VerifierRates) -> Floats:
        """Chance that each worker is right, [D, W], given which failed at the node.

        The failure of a tool, which the predictor does not know, says nothing of the others.
        """
        chance_DW = self.chance_QW[query_D]
        known_W = self.columns >= 0
        failed_DV = np.zeros((len(query_D), len(self.predictor.workers)), dtype=np.bool_)
        failed_DV[:, self.columns[known_W]] = failed_DW[:, known_W]
        again = failed_DV.any(axis=1)
        if again.any():
            support = self.support.take(query_D[again])
            found_DV = self.predictor.chances(support, failed_BW=failed_DV[again], rates=rates)
            chance_DW[np.ix_(again, known_W)] = found_DV[:, self.columns[known_W]]
        alone_DW = failed_DW & ~known_W
        chance_DW[alone_DW] = rates.verdict(chance_DW[alone_DW])[2]
        return chance_DW

    @staticmethod
    def by(
        predictor: OutcomePredictor,
        support: NeighbourWeights,
        tokens_in_Q: Floats,
        workers: Sequence[Worker],
        legal_QW: Bools,
        max_tries: int,
        stated: Sequence[Floats] = (),
    ) -> QueryForecast:
        """What the predictor expects of these workers. `stated` are chances, USD and seconds
        [Q, W] of those that it does not know: tools. It may be left out without any."""
        names = [worker.name for worker in predictor.workers]
        columns = np.array([names.index(w.name) if w.name in names else -1 for w in workers])
        known_W = columns >= 0
        expected = (predictor.chances(support), *predictor.expected(support, tokens_in_Q))
        values = [found_QV[:, columns] for found_QV in expected]
        ranked_QV = np.full((len(legal_QW), len(names)), -1.0)
        ranked_QV[:, columns[known_W]] = np.where(legal_QW, values[0], -1.0)[:, known_W]
        if known_W.all():
            hope_Q = predictor.hope(support, ranked_QV, max_tries)
        else:
            values = [np.where(known_W, f, s) for f, s in zip(values, stated, strict=True)]
            hope_Q = np.where(legal_QW, values[0], 0.0).max(axis=1)
        chance_QW, cost_QW, seconds_QW = values
        return QueryForecast(
            predictor, support, columns, chance_QW, hope_Q, cost_QW, seconds_QW, legal_QW, max_tries
        )


@dataclass(frozen=True, slots=True)
class QueryTable(QueryForecast):
    """A table of outcomes, with what is known of its queries."""

    table: OutcomeTable
    scenario: Scenario
    passes_QW: Bools
    """What the verifier says of each answer."""
    bound_QW: Floats
    """USD that a try cannot exceed: what a budget reserves."""

    @staticmethod
    def of(
        table: OutcomeTable,
        predictor: OutcomePredictor,
        scenario: Scenario,
        support: NeighbourWeights | None = None,
    ) -> QueryTable:
        """`support` is that of the training table itself, where each row leaves itself out.

        The predictor may know more workers than the table, or fewer: columns are matched by name,
        and a worker that the table does not have cannot be run. Raises `ConfigError` when the
        predictor lacks one.
        """
        lost = set(table.names) - {worker.name for worker in predictor.workers}
        if lost:
            raise ConfigError(
                f"the predictor knows no worker {min(lost)!r}; fit it on a table that has it"
            )
        able = {kind: able_workers(table.workers, kind) for kind in set(table.types)}
        legal_QW = np.array([able[kind] for kind in table.types]) & table.known_QW
        if not legal_QW.any(axis=1).all():
            row = int(np.flatnonzero(~legal_QW.any(axis=1))[0])
            raise ConfigError(
                f"no worker can do query {table.ids[row]!r} of type {table.types[row]!r}; give one "
                "that type among its capabilities, or leave the query out"
            )
        support = support or predictor.support(table.instructions, table.types)
        known = QueryForecast.by(
            predictor, support, table.tokens_in_Q, table.workers, legal_QW, scenario.max_tries
        )
        rates = scenario.rates
        threshold_QW = np.where(table.right_QW, rates.passes_right, rates.passes_wrong)
        return QueryTable(
            **{each.name: getattr(known, each.name) for each in fields(known)},
            table=table,
            scenario=scenario,
            passes_QW=table.draws_QW < threshold_QW,
            bound_QW=table.bounds_QW,
        )


@dataclass(frozen=True, slots=True)
class WorkflowBatch:
    """A batch of workflows over one board."""

    query_BN: Ints
    """Rows of the table; -1 where there is no node."""
    parents_BNN: Bools
    """`[b, i, j]`: node j waits for node i. Parents come first: i < j."""
    budget_B: Floats
    """USD; infinite without one."""
    deadline_B: Floats
    """Seconds; infinite without one."""
    cost_ref_B: Floats
    """Expected USD of the most expensive legal single-worker plan."""
    latency_ref_B: Floats
    """Expected seconds of the slowest legal single-worker plan."""
    group_B: Ints
    """The group of queries that the workflow is made of; workflows of two groups share none."""

    def __len__(self) -> int:
        return len(self.query_BN)

    @property
    def exists_BN(self) -> Bools:
        """Where there is a node."""
        return self.query_BN >= 0

    def take(self, places: Ints) -> WorkflowBatch:
        """Some of the workflows."""
        return WorkflowBatch(*(getattr(self, name)[places] for name in self.__dataclass_fields__))

    @staticmethod
    def whole(known: QueryForecast, parents_NN: Bools) -> WorkflowBatch:
        """The workflow of all queries of a forecast, without limits."""
        query_BN, parents_BNN = np.arange(len(parents_NN))[None], parents_NN[None]
        cost_BW, path_BW = _single_worker(known, query_BN, parents_BNN)
        most = _most(cost_BW), _most(path_BW)
        free_B, group_B = np.array([np.inf]), np.zeros(1, dtype=np.int64)
        return WorkflowBatch(query_BN, parents_BNN, free_B, free_B, *most, group_B)

    @staticmethod
    def draw(
        query_table: QueryTable, count: int, seeds: SeedTree, groups: int = 1
    ) -> WorkflowBatch:
        """`count` workflows. The same seed and table give the same ones, whatever the predictor.

        `groups` cuts the queries into as many parts of one size, at most one for each two
        workflows or `nodes` queries, and each workflow takes its queries from one of them.
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
        cost_BW, path_BW = _single_worker(query_table, query_BN, parents_BNN)

        def limits(base_BW: Floats, share: float, factors: tuple[float, float]) -> Floats:
            drawn_B = rng.uniform(*factors, count) * np.median(base_BW, axis=1)
            return np.where(rng.random(count) < share, drawn_B, np.inf)

        budget_B = limits(cost_BW, scenario.budgets, scenario.budget_range)
        deadline_B = limits(path_BW, scenario.deadlines, scenario.deadline_range)
        most = _most(cost_BW), _most(path_BW)
        return WorkflowBatch(query_BN, parents_BNN, budget_B, deadline_B, *most, group_B)


def _most(known_BW: Floats) -> Floats:
    """The most of each row; 1 where all are 0, as a free pool still has a reward."""
    most_B = known_BW.max(axis=1)
    return np.where(most_B > 0, most_B, 1.0)


def _single_worker(
    known: QueryForecast, query_BN: Ints, parents_BNN: Bools
) -> tuple[Floats, Floats]:
    """Expected USD and critical path of each worker alone, [B, W].

    A node that a worker cannot do is done by whichever is most expensive, or slowest, there. Nodes
    without any legal worker count nothing: they are padding.
    """
    legal_BNW = known.legal_QW[query_BN] & (query_BN >= 0)[:, :, None]
    exists_BN: Bools = np.any(legal_BNW, axis=2)
    mine = [
        np.where(legal_BNW, x_BNW, np.where(legal_BNW, x_BNW, -np.inf).max(axis=2, keepdims=True))
        for x_BNW in (known.cost_QW[query_BN], known.seconds_QW[query_BN])
    ]
    used_BNW, lasts_BNW = (np.where(exists_BN[:, :, None], x_BNW, 0.0) for x_BNW in mine)
    end_BNW = np.zeros_like(lasts_BNW)
    for j in range(lasts_BNW.shape[1]):
        before_BNW = np.where(parents_BNN[:, :, j, None], end_BNW, 0.0)
        end_BNW[:, j] = before_BNW.max(axis=1) + lasts_BNW[:, j]
    return used_BNW.sum(axis=1), end_BNW.max(axis=1)
