"""The store: runs, rollouts, spans, metrics, checkpoints and resources of one database.

One class for what can be put, over what can be asked (`queries.py`): `ingest.py` writes rollouts,
`sqlite.py` and `postgres.py` open the database. A method that writes returns when its transaction
is on the disk; threads may share a `Store`, and other processes may have the same database open. To
write off the training loop, see `writer.py`.

Steps and rollouts that a resume does a second time are removed first: deleting a rollout deletes
its attempts and all below them (`schema.py`); spans and training rows stand by themselves, since
they may be there without it.
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
from tutelage.store.ingest import encode, put
from tutelage.store.queries import Queries, one_run
from tutelage.store.records import CheckpointRow, EventRow, ResourceRow, RunRow, TrainingRow
from tutelage.store.status import check_run_transition
from tutelage.store.values import dump_json
from tutelage.tracing.records import SpanRecord
from tutelage.types import JSON, Rollout, RolloutStatus

_FIXED = ("recipe", "algorithm", "seed")
"""What a run keeps for life: its identifiers and draws come from them."""
_OWN = ("result", "created", "updated")
"""What of a run the store sets itself."""


def open_store(where: str | Path, *, create: bool = True) -> Store:
    """Open the store in a file, given as a path or `sqlite:///FILE`, or in a PostgreSQL database,
    given as `postgresql://[USER@]HOST[:PORT]/DATABASE`.

    Makes the file and the tables unless `create` is False. Raises `StoreError` for another kind of
    URL, another program's database, or tables of another format.
    """
    # Only the module of the database that is asked for is loaded.
    text = str(where)
    try:
        url = make_url(text) if "://" in text else URL.create("sqlite", database=text)
    except (ArgumentError, ValueError):  # the second for a port that is no number
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
    """What one database knows, and what is put into it. A context manager that closes it."""

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
        """Add a run, or bring a run that is resumed up to date (`created` stays).

        Raises `StoreError` when recipe, algorithm or seed differ from the stored ones, when the
        status cannot follow the stored one. With `claim` the run is new, and `config` says who
        claims its name: `StoreError` where it is another one's.
        """
        now = time.time()
        run = RunRow(
            run_id, name, recipe, algorithm, config, seed, folder, _run_status(status),
            result=None, created=now, updated=now,
        )  # fmt: skip
        row = schema.RUN.encode(run, f"run {run_id!r}")
        c = schema.runs.c
        with self._write(f"store run {run_id!r} in", run_id) as conn:
            query = select(schema.runs).where(c.id == run_id)
            old = conn.execute(query).mappings().one_or_none()
            if claim and old is not None:
                if (old["folder"], old["config"]) != (row["folder"], row["config"]):
                    whose = (
                        f"another run named {run_id!r}, in {old['folder']!r}"
                        if old["folder"] != folder
                        else f"a run named {run_id!r} that was started in this folder, "
                        f"{folder!r}, earlier or on another machine"
                    )
                    raise StoreError(
                        f"the store {self.where!r} has {whose}: run names must be unique; "
                        "choose another --output"
                    )
                # A claim of this folder, by the same, was killed before its run began.
                conn.execute(delete(schema.runs).where(c.id == run_id))
                old = None
            if old is None:
                conn.execute(insert(schema.runs).values(row))
                return
            for key in _FIXED:
                if old[key] != row[key]:
                    raise StoreError(
                        f"run {run_id!r} has {key} {old[key]!r}, which cannot be changed to "
                        f"{row[key]!r}: start a new run"
                    )
            check_run_transition(run_id, RolloutStatus(old["status"]), run.status)
            changed = {name: value for name, value in row.items() if name not in _OWN}
            if any(old[name] != value for name, value in changed.items()):
                changed["updated"] = now
                conn.execute(update(schema.runs).where(c.id == run_id).values(changed))

    def give_up_name(self, run_id: str, config: JSON) -> None:
        """Take away a run that was claimed with this configuration, if it has no other since."""
        text = dump_json(config, f"config of run {run_id!r}")
        with self._write(f"remove run {run_id!r} from", run_id) as conn:
            c = schema.runs.c
            conn.execute(delete(schema.runs).where(c.id == run_id, c.config == text))

    def set_run_status(self, run_id: str, status: str, result: JSON | None = None) -> None:
        """Change a run's status and its result. Raises `StoreError` when it cannot follow."""
        new = _run_status(status)
        text = None if result is None else dump_json(result, f"result of run {run_id!r}")
        with self._write(f"store run {run_id!r} in", run_id) as conn:
            check_run_transition(run_id, one_run(conn, run_id).status, new)
            row = {"status": new.value, "result": text, "updated": time.time()}
            conn.execute(update(schema.runs).where(schema.runs.c.id == run_id).values(row))

    # Rollouts

    def put_rollouts(
        self,
        rollouts: Sequence[Rollout],
        spans: Mapping[str, Sequence[SpanRecord]] | None = None,
        training_rows: Mapping[str, Sequence[TrainingRow]] | None = None,
    ) -> Counter[str]:
        """Write a batch in one transaction, with spans and training rows by run; on return it is
        on the disk. Returns how many rollouts are `new`, `updated` and `unchanged`, and how many
        results were filed as `late`.

        The same record again changes nothing. A rollout that has not ended is brought up to date;
        one that has ended stays, and what differs is filed as late (see `late_results`). Spans may
        come before their rollouts, and one that is there stays as it is. Raises
        `StoreError`, with nothing of the batch written, for an unknown run, for a value that cannot
        be stored exactly, and for an id that is taken by another task, step or group.
        """
        batch = encode(rollouts, spans or {}, training_rows or {})
        if not batch.run_ids:
            return Counter()
        with self._write("store rollouts in", *batch.run_ids) as conn:
            return put(conn, batch)

    def discard_training(self, run_id: str, after: int) -> None:
        """Remove the training rows of steps later than `after`, which a resume does again."""
        with self._write("discard training rows of", run_id) as conn:
            _delete(conn, schema.training_rows, run_id, schema.training_rows.c.step > after)

    # Metrics, checkpoints, resources

    def put_metrics(self, run_id: str, step: int, values: JSON) -> None:
        """Add metrics to those of a step; a name that is there is overwritten.

        Raises `StoreError` for NaN and infinity: leave out what could not be computed.
        """
        with self._write("store metrics in", run_id) as conn:
            one_run(conn, run_id)
            c = schema.metrics.c
            query = select(schema.metrics).where(c.run_id == run_id, c.step == step)
            old = conn.execute(query).mappings().one_or_none()
            before = {} if old is None else schema.METRICS.decode(old).values
            text = dump_json(before | values, f"metrics of step {step}")
            _put_row(conn, schema.metrics, {"run_id": run_id, "step": step, "values": text})

    def put_checkpoint(self, run_id: str, step: int, path: str | Path) -> None:
        """Note where the checkpoint of a step lies."""
        with self._write("store a checkpoint in", run_id) as conn:
            one_run(conn, run_id)
            row = schema.CHECKPOINT.encode(CheckpointRow(step, str(path)), f"step {step}")
            _put_row(conn, schema.checkpoints, {"run_id": run_id} | row)

    def put_resource(
        self, run_id: str, name: str, version: int, *, step: int, kind: str, data: JSON
    ) -> None:
        """Add one version of a named resource. A version keeps its content: see `resources`.

        Raises `StoreError` when that version is there with other content.
        """
        record = ResourceRow(name, version, step, kind, data)
        row = {"run_id": run_id} | schema.RESOURCE.encode(record, f"resource {name!r}")
        c = schema.resources.c
        with self._write("store a resource in", run_id) as conn:
            one_run(conn, run_id)
            place = (c.run_id == run_id, c.name == name, c.version == version)
            old = conn.execute(select(schema.resources).where(*place)).mappings().one_or_none()
            if old is None:
                conn.execute(insert(schema.resources).values(row))
            elif dict(old) != row:
                raise StoreError(
                    f"version {version!r} of resource {name!r} is in the store with different "
                    "content: use the next version number for the changed resource"
                )

    def put_events(self, run_id: str, key: str, events: Sequence[JSON]) -> None:
        """Append events under a key of a run, or of no run (""), in one transaction; on return they
        are on the disk. Raises `StoreError` for what JSON cannot hold."""
        c = schema.events.c
        last = select(func.max(c.number)).where(c.run_id == run_id, c.key == key)
        with self._write(f"store events of {key!r} in", run_id) as conn:
            first = 1 + (conn.scalar(last) or 0)
            rows = [EventRow(key, number, data) for number, data in enumerate(events, first)]
            where = f"an event of {key!r}"
            encoded = [{"run_id": run_id} | schema.EVENT.encode(row, where) for row in rows]
            conn.execute(insert(schema.events), encoded)

    def discard_after(self, run_id: str, step: int, *, labels: Sequence[str] = ()) -> Counter[str]:
        """Remove what was recorded for later steps than `step`, which a resume does again.

        Returns how many rows of each table went.

        `labels` names evaluations whose rollouts go too, whatever their step: one that ran after
        the checkpoint of `step` carries that same step. Raises `StoreError` for an unknown run.
        """
        with self._write("discard steps from", run_id) as conn:
            one_run(conn, run_id)
            c = schema.rollouts.c
            gone = or_(c.step > step, c.label.in_(labels))
            # Spans of rollouts that were never stored go with them.
            known = select(c.id).where(c.run_id == run_id)
            of_rollout = schema.spans.c.rollout_id
            lost = or_(of_rollout.in_(known.where(gone)), of_rollout.not_in(known))
            _delete(conn, schema.spans, run_id, lost)
            own = (schema.metrics, schema.checkpoints, schema.resources, schema.training_rows)
            later = {t.name: _delete(conn, t, run_id, t.c.step > step) for t in own}
            return Counter(later | {"rollouts": _delete(conn, schema.rollouts, run_id, gone)})

    def discard_rollout(self, run_id: str, rollout_id: str) -> None:
        """Remove a rollout that is played again, with its spans and training rows."""
        with self._write("discard a rollout of", run_id) as conn:
            for table in (schema.spans, schema.training_rows):
                _delete(conn, table, run_id, table.c.rollout_id == rollout_id)
            _delete(conn, schema.rollouts, run_id, schema.rollouts.c.id == rollout_id)

    # Connections

    @contextmanager
    def _write(self, doing: str, *run_ids: str) -> Generator[Connection]:
        with self._writing:
            self._check_open()
            with self._backend.explained(doing), self._backend.writer.begin() as conn:
                self._backend.lock(conn, run_ids)
                yield conn


def _put_row(conn: Connection, table: Table, row: Row) -> None:
    """Insert a row, or put it in the place of the one with its key."""
    place = [column == row[column.name] for column in table.primary_key]
    if not conn.execute(update(table).where(*place).values(row)).rowcount:
        conn.execute(insert(table).values(row))


def _delete(conn: Connection, table: Table, run_id: str, gone: ColumnElement[bool]) -> int:
    """Remove rows of a run; returns how many there were."""
    return conn.execute(delete(table).where(table.c.run_id == run_id, gone)).rowcount


def _run_status(status: str) -> RolloutStatus:
    try:
        return RolloutStatus(status)
    except ValueError:
        known = ", ".join(RolloutStatus)
        raise StoreError(f"unknown run status {status!r}: choose one of {known}") from None
