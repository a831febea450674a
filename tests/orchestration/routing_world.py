"""Helpers of the routing tests: a small world whose outcomes can be told from words, made once.

The environment is a fast copy of what the executor does on recorded outcomes. `as_plan` turns a
workflow back into a `Plan` whose nodes name their rows, so that both can run it with the same
verifier and be compared decision by decision; `ReplayPool` answers.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tutelage.orchestration.data.outcomes import RIGHT, SPREAD, OutcomeTable
from tutelage.orchestration.evaluation.rewards import ExecutionResult
from tutelage.orchestration.execution.executor import ExecutorSettings
from tutelage.orchestration.execution.workers import (
    Latency,
    Subtask,
    Verification,
    Worker,
    WorkerAnswer,
    WorkerEstimate,
)
from tutelage.orchestration.plan.dag import Node, Plan
from tutelage.orchestration.routing.phase2 import Phase2Data
from tutelage.orchestration.routing.predictor import PASSES_RIGHT, PASSES_WRONG
from tutelage.orchestration.routing.settings import Phase2Settings
from tutelage.orchestration.routing.simulator import (
    Scenario,
    WorkflowBatch,
    WorkflowSimulator,
)
from tutelage.seeds import SeedTree

SMALL = Phase2Settings(
    num_episodes=6,
    workflows_per_episode=16,
    episodes_per_update=1,
    validate_every=2,
    val_workflows=64,
    test_workflows=96,
    learning_rate=3e-4,
)


TYPES = (
    "summarize",
    "translate",
    "extract",
    "calculate",
    "code",
    "question",
    "classify",
    "rewrite",
)
TOPICS = 6
"""Topics of each type."""
SIZES = ((3, 0.1), (8, 0.2), (9, 0.25), (14, 0.35), (32, 0.6), (70, 0.9), (120, 1.8))
"""Billions of parameters and USD per million tokens of the simulated workers."""


def topical_outcomes(queries: int, seeds: SeedTree) -> OutcomeTable:
    """A table of `queries` rows, whose words tell type and topic.

    Every query has a type and a topic, its words come from both, and a difficulty that its topic
    and chance decide; all workers feel the same difficulty, so they fail together, as real ones do.
    Each worker has a strength, and is better at some types than at others. A worker is right when
    strength + skill - difficulty + noise > 0.
    """
    rng = seeds.child("simulated-outcomes").numpy()
    workers = tuple(
        Worker(f"sim-{b}b", ("*",), price, price, Latency(0.2, SPREAD, 0.004 + 0.0003 * b))
        for b, price in SIZES
    )
    strength_W = 0.55 * np.log(np.array([size for size, _ in SIZES]) / 10.0)
    skill_TW = 0.8 * rng.standard_normal((len(TYPES), len(workers)))
    topic_skill_TPW = 0.4 * rng.standard_normal((len(TYPES), TOPICS, len(workers)))
    topic_TP = 1.2 * rng.standard_normal((len(TYPES), TOPICS))
    type_Q = np.arange(queries) % len(TYPES)
    topic_Q = rng.integers(0, TOPICS, queries)
    difficulty_Q = topic_TP[type_Q, topic_Q] + 0.8 * rng.standard_normal(queries)
    margin_QW = strength_W + skill_TW[type_Q] + topic_skill_TPW[type_Q, topic_Q]
    noise_QW = rng.logistic(0.0, 0.5, (queries, len(workers)))
    right_QW = margin_QW - difficulty_Q[:, None] + noise_QW > 0
    words = [_words(TYPES[t], int(p), float(d), rng)
             for t, p, d in zip(type_Q, topic_Q, difficulty_Q, strict=True)]  # fmt: skip
    tokens_in_Q = np.array([len(text) / 4 for text in words]) + rng.gamma(2.0, 100.0, queries)
    tokens_out_Q = rng.gamma(4.0, 60.0, queries) * np.exp(0.15 * difficulty_Q)
    tokens_out_QW = tokens_out_Q[:, None] * np.exp(0.1 * rng.standard_normal(right_QW.shape))
    prices_W = np.array([worker.price_in for worker in workers])
    per_token_W = np.array([worker.latency.per_token for worker in workers])
    jitter_QW = np.exp(SPREAD * rng.standard_normal(right_QW.shape))
    return OutcomeTable(
        ids=tuple(f"sim-{i}" for i in range(queries)),
        instructions=tuple(words),
        types=tuple(TYPES[t] for t in type_Q),
        workers=workers,
        scores_QW=right_QW.astype(np.float64),
        costs_QW=(tokens_in_Q[:, None] + tokens_out_QW) * prices_W / 1e6,
        seconds_QW=(0.2 + tokens_out_QW * per_token_W) * jitter_QW,
        tokens_in_Q=tokens_in_Q,
        tokens_out_QW=tokens_out_QW,
        draws_QW=rng.random(right_QW.shape),
    )


def _words(kind: str, topic: int, difficulty: float, rng: np.random.Generator) -> str:
    """Words of the type, of the topic, and more clauses the harder it is."""
    clauses = 2 + int(np.clip(round(difficulty + 2), 0, 5))
    parts = [f"{kind} the {kind}{topic}x{rng.integers(0, 30)} of topic {kind}{topic}"]
    parts += [f"with detail {kind}{topic}y{rng.integers(0, 30)}" for _ in range(clauses)]
    return " ".join(parts)


@functools.cache
def table(seed: int = 0) -> OutcomeTable:
    """360 simulated queries whose prompts are as long as their text, as the router counts."""
    made = topical_outcomes(360, SeedTree(seed))
    tokens_in_Q = np.array([float(-(-len(text) // 4)) for text in made.instructions])
    prices_W = np.array([worker.price_in for worker in made.workers])
    costs_QW = (tokens_in_Q[:, None] + made.tokens_out_QW) * prices_W / 1e6
    return replace(made, tokens_in_Q=tokens_in_Q, costs_QW=costs_QW)


@functools.cache
def world(scenario: Scenario | None = None) -> Phase2Data:
    """Splits, predictor and boards of that table."""
    return Phase2Data.from_table(
        table(), scenario or Scenario(), SMALL, SeedTree(0).child("phase2")
    )


class ReplayPool:
    """A `WorkerPool` over a table of outcomes: nothing is generated, and outputs name the row."""

    name = "replay"
    mock = True

    def __init__(self, table: OutcomeTable, rows: Mapping[tuple[str, int], int]) -> None:
        """`rows` are those of nodes, by the instruction of their plan and their number."""
        self.workers = table.workers
        self._table, self._rows = table, rows

    async def execute(self, worker: Worker, work: Subtask) -> WorkerAnswer:
        """The recorded outcome, after the seconds that it took."""
        table, row = self._table, self._rows[work.instruction, work.node]
        place = row, table.names.index(worker.name)
        seconds = float(table.seconds_QW[place])
        await asyncio.sleep(seconds)
        return WorkerAnswer(
            output=f"{table.ids[row]} by {worker.name}",
            cost=float(table.costs_QW[place]),
            seconds=seconds,
            tokens_in=round(float(table.tokens_in_Q[row])),
            tokens_out=round(float(table.tokens_out_QW[place])),
            mock=True,
            correct=bool(table.scores_QW[place] >= RIGHT),
        )

    def estimate(self, worker: Worker, work: Subtask) -> WorkerEstimate:
        """The worker's averages over the table; the bound is that of the table for this row."""
        table, row = self._table, self._rows[work.instruction, work.node]
        column = table.names.index(worker.name)
        return WorkerEstimate(
            cost=float(table.costs_QW[:, column].mean()),
            seconds=float(table.seconds_QW[:, column].mean()),
            bound=float(table.bounds_QW[row, column]),
        )

    async def close(self) -> None:
        """Nothing is open."""


class RecordedVerifier:
    """Errs at stated rates, on the same answers every time: the draws are the table's."""

    def __init__(self, table: OutcomeTable) -> None:
        self._table = table

    async def check(self, work: Subtask, answer: WorkerAnswer) -> Verification:
        row, worker = answer.output.split(" by ")
        draw = self._table.draws_QW[self._table.ids.index(row), self._table.names.index(worker)]
        return Verification(bool(draw < (PASSES_RIGHT if answer.correct else PASSES_WRONG)))


def as_plan(
    table: OutcomeTable, flows: WorkflowBatch, b: int
) -> tuple[Plan, dict[tuple[str, int], int]]:
    """Workflow `b` as a plan, and the rows that its nodes stand for, as `ReplayPool` takes them."""
    rows = [int(q) for q in flows.query_BN[b] if q >= 0]
    nodes = tuple(
        Node(
            tool=table.types[row],
            after=tuple(i for i in range(len(rows)) if flows.parents_BNN[b, i, j]),
            description=table.instructions[row],
        )
        for j, row in enumerate(rows)
    )
    plan = Plan(f"workflow {b}", nodes)
    return plan, {(plan.instruction, j): row for j, row in enumerate(rows)}


def as_settings(scenario: Scenario, flows: WorkflowBatch, b: int) -> ExecutorSettings:
    """How the executor has to run it to keep the environment's rules."""
    deadline = float(flows.deadline_B[b])
    return ExecutorSettings(
        max_tries=scenario.max_tries,
        retries=0,
        try_timeout=None,
        deadline=deadline if deadline != float("inf") else None,
        on_failure="fail_fast",
    )


def result_of(simulator: WorkflowSimulator, b: int) -> ExecutionResult:
    """Workflow `b` of a simulation that is over, as rewards read it."""
    kept = (simulator.kept_BN[b] >= 0) & simulator.exists_BN[b]
    return ExecutionResult(
        bool(simulator.success_B[b]),
        {str(k): "kept" for k in range(int(kept.sum()))},
        float(simulator.cost_B[b]),
        1000.0 * float(simulator.now_B[b]),
        float(simulator.passed_BN[b].sum() / simulator.size_B[b]),
    )
