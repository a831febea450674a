"""Replayed workers: real outcomes from a table, looked up instead of asked for.

A node whose `key` is a row of the table gets the recorded result of each worker on that query, and
so does one whose description, or the whole instruction, is the text of a row. Any other gets a row
of its type, or of any type where none has it, drawn by its place in the workflow; `unrelated`
counts these, so that it can be said. Nothing is generated,
so outputs only name the row, and every answer is stamped as a mock. `data/outcomes.py` reads
tables.
"""

from __future__ import annotations

import asyncio
import math

import numpy as np

from tutelage.errors import ConfigError, counted
from tutelage.orchestration.data.outcomes import RIGHT, OutcomeTable
from tutelage.orchestration.execution.workers import (
    Subtask,
    Worker,
    WorkerAnswer,
    WorkerError,
    WorkerEstimate,
)
from tutelage.orchestration.plan.dag import Plan
from tutelage.tasks.overlap import content_of


class ReplayPool:
    """A `WorkerPool` over a table of outcomes."""

    name = "replay"
    mock = True

    def __init__(self, table: OutcomeTable) -> None:
        """Raises `ConfigError` for an empty table."""
        if not len(table):
            raise ConfigError("the table of outcomes has no rows; give one with at least one query")
        self.workers = table.workers
        self._table = table
        self._rows = {name: i for i, name in enumerate(table.ids)}
        self._texts = {content_of(text): i for i, text in enumerate(table.instructions)}
        self._columns = {worker.name: j for j, worker in enumerate(table.workers)}
        kinds = np.array(table.types)
        self._by_type = {kind: np.flatnonzero(kinds == kind).tolist() for kind in set(table.types)}
        # What a worker costs and takes on average says nothing about this query's outcome.
        known = table.known_QW
        self._cost = _means(table.costs_QW, known)
        self._seconds = _means(table.seconds_QW, known)
        self._bounds = table.bounds_QW

    def row(self, work: Subtask) -> int:
        """The row of a work. Raises `ConfigError` for a key that the table does not have."""
        if work.key:
            if work.key not in self._rows:
                raise ConfigError(
                    f"node {work.node}: the table of outcomes has no row {work.key!r}; it has "
                    f"{counted(len(self._rows), 'row')}, such as {self._table.ids[0]!r}"
                )
            return self._rows[work.key]
        own = self._same(work.description, work.instruction)
        if own is not None:
            return own
        rows = self._by_type.get(work.type) or range(len(self._table))
        return work.seeds.child("row").python().choice(rows)

    def _same(self, *texts: str) -> int | None:
        """The row that asks for one of these, word for word."""
        marks = (content_of(text) for text in texts if text)
        return next((self._texts[mark] for mark in marks if mark in self._texts), None)

    def unrelated(self, plan: Plan) -> int:
        """How many nodes of a plan get the row of another query."""
        return sum(self._same(n.description, plan.instruction) is None for n in plan.nodes)

    async def execute(self, worker: Worker, work: Subtask) -> WorkerAnswer:
        """The recorded outcome, after the seconds that it took."""
        row, column = place = self.row(work), self._columns[worker.name]
        table = self._table
        score, tokens_out = float(table.scores_QW[place]), float(table.tokens_out_QW[place])
        if math.isnan(score):
            message = f"nobody recorded {worker.name!r} on {table.ids[row]!r}"
            return WorkerAnswer(error=WorkerError("refused", message), mock=True, correct=False)
        seconds = float(table.seconds_QW[place])
        await asyncio.sleep(seconds)
        return WorkerAnswer(
            output=table.replayed_answer(row, column),
            cost=float(table.costs_QW[place]),
            seconds=seconds,
            tokens_in=round(float(table.tokens_in_Q[row])),
            tokens_out=0 if math.isnan(tokens_out) else round(tokens_out),
            mock=True,
            correct=score >= RIGHT,
            score=score,
        )

    def knows(self, worker: Worker, work: Subtask) -> bool:
        """Whether the recorded answer is right; False where nobody recorded one."""
        return bool(self._table.right_QW[self.row(work), self._columns[worker.name]])

    def estimate(self, worker: Worker, work: Subtask) -> WorkerEstimate:
        """The worker's averages over the table; the bound is that of the table for this row."""
        column = self._columns[worker.name]
        return WorkerEstimate(
            cost=float(self._cost[column]),
            seconds=float(self._seconds[column]),
            bound=float(self._bounds[self.row(work), column]),
        )

    async def close(self) -> None:
        """Nothing is open."""


def _means(values_QW: np.ndarray, known_QW: np.ndarray) -> np.ndarray:
    """By worker, over the queries it was asked; 0 if there are none."""
    count_W = known_QW.sum(axis=0)
    sum_W = np.where(known_QW, values_QW, 0.0).sum(axis=0)
    return np.where(count_W > 0, sum_W / np.maximum(1, count_W), 0.0)
