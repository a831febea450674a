"""The store: runs, rollouts, spans, metrics, checkpoints and resources of one database.

One class for what can be asked, thin over the modules that do it: `ingest.py` writes rollouts,
`fetch.py` reads them, `spans.py` does both for spans, `backend.py` opens the database. A method
that writes returns when its transaction is on the disk; threads may share a `Store`, and other
processes may have the same database open. To write off the training loop, see `writer.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, and_, delete, insert, or_, select, update

from tutelage.errors import StoreError
from tutelage.store import schema
from tutelage.store.backend import Backend
from tutelage.store.fetch import (
    PAGE,
    Filter,
    count_matching,
    load_attempts,
    load_rollouts,
    matching_ids,
    resolve,
)
from tutelage.store.ingest import PutResult, check_runs, chunks, put_encoded
from tutelage.store.opened import open_backend
from tutelage.store.records import (
    CheckpointRow,
    Discarded,
    Grade,
    MetricsRow,
    ResourceRow,
    RunRow,
    Totals,
)
from tutelage.store.rows import Row, encode_rollouts
from tutelage.store.spans import (
    count_spans,
    delete_spans,
    encode_span,
    load_spans,
    put_spans,
)
from tutelage.store.status import RunStatus, check_run_transition, run_status
from tutelage.store.totals import grades, totals
from tutelage.store.values import dump_json, load_json
from tutelage.tracing.records import SpanRecord
from tutelage.types import JSON, Attempt, Mode, Rollout, RolloutStatus

_FIXED = ("recipe", "algorithm", "seed")
"""What a run keeps for life: its identifiers and draws come from them."""


def open_store(where: str | Path, *, create: bool = True) -> Store:
    """Open the store in a file, given as a path or `sqlite:///FILE`, or in a PostgreSQL database,
    given as `postgresql://[USER@]HOST[:PORT]/DATABASE`.

    Makes the file and the tables unless `create` is False, and brings an older format up to date.
    Raises `StoreError` for another kind of URL, another program's database, or a newer format.
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
        row: Row = {
            "name": name,
            "recipe": recipe,
            "algorithm": algorithm,
            "config": dump_json(config, f"config of run {run_id!r}"),
            "seed": seed,
            "folder": folder,
            "status": run_status(status).value,
        }
        with self._write(f"store run {run_id!r} in", run_id) as conn:
            old = conn.execute(_run_query(run_id)).mappings().one_or_none()
            if old is None:
                times = {"id": run_id, "created": now, "updated": now}
                conn.execute(insert(schema.runs).values(row | times))
                return
            for key in _FIXED:
                if old[key] != row[key]:
                    raise StoreError(
                        f"run {run_id!r} has {key} {old[key]!r} and cannot get {row[key]!r}: "
                        "start a new run"
                    )
            check_run_transition(run_id, RunStatus(old["status"]), RunStatus(row["status"]))
            if any(old[key] != value for key, value in row.items()):
                conn.execute(_run_update(run_id).values(row | {"updated": now}))

    def set_run_status(self, run_id: str, status: str, result: JSON | None = None) -> None:
        """Change a run's status and its result. Raises `StoreError` when it cannot follow."""
        new = run_status(status)
        text = None if result is None else dump_json(result, f"result of run {run_id!r}")
        with self._write(f"store run {run_id!r} in", run_id) as conn:
            old = _one_run(conn, run_id)
            check_run_transition(run_id, old.status, new)
            row: Row = {"status": new.value, "result": text, "updated": self._clock()}
            conn.execute(_run_update(run_id).values(row))

    def runs(self) -> list[RunRow]:
        """All runs, the oldest first."""
        query = select(schema.runs).order_by(schema.runs.c.created, schema.runs.c.id)
        with self._read("read runs from") as conn:
            return [_run_row(row) for row in conn.execute(query).mappings()]

    def run(self, run_id: str) -> RunRow:
        """One run. Raises `StoreError` with the nearest ids when there is none."""
        with self._read(f"read run {run_id!r} from") as conn:
            return _one_run(conn, run_id)

    # Rollouts

    def put_rollouts(
        self, rollouts: Sequence[Rollout], spans: Mapping[str, Sequence[SpanRecord]] | None = None
    ) -> PutResult:
        """Write a batch in one transaction, with spans by run; on return it is on the disk.

        The same record again changes nothing. A rollout that has not ended is brought up to date;
        one that has ended stays, and what differs is filed as late (see `late_results`). Raises
        `StoreError`, with nothing of the batch written, for an unknown run, for a value that cannot
        be stored exactly, and for an id that is taken by another task, step or group.
        """
        encoded = encode_rollouts(rollouts)
        rows = [encode_span(run_id, s) for run_id, some in (spans or {}).items() for s in some]
        if not encoded and not rows:
            return PutResult()
        runs = {r.run_id for r in rollouts} | {row["run_id"] for row in rows}
        with self._write("store rollouts in", *runs) as conn:
            result = put_encoded(conn, encoded)
            check_runs(conn, {row["run_id"] for row in rows})
            put_spans(conn, rows)
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
        self,
        run_id: str,
        *,
        mode: Mode | None = None,
        step: int | None = None,
        label: str | None = None,
        status: RolloutStatus | None = None,
        limit: int | None = None,
    ) -> Iterator[Rollout]:
        """Whole records that match, read as the iteration goes; label '' is training.

        In the order of step, label, mode, group, position. What is put while iterating is not
        seen. Raises `StoreError` for an unknown run.
        """
        chosen = Filter(mode, step, label, status)
        with self._read("read rollouts from") as conn:
            _one_run(conn, run_id)
            ids = matching_ids(conn, run_id, chosen, limit)
        return self._pages(run_id, ids)

    def _pages(self, run_id: str, ids: list[str]) -> Generator[Rollout]:
        for page in chunks(ids, PAGE):
            with self._read("read rollouts from") as conn:
                records = load_rollouts(conn, run_id, page)
            yield from records

    def count(
        self,
        run_id: str,
        *,
        mode: Mode | None = None,
        step: int | None = None,
        label: str | None = None,
        status: RolloutStatus | None = None,
    ) -> int:
        """How many rollouts match. Raises `StoreError` for an unknown run."""
        with self._read("count rollouts of") as conn:
            _one_run(conn, run_id)
            return count_matching(conn, run_id, Filter(mode, step, label, status))

    def totals(self, run_id: str) -> Totals:
        """Rollouts, calls and tokens of a run, summed. Raises `StoreError` for an unknown run."""
        with self._read("sum up rollouts of") as conn:
            _one_run(conn, run_id)
            return totals(conn, run_id)

    def grades(
        self, run_id: str, *labels: str, mode: Mode = Mode.TEST, part: str = "exact"
    ) -> list[Grade]:
        """The final rewards of rollouts with these labels, and one part of each, without their
        conversations."""
        with self._read("read rewards from") as conn:
            _one_run(conn, run_id)
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
        with self._read("count spans of") as conn:
            _one_run(conn, run_id)
            return count_spans(conn, run_id)

    # Metrics, checkpoints, resources

    def put_metrics(self, run_id: str, step: int, values: JSON) -> None:
        """Add metrics to those of a step; a name that is there is overwritten.

        Raises `StoreError` for NaN and infinity: leave out what could not be computed.
        """
        dump_json(values, f"metrics of step {step}")
        with self._write("store metrics in", run_id) as conn:
            _one_run(conn, run_id)
            table, key = schema.metrics, {"run_id": run_id, "step": step}
            old = conn.execute(select(table.c.data).where(_matches(table, key))).scalar()
            merged = (load_json(old) if old else {}) | values
            _upsert(conn, table, key, {"data": dump_json(merged, f"metrics of step {step}")})

    def metrics(self, run_id: str) -> list[MetricsRow]:
        """The metrics of each step, in order."""
        rows = self._ordered(schema.metrics, run_id)
        return [MetricsRow(row["step"], load_json(row["data"])) for row in rows]

    def put_checkpoint(self, run_id: str, step: int, path: str | Path) -> None:
        """Note where the checkpoint of a step lies."""
        with self._write("store a checkpoint in", run_id) as conn:
            _one_run(conn, run_id)
            key = {"run_id": run_id, "step": step}
            _upsert(conn, schema.checkpoints, key, {"path": str(path)})

    def checkpoints(self, run_id: str) -> list[CheckpointRow]:
        """All checkpoints of a run, in the order of steps."""
        rows = self._ordered(schema.checkpoints, run_id)
        return [CheckpointRow(row["step"], row["path"]) for row in rows]

    def put_resource(
        self, run_id: str, name: str, version: int, *, step: int, kind: str, data: JSON
    ) -> None:
        """Add one version of a named resource. A version keeps its content: see `resources`.

        Raises `StoreError` when that version is there with other content.
        """
        key: Row = {"run_id": run_id, "name": name, "version": version}
        text = dump_json(data, f"resource {name!r}")
        row: Row = {"step": step, "kind": kind, "data": text}
        table = schema.resources
        with self._write("store a resource in", run_id) as conn:
            _one_run(conn, run_id)
            old = conn.execute(select(table).where(_matches(table, key))).mappings().one_or_none()
            if old is None:
                conn.execute(insert(table).values(key | row))
            elif any(old[column] != value for column, value in row.items()):
                raise StoreError(
                    f"version {version!r} of resource {name!r} is in the store with other content: "
                    "give the changed resource the next version"
                )

    def resources(self, run_id: str) -> list[ResourceRow]:
        """All resources of a run, by name and version."""
        rows = self._ordered(schema.resources, run_id)
        return [
            ResourceRow(r["name"], r["version"], r["step"], r["kind"], load_json(r["data"]))
            for r in rows
        ]

    def discard_after(self, run_id: str, step: int, *, labels: Sequence[str] = ()) -> Discarded:
        """Remove what was recorded for later steps than `step`, which a resume does again.

        `labels` names evaluations whose rollouts go too, whatever their step: one that ran after
        the checkpoint of `step` carries that same step. Raises `StoreError` for an unknown run.
        """
        with self._write("discard steps from", run_id) as conn:
            _one_run(conn, run_id)
            c = schema.rollouts.c
            gone = or_(c.step > step, c.label.in_(labels)) if labels else c.step > step
            delete_spans(conn, run_id, gone)
            rollouts = conn.execute(
                delete(schema.rollouts).where(and_(c.run_id == run_id, gone))
            ).rowcount
            counts = [
                conn.execute(
                    delete(table).where(table.c.run_id == run_id, table.c.step > step)
                ).rowcount
                for table in (schema.metrics, schema.checkpoints, schema.resources)
            ]
            return Discarded(rollouts, *counts)

    def rollout_ids(self, run_id: str) -> list[str]:
        """The identifiers of all rollouts of a run."""
        query = select(schema.rollouts.c.id).where(schema.rollouts.c.run_id == run_id)
        with self._read("list rollouts of") as conn:
            return list(conn.scalars(query))

    def discard_rollout(self, run_id: str, rollout_id: str) -> None:
        """Remove a rollout that is played again, with its spans."""
        with self._write("discard a rollout of", run_id) as conn:
            for table, name in ((schema.spans, "rollout_id"), (schema.rollouts, "id")):
                of_run = table.c.run_id == run_id
                conn.execute(delete(table).where(of_run, table.c[name] == rollout_id))

    # Connections

    @contextmanager
    def _read(self, doing: str) -> Generator[Connection]:
        self._check_open()
        with self._backend.explained(doing), self._backend.reader.begin() as conn:
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

    def _ordered(self, table: Table, run_id: str) -> list[Any]:
        query = select(table).where(table.c.run_id == run_id).order_by(*table.primary_key)
        with self._read(f"read {table.name} from") as conn:
            _one_run(conn, run_id)
            return list(conn.execute(query).mappings())


def _run_query(run_id: str) -> Any:
    return select(schema.runs).where(schema.runs.c.id == run_id)


def _run_update(run_id: str) -> Any:
    return update(schema.runs).where(schema.runs.c.id == run_id)


def _one_run(conn: Connection, run_id: str) -> RunRow:
    row = conn.execute(_run_query(run_id)).mappings().one_or_none()
    if row is not None:
        return _run_row(row)
    known = list(conn.scalars(select(schema.runs.c.id).order_by(schema.runs.c.created)))
    near = get_close_matches(run_id, known, n=3, cutoff=0.0)
    hint = f"the nearest are {', '.join(map(repr, near))}" if near else "it has none yet"
    raise StoreError(f"no run {run_id!r} in the store: {hint}")


def _run_row(row: Any) -> RunRow:
    values = dict(row)
    result = values["result"]
    values |= {
        "config": load_json(values["config"]),
        "result": None if result is None else load_json(result),
        "status": RunStatus(values["status"]),
    }
    return RunRow(**values)


def _matches(table: Table, key: Row) -> Any:
    return and_(*(table.c[name] == value for name, value in key.items()))


def _upsert(conn: Connection, table: Table, key: Row, row: Row) -> None:
    changed = conn.execute(update(table).where(_matches(table, key)).values(row)).rowcount
    if not changed:
        conn.execute(insert(table).values(key | row))
