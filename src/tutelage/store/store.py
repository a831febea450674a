"""The store: runs, rollouts, spans, metrics, checkpoints and resources of one database.

One class for what can be asked, thin over the modules that do it: `ingest.py` writes rollouts,
`fetch.py` reads them, `summaries.py` counts them, `spans.py` and `runs.py` have the rest,
`backend.py` opens the database. A method that writes returns when its transaction is on the disk;
threads may share a `Store`, and other processes may have the same database open. To write off the
training loop, see `writer.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar, Unpack

from sqlalchemy import ColumnElement, Connection, Table, func, select

from tutelage.errors import StoreError
from tutelage.store import discard, runs, schema
from tutelage.store.backend import Backend
from tutelage.store.columns import Columns
from tutelage.store.fetch import (
    PAGE,
    Chosen,
    count_matching,
    load_attempts,
    load_rollouts,
    matching_ids,
    resolve,
)
from tutelage.store.ingest import PutResult, check_runs, chunks, insert_new, put_encoded
from tutelage.store.opened import open_backend
from tutelage.store.records import (
    CheckpointRow,
    Discarded,
    FailureCount,
    Grade,
    MetricsRow,
    ResourceRow,
    RolloutRow,
    RunRow,
    Totals,
    TrainingRow,
)
from tutelage.store.rows import encode_rollouts
from tutelage.store.spans import count_spans, encode_span, load_spans, put_spans
from tutelage.store.status import run_status
from tutelage.store.summaries import SortKey, failures, grades, summaries, totals
from tutelage.store.values import dump_json
from tutelage.tracing.records import SpanRecord
from tutelage.types import JSON, Attempt, Mode, Rollout

T = TypeVar("T")


def open_store(where: str | Path, *, create: bool = True) -> Store:
    """Open the store in a file, given as a path or `sqlite:///FILE`, or in a PostgreSQL database,
    given as `postgresql://[USER@]HOST[:PORT]/DATABASE`.

    Makes the file and the tables unless `create` is False. Raises `StoreError` for another kind of
    URL, another program's database, or tables of another format.
    """
    return Store(open_backend(where, create=create))


class Store:
    """What one database knows; thread-safe. A context manager that closes it."""

    def __init__(self, backend: Backend, clock: Callable[[], float] = time.time) -> None:
        self.where = backend.where
        """The path, or the URL without its password."""
        self._backend = backend
        self._clock = clock
        # Threads queue here; the database's own lock, which is polled, is for other processes.
        self._writing = threading.Lock()
        self._closed = False

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database; further calls raise `StoreError`. May be called twice."""
        with self._writing:
            self._closed = True
            self._backend.close()

    # Runs

    def put_run(
        self,
        run_id: str,
        *,
        name: str,
        recipe: str,
        algorithm: str,
        config: JSON,
        seed: int,
        folder: str,
        status: str,
    ) -> None:
        """Add a run, or bring a run that is resumed up to date (`created` stays).

        Raises `StoreError` when recipe, algorithm or seed differ from the stored ones, or when the
        status cannot follow the stored one.
        """
        now = self._clock()
        run = RunRow(
            run_id, name, recipe, algorithm, config, seed, folder, run_status(status),
            result=None, created=now, updated=now,
        )  # fmt: skip
        row = schema.RUN.encode(run, f"run {run_id!r}")
        with self._write(f"store run {run_id!r} in", run_id) as conn:
            runs.put_run(conn, run, row)

    def set_run_status(self, run_id: str, status: str, result: JSON | None = None) -> None:
        """Change a run's status and its result. Raises `StoreError` when it cannot follow."""
        new = run_status(status)
        text = None if result is None else dump_json(result, f"result of run {run_id!r}")
        with self._write(f"store run {run_id!r} in", run_id) as conn:
            runs.set_run_status(conn, run_id, new, text, self._clock())

    def runs(self) -> list[RunRow]:
        """All runs, the oldest first."""
        with self._read("read runs from") as conn:
            return runs.all_runs(conn)

    def run(self, run_id: str) -> RunRow:
        """One run. Raises `StoreError` with the nearest ids when there is none."""
        with self._read(f"read run {run_id!r} from") as conn:
            return runs.one_run(conn, run_id)

    # Rollouts

    def put_rollouts(
        self,
        rollouts: Sequence[Rollout],
        spans: Mapping[str, Sequence[SpanRecord]] | None = None,
        training_rows: Mapping[str, Sequence[TrainingRow]] | None = None,
    ) -> PutResult:
        """Write a batch in one transaction, with spans and training rows by run; on return it is
        on the disk.

        The same record again changes nothing. A rollout that has not ended is brought up to date;
        one that has ended stays, and what differs is filed as late (see `late_results`). Raises
        `StoreError`, with nothing of the batch written, for an unknown run, for a value that cannot
        be stored exactly, and for an id that is taken by another task, step or group.
        """
        encoded = encode_rollouts(rollouts)
        rows = [encode_span(run_id, s) for run_id, some in (spans or {}).items() for s in some]
        trained = [
            {"run_id": run_id} | schema.TRAINING_ROW.encode(row, f"row of {row.rollout_id!r}")
            for run_id, some in (training_rows or {}).items()
            for row in some
        ]
        apart = {row["run_id"] for row in (*rows, *trained)}
        if not encoded and not apart:
            return PutResult()
        with self._write("store rollouts in", *{r.run_id for r in rollouts}, *apart) as conn:
            result = put_encoded(conn, encoded)
            check_runs(conn, apart)
            put_spans(conn, rows)
            insert_new(conn, schema.training_rows, trained)
            return result

    def rollout(self, rollout_id: str, run_id: str | None = None) -> Rollout:
        """The whole record of one rollout, by its full id; see `find_rollout` for a part of it.

        `run_id` is needed only when several runs of one seed share the file.
        """
        found = self.find_rollout(rollout_id, run_id)
        if found.id != rollout_id:
            raise StoreError(f"no rollout {rollout_id!r}: did you mean {found.id!r}?")
        return found

    def find_rollout(self, prefix: str, run_id: str | None = None) -> Rollout:
        """The only rollout whose id begins with `prefix`; an exact match wins.

        Raises `StoreError` that lists the candidates, or the nearest ids when there are none.
        """
        with self._read("read a rollout from") as conn:
            run, rollout_id = resolve(conn, prefix, run_id)
            return load_rollouts(conn, run, [rollout_id])[0]

    def rollouts(
        self, run_id: str, *, limit: int | None = None, **chosen: Unpack[Chosen]
    ) -> Iterator[Rollout]:
        """Whole records that match, read as the iteration goes; label '' is training.

        In the order of step, label, mode, group, position. What is put while iterating is not
        seen. Raises `StoreError` for an unknown run.
        """
        with self._read("read rollouts from", run_id) as conn:
            ids = matching_ids(conn, run_id, chosen, limit)
        return self._pages(run_id, ids)

    def _pages(self, run_id: str, ids: list[str]) -> Generator[Rollout]:
        for page in chunks(ids, PAGE):
            with self._read("read rollouts from") as conn:
                records = load_rollouts(conn, run_id, page)
            yield from records

    def count(self, run_id: str, **chosen: Unpack[Chosen]) -> int:
        """How many rollouts match. Raises `StoreError` for an unknown run."""
        with self._read("count rollouts of", run_id) as conn:
            return count_matching(conn, run_id, chosen)

    def summaries(
        self,
        run_id: str,
        *,
        order: SortKey | None = None,
        descending: bool = False,
        limit: int | None = None,
        **chosen: Unpack[Chosen],
    ) -> list[RolloutRow]:
        """The rollouts that match, without their conversations: in the order of `rollouts`, or by
        a column of their summary, those that have none there last."""
        with self._read("read rollouts from", run_id) as conn:
            return summaries(conn, run_id, chosen, order=order, descending=descending, limit=limit)

    def failures(self, run_id: str, **chosen: Unpack[Chosen]) -> list[FailureCount]:
        """Of the rollouts that match: how many failed or were cancelled, by cause, the most
        frequent first."""
        with self._read("count failures of", run_id) as conn:
            return failures(conn, run_id, chosen)

    def totals(self, run_id: str) -> Totals:
        """Rollouts, calls and tokens of a run, summed. Raises `StoreError` for an unknown run."""
        with self._read("sum up rollouts of", run_id) as conn:
            return totals(conn, run_id)

    def grades(
        self, run_id: str, *labels: str, mode: Mode = Mode.TEST, part: str = "exact"
    ) -> list[Grade]:
        """The final rewards of rollouts with these labels, and one part of each, without their
        conversations."""
        with self._read("read rewards from", run_id) as conn:
            return grades(conn, run_id, mode, labels, part)

    def late_results(self, run_id: str, rollout_id: str) -> tuple[Attempt, ...]:
        """What was put for a rollout's attempts after they had ended, in order; never used."""
        with self._read("read late results from") as conn:
            return tuple(load_attempts(conn, run_id, [rollout_id], late=True)[rollout_id])

    # Spans

    def put_spans(self, run_id: str, spans: Sequence[SpanRecord]) -> None:
        """Add spans of a run's rollouts; the rollouts themselves may come later.

        A span that is there stays as it is. Raises `StoreError` for an unknown run, and for a span
        that names no rollout.
        """
        self.put_rollouts((), {run_id: spans})

    def spans(self, run_id: str, rollout_id: str) -> list[SpanRecord]:
        """What user code and other programs traced of a rollout, in the order of their start.

        The spans that a rollout's own record gives are not among them: `tracing.whole_trace`
        makes both into complete trees.
        """
        with self._read("read spans from") as conn:
            return load_spans(conn, run_id, [rollout_id])

    def count_spans(self, run_id: str) -> int:
        """How many such spans a run has. Raises `StoreError` for an unknown run."""
        with self._read("count spans of", run_id) as conn:
            return count_spans(conn, run_id)

    # What training made of rollouts

    def training_rows(
        self, run_id: str, *, rollout_id: str | None = None, step: int | None = None
    ) -> list[TrainingRow]:
        """The rows that training steps made, in order: of a rollout, of a step, or all."""
        c = schema.training_rows.c
        wanted = {c.rollout_id: rollout_id, c.step: step}
        tests = [column == value for column, value in wanted.items() if value is not None]
        return self._ordered(schema.training_rows, schema.TRAINING_ROW, run_id, *tests)

    def trained_tokens(self, run_id: str) -> int:
        """Over how many tokens the training rows of a run go."""
        c = schema.training_rows.c
        query = select(func.coalesce(func.sum(c.tokens), 0)).where(c.run_id == run_id)
        with self._read("count trained tokens of") as conn:
            return int(conn.execute(query).scalar_one())

    def discard_training(self, run_id: str, after: int) -> None:
        """Remove the training rows of steps later than `after`, which a resume does again."""
        with self._write("discard training rows of", run_id) as conn:
            discard.discard_training(conn, run_id, after)

    # Metrics, checkpoints, resources

    def put_metrics(self, run_id: str, step: int, values: JSON) -> None:
        """Add metrics to those of a step; a name that is there is overwritten.

        Raises `StoreError` for NaN and infinity: leave out what could not be computed.
        """
        dump_json(values, f"metrics of step {step}")
        with self._write("store metrics in", run_id) as conn:
            runs.one_run(conn, run_id)
            runs.put_metrics(conn, run_id, MetricsRow(step, values))

    def metrics(self, run_id: str) -> list[MetricsRow]:
        """The metrics of each step, in order."""
        return self._ordered(schema.metrics, schema.METRICS, run_id)

    def put_checkpoint(self, run_id: str, step: int, path: str | Path) -> None:
        """Note where the checkpoint of a step lies."""
        with self._write("store a checkpoint in", run_id) as conn:
            runs.one_run(conn, run_id)
            row = schema.CHECKPOINT.encode(CheckpointRow(step, str(path)), f"step {step}")
            runs.put_row(conn, schema.checkpoints, {"run_id": run_id} | row)

    def checkpoints(self, run_id: str) -> list[CheckpointRow]:
        """All checkpoints of a run, in the order of steps."""
        return self._ordered(schema.checkpoints, schema.CHECKPOINT, run_id)

    def put_resource(
        self, run_id: str, name: str, version: int, *, step: int, kind: str, data: JSON
    ) -> None:
        """Add one version of a named resource. A version keeps its content: see `resources`.

        Raises `StoreError` when that version is there with other content.
        """
        given = ResourceRow(name, version, step, kind, data)
        with self._write("store a resource in", run_id) as conn:
            runs.one_run(conn, run_id)
            runs.put_resource(conn, run_id, given)

    def resources(self, run_id: str) -> list[ResourceRow]:
        """All resources of a run, by name and version."""
        return self._ordered(schema.resources, schema.RESOURCE, run_id)

    def discard_after(self, run_id: str, step: int, *, labels: Sequence[str] = ()) -> Discarded:
        """Remove what was recorded for later steps than `step`, which a resume does again.

        `labels` names evaluations whose rollouts go too, whatever their step: one that ran after
        the checkpoint of `step` carries that same step. Raises `StoreError` for an unknown run.
        """
        with self._write("discard steps from", run_id) as conn:
            runs.one_run(conn, run_id)
            return discard.discard_after(conn, run_id, step, labels)

    def rollout_ids(self, run_id: str) -> list[str]:
        """The identifiers of all rollouts of a run."""
        query = select(schema.rollouts.c.id).where(schema.rollouts.c.run_id == run_id)
        with self._read("list rollouts of") as conn:
            return list(conn.scalars(query))

    def discard_rollout(self, run_id: str, rollout_id: str) -> None:
        """Remove a rollout that is played again, with its spans and training rows."""
        with self._write("discard a rollout of", run_id) as conn:
            discard.discard_rollout(conn, run_id, rollout_id)

    # Connections

    @contextmanager
    def _read(self, doing: str, run_id: str | None = None) -> Generator[Connection]:
        """A snapshot; raises `StoreError` for a run that is not there."""
        self._check_open()
        with self._backend.explained(doing), self._backend.reader.begin() as conn:
            if run_id is not None:
                runs.one_run(conn, run_id)
            yield conn

    @contextmanager
    def _write(self, doing: str, *run_ids: str) -> Generator[Connection]:
        with self._writing:
            self._check_open()
            with self._backend.explained(doing), self._backend.writer.begin() as conn:
                self._backend.lock(conn, run_ids)
                yield conn

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self.where!r} is closed: open it again")

    def _ordered(
        self, table: Table, columns: Columns[T], run_id: str, *tests: ColumnElement[bool]
    ) -> list[T]:
        with self._read(f"read {table.name} from", run_id) as conn:
            return runs.ordered(conn, table, columns, run_id, *tests)
