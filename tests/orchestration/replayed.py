"""Replayed workers: real outcomes from a table, looked up instead of asked for.

Nothing is generated, so outputs only name the row, and every answer is stamped as a mock.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

import numpy as np

from tutelage.orchestration.data.outcomes import RIGHT, OutcomeTable
from tutelage.orchestration.execution.workers import (
    Subtask,
    Worker,
    WorkerAnswer,
    WorkerError,
    WorkerEstimate,
)


class ReplayPool:
    """A `WorkerPool` over a table of outcomes."""

    name = "replay"
    mock = True

    def __init__(
        self, table: OutcomeTable, rows: Mapping[tuple[str, int], int] | None = None
    ) -> None:
        """`rows` are those of nodes, by the instruction of their plan and their number; the others
        get one of their type, drawn by their place in the workflow."""
        self.workers = table.workers
        self._table, self._rows = table, dict(rows or {})
        self._columns = {worker.name: j for j, worker in enumerate(table.workers)}
        kinds = np.array(table.types)
        self._by_type = {kind: np.flatnonzero(kinds == kind).tolist() for kind in set(table.types)}
        # What a worker costs and takes on average says nothing about this query's outcome.
        known = table.known_QW
        self._cost = _means(table.costs_QW, known)
        self._seconds = _means(table.seconds_QW, known)
        self._bounds = table.bounds_QW

    def row(self, work: Subtask) -> int:
        """The row of a work."""
        if (own := self._rows.get((work.instruction, work.node))) is not None:
            return own
        rows = self._by_type.get(work.type) or range(len(self._table))
        return work.seeds.child("row").python().choice(rows)

    async def execute(self, worker: Worker, work: Subtask) -> WorkerAnswer:
        """The recorded outcome, after the seconds that it took."""
        row = self.row(work)
        place = row, self._columns[worker.name]
        table = self._table
        score, tokens_out = float(table.scores_QW[place]), float(table.tokens_out_QW[place])
        if math.isnan(score):
            message = f"nobody recorded {worker.name!r} on {table.ids[row]!r}"
            return WorkerAnswer(error=WorkerError("refused", message), mock=True, correct=False)
        said = "right" if score >= RIGHT else "wrong"
        seconds = float(table.seconds_QW[place])
        await asyncio.sleep(seconds)
        return WorkerAnswer(
            output=f"[replayed {table.ids[row]} by {worker.name}: {said}]",
            cost=float(table.costs_QW[place]),
            seconds=seconds,
            tokens_in=round(float(table.tokens_in_Q[row])),
            tokens_out=0 if math.isnan(tokens_out) else round(tokens_out),
            mock=True,
            correct=score >= RIGHT,
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
