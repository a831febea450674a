"""Tables of outcomes: which worker got which query right, at what cost and in what time.

A table is read from the form that router data sets have (a row per query with `scores` by worker)
beside a file of prices, or simulated: the simulated workers of an execution, on requests of the
generator. All that a policy or a predictor learns from comes out of such a table, so training needs
no call to a model. What a file leaves out is filled by a stated model: cost from prices and tokens,
seconds from the size of the model. `routing/predictor.py` learns from a table,
`routing/simulator.py` makes workflows.

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
    nearest,
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

Floats = NDArray[np.float64]

RIGHT = 0.5
"""A score of at least this counts as right."""
TOKENS_OUT = 250.0
"""Tokens of an answer where a table does not say."""
SPREAD = 0.25
"""Standard deviation of the logarithm of stated seconds."""
VAL, TEST = 0.15, 0.25
"""Shares of a table that are held out."""
_WORDS = ("ids", "instructions", "types")
_OUTCOMES = ("scores_QW", "costs_QW", "seconds_QW", "tokens_out_QW", "draws_QW")


@dataclass(frozen=True, slots=True)
class OutcomeTable:
    """The result of each worker on each query."""

    ids: tuple[str, ...]
    instructions: tuple[str, ...]
    types: tuple[str, ...]
    workers: tuple[Worker, ...]
    scores_QW: Floats
    """0 to 1; NaN where the worker was not asked."""
    costs_QW: Floats
    """USD."""
    seconds_QW: Floats
    tokens_in_Q: Floats
    tokens_out_QW: Floats
    """NaN where costs were given and tokens were not."""
    draws_QW: Floats
    """One uniform number for each outcome, from the seed: what a noisy verifier decides by."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def right_QW(self) -> NDArray[np.bool_]:
        """Whether the answer is right; False where the worker was not asked."""
        return np.nan_to_num(self.scores_QW, nan=0.0) >= RIGHT

    @property
    def known_QW(self) -> NDArray[np.bool_]:
        """Where the worker was asked."""
        return ~np.isnan(self.scores_QW)

    @property
    def bounds_QW(self) -> Floats:
        """USD that asking cannot exceed, known before: the prompt's price and the longest answer's.

        Where costs are not those of tokens and prices, the worker's most expensive row.
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
        """The workers' names, in the order of the columns."""
        return tuple(worker.name for worker in self.workers)

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> OutcomeTable:
        """The table of some rows, in that order."""
        places = np.asarray(rows, dtype=np.int64)
        words = {k: tuple(getattr(self, k)[i] for i in places) for k in _WORDS}
        numbers = {k: getattr(self, k)[places] for k in ("tokens_in_Q", *_OUTCOMES)}
        return replace(self, **words, **numbers)

    def only(self, names: Sequence[str]) -> OutcomeTable:
        """The table of some workers. Raises `DataError` for a name that it does not have."""
        if lost := [name for name in names if name not in self.names]:
            raise DataError(f"the table has no worker {lost[0]!r}; it has {list(self.names)!r}")
        columns = [self.names.index(name) for name in names]
        numbers = {k: getattr(self, k)[:, columns] for k in _OUTCOMES}
        return replace(self, workers=tuple(self.workers[j] for j in columns), **numbers)

    def split(
        self, seeds: SeedTree, *, held_out: bool = True
    ) -> tuple[OutcomeTable, OutcomeTable, OutcomeTable]:
        """Train, validation and test rows, cut by type, so that each part has each type's share.

        Without `held_out` there are no test rows, and the others keep their proportion. Raises
        `DataError` when a part would be empty.
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
                f"the table has too few queries ({len(self)}) to split into train, validation and "
                "test; give at least 20 queries of each type (with --workers by --num-tasks), and "
                "begin again"
            )
        train, val, test = (self.take(sorted(part)) for part in parts)
        return train, val, test


class _Query(FileRecord):
    """One query of a file: the result of each worker on it."""

    id: AsText | None = None
    instruction: Annotated[str, Field(min_length=1)]
    task: AsText = "task"
    scores: dict[str, Share] = Field(min_length=1)
    cost: Mapping[str, NonNegative] = {}
    latency: Mapping[str, NonNegative] = {}


class _Price(FileRecord):
    """One model of a file of prices."""

    input_price: NonNegative
    output_price: NonNegative
    size: Annotated[str, Field(pattern=r"^\d+(\.\d+)?[bB]$")] = "8B"
    """Billions of parameters."""
    latency_seconds: NonNegative | None = None
    seconds_per_token: NonNegative | None = None
    capabilities: tuple[AsText, ...] = ("*",)

    def worker(self, name: str) -> Worker:
        """Return the worker of that name; its latency is stated where the file does not say it."""
        # About what a served model of that size shows.
        latency = Latency(0.2, SPREAD, 0.004 + 0.0003 * float(self.size[:-1]))
        if self.latency_seconds is not None or self.seconds_per_token is not None:
            latency = Latency(self.latency_seconds or 0.0, SPREAD, self.seconds_per_token or 0.0)
        return Worker(name, self.capabilities, self.input_price, self.output_price, latency)


_ROW = TypeAdapter(_Query)
_PRICES = TypeAdapter(dict[str, _Price])


def read_outcomes(
    path: str | Path, models: str | Path, seeds: SeedTree | None = None
) -> OutcomeTable:
    """Read a table of outcomes and the prices of its workers.

    A row has a text (`instruction`), `scores` (by worker, 0 to 1) and perhaps `id`, `task`, `cost`
    (USD by worker), `latency` (seconds by worker). Models are an object by name with `input_price`
    and `output_price` (USD per million tokens) and perhaps `size` (such as "7B"),
    `latency_seconds`, `seconds_per_token`, `capabilities`. Raises `DataError` with file, row and
    field.
    """
    rows = [
        read_as(_ROW, row, f"{str(path)!r}, row {index}")
        for index, row in enumerate(read_rows(path))
    ]
    names = list(dict.fromkeys(name for row in rows for name in row.scores))
    prices = read_as(_PRICES, read_json(models), repr(str(models)))
    if lost := [name for name in names if name not in prices]:
        raise DataError(f"{str(models)!r} has no price of {lost[0]!r}; {nearest(lost[0], prices)}")
    workers = check_workers([prices[name].worker(name) for name in names])
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
        # A place of its own for each worker: one that comes later changes nobody else's draws.
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
    """Return a table to learn from, and held-out outcomes of its workers where a file has some.

    Raises `DataError` as `read_outcomes` does, for held-out outcomes that lack a worker, and for a
    table that is too small to be split.
    """
    table, held = read_outcomes(outcomes, models, seeds), None
    if test is not None:
        held = read_outcomes(test, models, seeds.child("test-outcomes"))
        held = held.only(table.names)
    table.split(seeds, held_out=held is None)
    return table, held


def with_skills(table: OutcomeTable) -> list[Worker]:
    """The workers of a table; those that declare no skills get their shares of right answers."""
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
    queries: int, seeds: SeedTree, workers: Sequence[Worker] | None = None
) -> OutcomeTable:
    """Outcomes of simulated workers, by default the preset `classic`, on `queries` requests that
    one built-in tool does: those of a `SimulatedPool`, so a router that learns from them fits what
    an execution with simulated workers does.
    """
    graph = builtin_graph()
    requests = generate(graph, queries, seeds.child("requests"), max_nodes=1)
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
            if worker.can(*work.labels):
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
