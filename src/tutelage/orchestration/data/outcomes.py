"""Tables of outcomes: which worker got which query right, at what cost and in what time.

A table is read from the form that router data sets have (a row per query with `scores` by worker)
beside a file of prices, or simulated: the simulated workers of an execution, on requests of the
generator. All that a policy or a predictor learns from comes out of such a table, so training needs
no call to a model. What a file leaves out is filled by a stated model: cost from prices and tokens,
seconds from the size of the model. `routing/predictor.py` learns from a table,
`routing/workflows.py` makes workflows.

Legend: Q queries, W workers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, Field, TypeAdapter

from tutelage.config.fields import NonNegative
from tutelage.errors import ConfigError, DataError
from tutelage.orchestration.data.rows import AsText, FileRecord, nearest, read_as, read_json
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
PLAIN_SIZE = 8.0
"""Billions of parameters of a model of which neither its file nor its name says the size."""
SPREAD = 0.25
"""Standard deviation of the logarithm of stated seconds."""
VAL, TEST = 0.15, 0.25
"""Shares of a table that are held out."""
TYPE_KEYS = ("task", "task_type", "type")
TEXT_KEYS = ("instruction", "question", "query", "prompt")
Share = Annotated[float, Field(ge=0, le=1)]
_BILLIONS = r"(?<![\w.])(\d+(?:\.\d+)?)\s*[bB]\b"
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

    def replayed_answer(self, row: int, column: int) -> str:
        """The stored form of an answer: the row, the worker, and whether it was right."""
        message = "right" if self.right_QW[row, column] else "wrong"
        return f"[replayed {self.ids[row]} by {self.workers[column].name}: {message}]"

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
        priced_W = (np.isclose(prompt_QW + answer_QW, self.costs_QW, rtol=1e-9, atol=0.0)
                    | ~known_QW).all(axis=0)  # fmt: skip
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
    text: Annotated[str, Field(min_length=1)] = Field(validation_alias=AliasChoices(*TEXT_KEYS))
    type: AsText = Field("task", validation_alias=AliasChoices(*TYPE_KEYS))
    scores: dict[str, Share] = Field(min_length=1)
    cost: Mapping[str, NonNegative] = {}
    latency: Mapping[str, NonNegative] = {}
    input_tokens: NonNegative | None = None
    output_tokens: Mapping[str, NonNegative] = {}


class _Price(FileRecord):
    """One model of a file of prices."""

    input_price: NonNegative
    output_price: NonNegative
    size: Any = None
    latency_seconds: NonNegative | None = None
    seconds_per_token: NonNegative | None = None
    capabilities: tuple[AsText, ...] = ("*",)

    def worker(self, name: str) -> Worker:
        """The worker of that name; its latency is stated where the file does not say it."""
        latency = stated_latency(name, self.size)
        if self.latency_seconds is not None or self.seconds_per_token is not None:
            latency = Latency(self.latency_seconds or 0.0, SPREAD, self.seconds_per_token or 0.0)
        prices = (self.input_price, self.output_price)
        return Worker(name, self.capabilities, *prices, latency)


_ROW = TypeAdapter(_Query)
_PRICES = TypeAdapter(dict[str, _Price])


def read_outcomes(
    path: str | Path, models: str | Path, seeds: SeedTree | None = None
) -> OutcomeTable:
    """Read a table of outcomes and the prices of its workers.

    A row has a text (`instruction`), `scores` (by worker, 0 to 1) and perhaps `id`, `task`, `cost`
    (USD by worker), `latency` (seconds by worker), `input_tokens`, `output_tokens` (by worker).
    Models are an object by name with `input_price` and `output_price` (USD per million tokens) and
    perhaps `size` (such as "7B"), `latency_seconds`, `seconds_per_token`, `capabilities`.
    Raises `DataError` with file, row and field.
    """
    data = read_json(path)
    if not isinstance(data, list) or not data:
        raise DataError(f"{str(path)!r} needs a list of rows with 'scores'; it has none")
    rows = [
        read_as(_ROW, row, f"{str(path)!r}, row {index}")
        for index, row in enumerate(cast("list[Any]", data))
    ]
    names = list(dict.fromkeys(name for row in rows for name in row.scores))
    known = read_json(models)
    if not isinstance(known, dict):
        raise DataError(f"{str(models)!r} needs an object: prices by the model's name")
    listed = cast("Mapping[str, Any]", known)
    if lost := [name for name in names if name not in listed]:
        hint = nearest(lost[0], sorted(listed))
        raise DataError(f"{str(models)!r} has no price of {lost[0]!r}; {hint}")
    prices = read_as(_PRICES, {name: listed[name] for name in names}, repr(str(models)))
    workers = check_workers([price.worker(name) for name, price in prices.items()])
    tokens_in_Q = np.array(
        [prompt_tokens(row.text) if row.input_tokens is None else row.input_tokens for row in rows],
        dtype=np.float64,
    )
    scores_QW, cost_QW, latency_QW, out_QW = (
        np.array([[getattr(row, key).get(name, math.nan) for name in names] for row in rows])
        for key in ("scores", "cost", "latency", "output_tokens")
    )
    out_QW = np.where(np.isnan(out_QW) & np.isnan(cost_QW), TOKENS_OUT, out_QW)
    price_in_W, price_out_W = _prices(workers)
    costs_QW = (tokens_in_Q[:, None] * price_in_W + np.nan_to_num(out_QW) * price_out_W) / 1e6
    seconds_QW, draws_QW = np.empty_like(costs_QW), np.empty_like(costs_QW)
    for j, worker in enumerate(workers):
        # A place of its own for each worker: one that comes later changes nobody else's draws.
        rng = (seeds or SeedTree(0)).child("outcomes", worker.name).numpy()
        draws_QW[:, j] = rng.random(len(rows))
        written_Q = np.where(np.isnan(out_QW[:, j]), TOKENS_OUT, out_QW[:, j])
        median_Q = worker.latency.seconds + worker.latency.per_token * written_Q
        seconds_QW[:, j] = median_Q * np.exp(worker.latency.spread * rng.standard_normal(len(rows)))
    return OutcomeTable(
        ids=tuple(str(i) if row.id is None else row.id for i, row in enumerate(rows)),
        instructions=tuple(row.text for row in rows),
        types=tuple(row.type for row in rows),
        workers=workers,
        scores_QW=scores_QW,
        costs_QW=np.where(np.isnan(cost_QW), costs_QW, cost_QW),
        seconds_QW=np.where(np.isnan(latency_QW), seconds_QW, latency_QW),
        tokens_in_Q=tokens_in_Q,
        tokens_out_QW=out_QW,
        draws_QW=draws_QW,
    )


def read_test_outcomes(
    path: str | Path,
    models: str | Path | None,
    table: OutcomeTable,
    seeds: SeedTree | None = None,
) -> OutcomeTable:
    """Held-out outcomes of the workers of a table, in its order of workers.

    Raises `DataError` for a worker that the table lacks or that the file does, and without prices.
    """
    if models is None:
        raise DataError(f"{str(path)!r} needs the prices of its workers: give --models FILE")
    held_out = read_outcomes(path, models, (seeds or SeedTree(0)).child("test-outcomes"))
    if strange := [name for name in held_out.names if name not in table.names]:
        hint = nearest(strange[0], sorted(table.names))
        raise DataError(f"{str(path)!r}: nothing was learned about {strange[0]!r}; {hint}")
    return held_out.only(table.names)


def read_tables(
    outcomes: str | Path, models: str | Path, test: str | Path | None, seeds: SeedTree
) -> tuple[OutcomeTable, OutcomeTable | None]:
    """A table to learn from, and held-out outcomes where a file has some.

    Raises `DataError` as their readers do, and for a table that is too small to be split.
    """
    table = read_outcomes(outcomes, models, seeds)
    table.split(seeds, held_out=test is None)
    return table, None if test is None else read_test_outcomes(test, models, table, seeds)


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


def stated_latency(name: str, size: object = None) -> Latency:
    """Seconds of a model by its size in billions of parameters B, where nobody measured them.

    0.2 s until it starts, and 0.004 + 0.0003 B seconds for each token that it writes: about what
    a served model of that size shows, and larger for larger ones, which is what matters here.
    """
    items = (re.search(_BILLIONS, str(text).replace("-", " ")) for text in (size, name))
    billions = next((float(found[1]) for found in items if found), PLAIN_SIZE)
    return Latency(0.2, SPREAD, 0.004 + 0.0003 * billions)


def _prices(workers: Sequence[Worker]) -> Floats:
    return np.array([(worker.price_in, worker.price_out) for worker in workers]).T


def simulate_outcomes(
    queries: int, seeds: SeedTree, workers: Sequence[Worker] | None = None
) -> OutcomeTable:
    """Outcomes of simulated workers, by default the preset `classic`, on `queries` requests that
    one built-in tool does: those of a `SimulatedPool`, so a router that learns from them fits what
    an execution with simulated workers does. Raises `ConfigError` for fewer than 20 queries.
    """
    if queries < 20:
        raise ConfigError(f"queries={queries!r} must be at least 20")
    graph = builtin_graph()
    asked = generate(graph, queries, seeds.child("requests"), max_nodes=1)
    pool = SimulatedPool(workers or classic(), errors=0.0)
    rows: list[list[tuple[float, float, float, float]]] = []
    for number, workflow in enumerate(asked):
        tool = graph.catalog[workflow.tools[0]]
        work = Subtask(
            0, tool.name, tool_kind(tool.name, tool.description, graph.catalog),
            prompt=workflow.instruction, seeds=seeds.child("simulated-outcomes", number),
        )  # fmt: skip
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
    texts = tuple(workflow.instruction for workflow in asked)
    return OutcomeTable(
        ids=tuple(f"sim-{number}" for number in range(len(asked))),
        instructions=texts,
        types=tuple(workflow.tools[0] for workflow in asked),
        workers=pool.workers,
        scores_QW=scores_QW,
        costs_QW=costs_QW,
        seconds_QW=seconds_QW,
        tokens_in_Q=np.array([float(prompt_tokens(text)) for text in texts]),
        tokens_out_QW=tokens_out_QW,
        draws_QW=seeds.child("draws").numpy().random(scores_QW.shape),
    )
