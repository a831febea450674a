"""Outcome tables: correctness, cost and latency of each worker on each query.

A table is read from a file in the usual format of router data sets (a row per query with `scores`
by worker) and a file of prices, or simulated with simulated workers on generated requests. Policy
and predictor are trained on tables only, so training makes no model calls. Missing values of a file
are estimated: cost from prices and tokens, seconds from the size of the model.
`routing/predictor.py` is fitted on a table, `routing/simulator.py` builds workflows from it.

Legend: Q queries, W workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from tutelage.config.fields import NonNegative, Share
from tutelage.errors import DataError
from tutelage.orchestration.data.rows import (
    AsText,
    FileRecord,
    read_as,
    read_json,
    read_rows,
)
from tutelage.orchestration.data.synthetic import builtin_graph, generate
from tutelage.orchestration.execution.pools.simulated import SimulatedPool
from tutelage.orchestration.execution.worker_files import classic, tool_kind
from tutelage.orchestration.execution.workers import (
    Latency,
    Subtask,
    Worker,
    check_workers,
    prompt_tokens,
)
from tutelage.seeds import SeedTree
from tutelage.tools.loading import hint

Floats = NDArray[np.float64]

RIGHT = 0.5
"""Minimum score of a correct answer."""
TOKENS_OUT = 250.0
"""Default number of tokens of an answer if the table does not contain it."""
SPREAD = 0.25
"""Standard deviation of the logarithm of estimated seconds."""
VAL, TEST = 0.15, 0.25
"""Shares of a table used for validation and test."""
_WORDS = ("ids", "instructions", "types")
_OUTCOMES = ("scores_QW", "costs_QW", "seconds_QW", "tokens_out_QW", "draws_QW")


@dataclass(frozen=True, slots=True)
class OutcomeTable:
    """Table of the results of each worker on each query."""

    ids: tuple[str, ...]
    instructions: tuple[str, ...]
    types: tuple[str, ...]
    workers: tuple[Worker, ...]
    scores_QW: Floats
    """Scores from 0 to 1; NaN if the worker was not called."""
    costs_QW: Floats
    """Cost in USD."""
    seconds_QW: Floats
    tokens_in_Q: Floats
    tokens_out_QW: Floats
    """NaN if the file has the cost but not the tokens."""
    draws_QW: Floats
    """Uniform random number of each outcome, from the seed; decides a noisy verifier's verdict."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def right_QW(self) -> NDArray[np.bool_]:
        """True if the answer is correct, False if it is wrong or the worker was not called."""
        return np.nan_to_num(self.scores_QW, nan=0.0) >= RIGHT

    @property
    def known_QW(self) -> NDArray[np.bool_]:
        """True if the worker was called."""
        return ~np.isnan(self.scores_QW)

    @property
    def bounds_QW(self) -> Floats:
        """Maximum cost of a call in USD: price of the prompt and of the longest answer.

        If the costs of a worker do not match its prices, the cost of its most expensive row.
        """
        price_in_W, price_out_W = _prices(self.workers)
        prompt_QW = self.tokens_in_Q[:, None] * price_in_W / 1e6
        answer_QW = self.tokens_out_QW * price_out_W / 1e6
        known_QW = ~np.isnan(self.costs_QW)
        priced_W = (
            np.isclose(prompt_QW + answer_QW, self.costs_QW, rtol=1e-9, atol=0.0) | ~known_QW
        ).all(axis=0)
        longest_W = np.max(np.nan_to_num(answer_QW), axis=0)
        dearest_W = np.max(np.nan_to_num(self.costs_QW), axis=0)
        return np.where(priced_W, prompt_QW + longest_W, dearest_W)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the workers, in the order of the columns."""
        return tuple(worker.name for worker in self.workers)

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> OutcomeTable:
        """Return a table with these rows, in this order."""
        places = np.asarray(rows, dtype=np.int64)
        words = {k: tuple(getattr(self, k)[i] for i in places) for k in _WORDS}
        numbers = {k: getattr(self, k)[places] for k in ("tokens_in_Q", *_OUTCOMES)}
        return replace(self, **words, **numbers)

    def select_workers(self, names: Sequence[str]) -> OutcomeTable:
        """Return a table with these workers only. Raises `DataError` for an unknown name."""
        if lost := [name for name in names if name not in self.names]:
            raise DataError(f"unknown worker {lost[0]!r}; the table has {list(self.names)!r}")
        columns = [self.names.index(name) for name in names]
        numbers = {k: getattr(self, k)[:, columns] for k in _OUTCOMES}
        return replace(self, workers=tuple(self.workers[j] for j in columns), **numbers)

    def split(
        self, seeds: SeedTree, *, held_out: bool = True
    ) -> tuple[OutcomeTable, OutcomeTable, OutcomeTable]:
        """Split the table into train, validation and test tables, stratified by type.

        With `held_out=False` the test table is empty and the ratio of train to validation is kept.
        Raises `DataError` if a part would be empty.
        """
        shares = (TEST, TEST + VAL) if held_out else (0.0, VAL / (1 - TEST))
        parts: tuple[list[int], list[int], list[int]] = ([], [], [])
        for kind in sorted(set(self.types)):
            rows = np.flatnonzero(np.array(self.types) == kind)
            order = seeds.child("split", kind).numpy().permutation(len(rows))
            cuts = [round(share * len(rows)) for share in shares]
            for part, cut in zip(reversed(parts), np.split(rows[order], cuts), strict=True):
                part += cut.tolist()
        if not all(parts if held_out else parts[:2]):
            raise DataError(
                f"too few queries in the table ({len(self)}) to split into train, validation and "
                "test; use at least 20 of each type and start again"
            )
        train, val, test = (self.take(sorted(part)) for part in parts)
        return train, val, test


class _Query(FileRecord):
    """Row of an outcome file: a query and the results of the workers."""

    id: AsText | None = None
    instruction: Annotated[str, Field(min_length=1)]
    task: AsText = "task"
    scores: dict[str, Share] = Field(min_length=1)
    cost: Mapping[str, NonNegative] = {}
    latency: Mapping[str, NonNegative] = {}


class _Price(FileRecord):
    """Entry of a model in a price file."""

    input_price: NonNegative
    output_price: NonNegative
    size: Annotated[str, Field(pattern=r"^\d+(\.\d+)?[bB]$")] = "8B"
    """Number of parameters in billions, such as "7B"."""
    latency_seconds: NonNegative | None = None
    seconds_per_token: NonNegative | None = None
    capabilities: tuple[AsText, ...] = ("*",)

    def to_worker(self, name: str) -> Worker:
        """Convert the entry to a worker. A missing latency is estimated."""
        # Typical latency of a served model of this size.
        latency = Latency(0.2, SPREAD, 0.004 + 0.0003 * float(self.size[:-1]))
        if self.latency_seconds is not None or self.seconds_per_token is not None:
            latency = Latency(self.latency_seconds or 0.0, SPREAD, self.seconds_per_token or 0.0)
        return Worker(name, self.capabilities, self.input_price, self.output_price, latency)


_ROW = TypeAdapter(_Query)
_PRICES = TypeAdapter(dict[str, _Price])


def read_outcomes(
    path: str | Path, models: str | Path, seeds: SeedTree | None = None
) -> OutcomeTable:
    """Read a table of outcomes, and the prices of its workers.

    A row has `instruction` (text), `scores` (by worker, 0 to 1) and optionally `id`, `task`, `cost`
    (USD by worker), `latency` (seconds by worker). The file of models is an object that maps names
    to `input_price` and `output_price` (USD per million tokens) and optionally `size` (such as
    "7B"), `latency_seconds`, `seconds_per_token`, `capabilities`. Raises `DataError` with the file,
    the row and the field.
    """
    rows = [
        read_as(_ROW, row, f"{str(path)!r}, row {index}")
        for index, row in enumerate(read_rows(path))
    ]
    names = list(dict.fromkeys(name for row in rows for name in row.scores))
    prices = read_as(_PRICES, read_json(models), repr(str(models)))
    if lost := [name for name in names if name not in prices]:
        raise DataError(f"{str(models)!r} has no price for {lost[0]!r}{hint(lost[0], prices)}")
    workers = check_workers([prices[name].to_worker(name) for name in names])
    tokens_in_Q = np.array([float(prompt_tokens(row.instruction)) for row in rows])
    scores_QW, cost_QW, latency_QW = (
        np.array([[getattr(row, key).get(name, math.nan) for name in names] for row in rows])
        for key in ("scores", "cost", "latency")
    )
    unpriced_QW = np.isnan(cost_QW)
    price_in_W, price_out_W = _prices(workers)
    priced_QW = (tokens_in_Q[:, None] * price_in_W + TOKENS_OUT * price_out_W) / 1e6
    seconds_QW, draws_QW = np.empty_like(cost_QW), np.empty_like(cost_QW)
    for j, worker in enumerate(workers):
        # Separate seed for each worker, so that adding workers does not change existing draws.
        rng = (seeds or SeedTree(0)).child("outcomes", worker.name).numpy()
        draws_QW[:, j] = rng.random(len(rows))
        median = worker.latency.seconds + worker.latency.per_token * TOKENS_OUT
        seconds_QW[:, j] = median * np.exp(worker.latency.spread * rng.standard_normal(len(rows)))
    return OutcomeTable(
        ids=tuple(str(i) if row.id is None else row.id for i, row in enumerate(rows)),
        instructions=tuple(row.instruction for row in rows),
        types=tuple(row.task for row in rows),
        workers=workers,
        scores_QW=scores_QW,
        costs_QW=np.where(unpriced_QW, priced_QW, cost_QW),
        seconds_QW=np.where(np.isnan(latency_QW), seconds_QW, latency_QW),
        tokens_in_Q=tokens_in_Q,
        tokens_out_QW=np.where(unpriced_QW, TOKENS_OUT, np.nan),
        draws_QW=draws_QW,
    )


def read_tables(
    outcomes: str | Path, models: str | Path, test: str | Path | None, seeds: SeedTree
) -> tuple[OutcomeTable, OutcomeTable | None]:
    """Read the training table and the held-out table (None if `test` is None).

    Raises `DataError` as `read_outcomes` does, if a worker is missing in the held-out outcomes, and
    if the table is too small to be split.
    """
    table, held = read_outcomes(outcomes, models, seeds), None
    if test is not None:
        held = read_outcomes(test, models, seeds.child("test-outcomes"))
        held = held.select_workers(table.names)
    table.split(seeds, held_out=held is None)
    return table, held


def estimate_skills(table: OutcomeTable) -> list[Worker]:
    """Return the workers. Missing `skills` are set to the accuracy in the table, by type."""
    kinds, known_QW = np.array(table.types), table.known_QW
    found: list[Worker] = []
    for j, worker in enumerate(table.workers):
        places = {"*": np.ones(len(table), dtype=np.bool_)} | {k: kinds == k for k in set(kinds)}
        shares = {
            str(kind): round(float(table.right_QW[rows & known_QW[:, j], j].mean()), 4)
            for kind, rows in sorted(places.items())
            if (rows & known_QW[:, j]).any()
        }
        found.append(worker if worker.skills else replace(worker, skills=shares))
    return found


def _prices(workers: Sequence[Worker]) -> Floats:
    return np.array([(worker.price_in, worker.price_out) for worker in workers]).T


def simulate_outcomes(
    count: int, seeds: SeedTree, workers: Sequence[Worker] | None = None
) -> OutcomeTable:
    """Simulate the outcomes of workers (default: preset `classic`) on `count` generated requests
    of one built-in tool each. Answers come from a `SimulatedPool`, as in an execution with
    simulated workers, so a router trained on the table fits such executions.
    """
    graph = builtin_graph()
    requests = generate(graph, count, seeds.child("requests"), max_nodes=1)
    pool = SimulatedPool(workers or classic(), errors=0.0)
    rows: list[list[tuple[float, float, float, float]]] = []
    for number, workflow in enumerate(requests):
        tool = graph.catalog[workflow.tools[0]]
        work = Subtask(
            0,
            tool.name,
            tool_kind(tool.name, tool.description, graph.catalog),
            prompt=workflow.instruction,
            seeds=seeds.child("simulated-outcomes", number),
        )
        rows.append([])
        for worker in pool.workers:
            if worker.supports(*work.labels):
                answer = pool.draw(worker, work)
                numbers = (float(answer.correct or False), answer.cost, answer.seconds)
                rows[-1].append((*numbers, float(answer.tokens_out)))
            else:
                expected = pool.estimate(worker, work)
                rows[-1].append((math.nan, expected.cost, expected.seconds, TOKENS_OUT))
    scores_QW, costs_QW, seconds_QW, tokens_out_QW = np.moveaxis(np.array(rows), 2, 0)
    texts = tuple(workflow.instruction for workflow in requests)
    return OutcomeTable(
        ids=tuple(f"sim-{number}" for number in range(len(requests))),
        instructions=texts,
        types=tuple(workflow.tools[0] for workflow in requests),
        workers=pool.workers,
        scores_QW=scores_QW,
        costs_QW=costs_QW,
        seconds_QW=seconds_QW,
        tokens_in_Q=np.array([float(prompt_tokens(text)) for text in texts]),
        tokens_out_QW=tokens_out_QW,
        draws_QW=seeds.child("draws").numpy().random(scores_QW.shape),
    )
