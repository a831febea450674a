"""The store: runs, rollouts, spans, metrics, checkpoints and resources of one database.

`Store` adds the writing methods to the queries of `queries.py`; `ingest.py` writes rollouts, and
`sqlite.py` and `postgres.py` open the database. Writing methods return when their transaction is on
the disk. Threads may share a `Store`, and other processes may open the same database. `writer.py`
writes from a background thread.

A resumed run first removes the steps and rollouts that it repeats. Deleting a rollout deletes its
attempts and their parts (`schema.py`); spans and training rows are deleted separately, because they
may exist without their rollout.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Table,
    delete,
    func,
    insert,
    make_url,
    or_,
    select,
    update,
)
from sqlalchemy.exc import ArgumentError

from tutelage.errors import StoreError
from tutelage.store import schema
from tutelage.store.columns import Row
from tutelage.store.ingest import encode_batch, put_batch
from tutelage.store.queries import Queries, read_run
from tutelage.store.records import CheckpointRow, EventRow, ResourceRow, RunRow, TrainingRow
from tutelage.store.status import check_run_transition
from tutelage.store.values import dump_json
from tutelage.tracing.records import SpanRecord
from tutelage.types import JSON, Rollout, RolloutStatus

_IMMUTABLE = ("recipe", "algorithm", "seed")
"""Columns of a run that cannot change, because its ids and random draws depend on them."""
_STORE_FIELDS = ("result", "created", "updated")
"""Columns of a run that are set by the store."""


def open_store(location: str | Path, *, create: bool = True) -> Store:
    """Open the store in a file, given as a path or `sqlite:///FILE`, or in a PostgreSQL database,
    given as `postgresql://[USER@]HOST[:PORT]/DATABASE`.

    Creates the file and the tables unless `create` is False. Raises `StoreError` for other URLs,
    for the database of another program, and for tables of another format.
    """
    # Import only the module of the requested database.
    text = str(location)
    try:
        url = make_url(text) if "://" in text else URL.create("sqlite", database=text)
    except (ArgumentError, ValueError):  # ValueError for an invalid port
        raise StoreError(
            f"{text.partition('://')[0] + '://...'!r} is not a valid database URL: use a path, "
            "sqlite:///FILE or postgresql://HOST:PORT/DATABASE"
        ) from None
    if url.get_backend_name() in ("postgresql", "postgres"):
        from tutelage.store import postgres

        return Store(postgres.open_backend(url, create=create))
    from tutelage.store import sqlite

    return Store(sqlite.open_backend(sqlite.database_path(url), create=create))


class Store(Queries):
    """Read and write access to a database. As a context manager, it is closed on exit."""

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

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
        claim: bool = False,
    ) -> None:
        """Add a run, or update a resumed run but keep its creation time.

        Raises `StoreError` if recipe, algorithm or seed differ from the stored ones or if the
        status cannot follow the stored one. With `claim` the run must be new, and `config`
        identifies its owner: `StoreError` is raised if another owner has the name.
        """
        now = time.time()
        run = RunRow(
            run_id, name, recipe, algorithm, config, seed, folder, _parse_status(status),
            result=None, created=now, updated=now,
        )  # fmt: skip
        row = schema.RUN.encode(run, f"run {run_id!r}")
        c = schema.runs.c
        with self._write(f"store run {run_id!r} in", run_id) as conn:
            query = select(schema.runs).where(c.id == run_id)
            old = conn.execute(query).mappings().one_or_none()
            if claim and old is not None:
                if (old["folder"], old["config"]) != (row["folder"], row["config"]):
                    conflict = (
                        f"another run named {run_id!r}, in {old['folder']!r}"
                        if old["folder"] != folder
                        else f"a run named {run_id!r} that was started in this folder, "
                        f"{folder!r}, earlier or on another machine"
                    )
                    raise StoreError(
                        f"the store {self.where!r} has {conflict}: run names must be unique; "
                        "choose another --output"
                    )
                # An earlier claim by the same owner was killed before its run began.
                conn.execute(delete(schema.runs).where(c.id == run_id))
                old = None
            if old is None:
                conn.execute(insert(schema.runs).values(row))
                return
            for key in _IMMUTABLE:
                if old[key] != row[key]:
                    raise StoreError(
                        f"run {run_id!r} has {key} {old[key]!r}, which cannot be changed to "
                        f"{row[key]!r}: start a new run"
                    )
            check_run_transition(run_id, RolloutStatus(old["status"]), run.status)
            changed = {name: value for name, value in row.items() if name not in _STORE_FIELDS}
            if any(old[name] != value for name, value in changed.items()):
                changed["updated"] = now
                conn.execute(update(schema.runs).where(c.id == run_id).values(changed))

    def set_run_status(self, run_id: str, status: str, result: JSON | None = None) -> None:
        """Set a run's status and result. Raises `StoreError` for invalid transitions."""
        new = _parse_status(status)
        text = None if result is None else dump_json(result, f"result of run {run_id!r}")
        with self._write(f"store run {run_id!r} in", run_id) as conn:
            check_run_transition(run_id, read_run(conn, run_id).status, new)
            row = {"status": new.value, "result": text, "updated": time.time()}
            conn.execute(update(schema.runs).where(schema.runs.c.id == run_id).values(row))

    # Rollouts

    def put_rollouts(
        self,
        rollouts: Sequence[Rollout],
        spans: Mapping[str, Sequence[SpanRecord]] | None = None,
        training_rows: Mapping[str, Sequence[TrainingRow]] | None = None,
    ) -> Counter[str]:
        """Write rollouts, and spans and training rows by run id, in one transaction.

        On return the batch is on the disk. Returns the numbers of `new`, `updated` and `unchanged`
        rollouts and of `late` results.

        Repeated records change nothing. A rollout that has not ended is updated; one that has ended
        is kept, and different content is stored as late (see `late_results`). Spans may be stored
        before their rollouts, and stored spans are not changed. Raises `StoreError`, without
        writing anything, for an unknown run, for a value that cannot be stored exactly, and for an
        id that is used by another task, step or group.
        """
        batch = encode_batch(rollouts, spans or {}, training_rows or {})
        if not batch.run_ids:
            return Counter()
        with self._write("store rollouts in", *batch.run_ids) as conn:
            return put_batch(conn, batch)

    def discard_training(self, run_id: str, step: int) -> None:
        """Remove training rows of steps later than `step`, before a resumed run repeats them."""
        with self._write("discard training rows of", run_id) as conn:
            _delete(conn, schema.training_rows, run_id, schema.training_rows.c.step > step)

    # Metrics, checkpoints, resources

    def put_metrics(self, run_id: str, step: int, values: JSON) -> None:
        """Add metrics to a step, overwriting existing names.

        Raises `StoreError` for NaN and infinity: omit metrics that could not be computed.
        """
        with self._write("store metrics in", run_id) as conn:
            read_run(conn, run_id)
            c = schema.metrics.c
            query = select(schema.metrics).where(c.run_id == run_id, c.step == step)
            old = conn.execute(query).mappings().one_or_none()
            stored_values = {} if old is None else schema.METRICS.decode(old).values
            text = dump_json(stored_values | values, f"metrics of step {step}")
            _put_row(conn, schema.metrics, {"run_id": run_id, "step": step, "values": text})

    def put_checkpoint(self, run_id: str, step: int, path: str | Path) -> None:
        """Record the path of a step's checkpoint."""
        with self._write("store a checkpoint in", run_id) as conn:
            read_run(conn, run_id)
            row = schema.CHECKPOINT.encode(CheckpointRow(step, str(path)), f"step {step}")
            _put_row(conn, schema.checkpoints, {"run_id": run_id} | row)

    def put_resource(
        self, run_id: str, name: str, version: int, *, step: int, kind: str, data: JSON
    ) -> None:
        """Add one version of a named resource to a run.

        Raises `StoreError` if the version exists with different content.
        """
        record = ResourceRow(name, version, step, kind, data)
        row = {"run_id": run_id} | schema.RESOURCE.encode(record, f"resource {name!r}")
        c = schema.resources.c
        with self._write("store a resource in", run_id) as conn:
            read_run(conn, run_id)
            key = (c.run_id == run_id, c.name == name, c.version == version)
            old = conn.execute(select(schema.resources).where(*key)).mappings().one_or_none()
            if old is None:
                conn.execute(insert(schema.resources).values(row))
            elif dict(old) != row:
                raise StoreError(
                    f"version {version!r} of resource {name!r} already exists with different "
                    "content: use the next version number for the changed resource"
                )

    def put_events(self, run_id: str, key: str, events: Sequence[JSON]) -> None:
        """Append events under a key of a run, or without a run (""), in one transaction.

        On return the events are on the disk. Raises `StoreError` for data that JSON does not
        support.
        """
        c = schema.events.c
        last = select(func.max(c.number)).where(c.run_id == run_id, c.key == key)
        with self._write(f"store events of {key!r} in", run_id) as conn:
            first = 1 + (conn.scalar(last) or 0)
            rows = [EventRow(key, number, data) for number, data in enumerate(events, first)]
            label = f"an event of {key!r}"
            encoded = [{"run_id": run_id} | schema.EVENT.encode(row, label) for row in rows]
            conn.execute(insert(schema.events), encoded)

    def discard_after(self, run_id: str, step: int, *, labels: Sequence[str] = ()) -> Counter[str]:
        """Remove the records of steps later than `step`, before a resumed run repeats them.

        Returns the number of removed rows by table.

        `labels` names evaluations whose rollouts are removed at any step, because an evaluation
        after the checkpoint of `step` has the same step. Raises `StoreError` for an unknown run.
        """
        with self._write("discard steps from", run_id) as conn:
            read_run(conn, run_id)
            c = schema.rollouts.c
            removed = or_(c.step > step, c.label.in_(labels))
            # Spans of rollouts that were never stored are removed too.
            stored = select(c.id).where(c.run_id == run_id)
            column = schema.spans.c.rollout_id
            spans = or_(column.in_(stored.where(removed)), column.not_in(stored))
            _delete(conn, schema.spans, run_id, spans)
            tables = (schema.metrics, schema.checkpoints, schema.resources, schema.training_rows)
            later = {t.name: _delete(conn, t, run_id, t.c.step > step) for t in tables}
            return Counter(later | {"rollouts": _delete(conn, schema.rollouts, run_id, removed)})

    def discard_rollout(self, run_id: str, rollout_id: str) -> None:
        """Remove a rollout with its spans and training rows, before the rollout is repeated."""
        with self._write("discard a rollout of", run_id) as conn:
            for table in (schema.spans, schema.training_rows):
                _delete(conn, table, run_id, table.c.rollout_id == rollout_id)
            _delete(conn, schema.rollouts, run_id, schema.rollouts.c.id == rollout_id)

    # Connections

    @contextmanager
    def _write(self, action: str, *run_ids: str) -> Generator[Connection]:
        with self._writing:
            self._check_open()
            with self._backend.explain_errors(action), self._backend.writer.begin() as conn:
                self._backend.lock(conn, run_ids)
                yield conn


def _put_row(conn: Connection, table: Table, row: Row) -> None:
    """Insert a row, or update the existing row with the same key."""
    key = [column == row[column.name] for column in table.primary_key]
    if not conn.execute(update(table).where(*key).values(row)).rowcount:
        conn.execute(insert(table).values(row))


def _delete(conn: Connection, table: Table, run_id: str, condition: ColumnElement[bool]) -> int:
    """Delete rows of a run in a table. Return the number of rows."""
    return conn.execute(delete(table).where(table.c.run_id == run_id, condition)).rowcount


def _parse_status(status: str) -> RolloutStatus:
    try:
        return RolloutStatus(status)
    except ValueError:
        choices = ", ".join(RolloutStatus)
        raise StoreError(f"unknown run status {status!r}: choose one of {choices}") from None
