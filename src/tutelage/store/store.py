"""The store: runs, rollouts, spans, metrics, checkpoints and resources of one database.

One class for what can be put, over what can be asked (`queries.py`): `ingest.py` writes rollouts,
`runs.py` has the rest, `sqlite.py` and `postgres.py` open the database. A method that writes
returns when its transaction is on the disk; threads may share a `Store`, and other processes may
have the same database open. To write off the training loop, see `writer.py`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, Connection, func, insert, make_url, select
from sqlalchemy.exc import ArgumentError

from tutelage.errors import StoreError
from tutelage.store import runs, schema
from tutelage.store.backend import Backend
from tutelage.store.ingest import encode, put
from tutelage.store.queries import Queries
from tutelage.store.records import (
    CheckpointRow,
    EventRow,
    MetricsRow,
    ResourceRow,
    RunRow,
    TrainingRow,
)
from tutelage.store.values import dump_json
from tutelage.tracing.records import SpanRecord
from tutelage.types import JSON, Rollout, RolloutStatus


def open_store(where: str | Path, *, create: bool = True) -> Store:
    """Open the store in a file, given as a path or `sqlite:///FILE`, or in a PostgreSQL database,
    given as `postgresql://[USER@]HOST[:PORT]/DATABASE`.

    Makes the file and the tables unless `create` is False. Raises `StoreError` for another kind of
    URL, another program's database, or tables of another format.
    """
    return Store(_open_backend(where, create))


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
        with self._write(f"store run {run_id!r} in", run_id) as conn:
            if claim:
                runs.claim(conn, run, row, self.where)
            else:
                runs.put_run(conn, run, row)

    def give_up_name(self, run_id: str, config: JSON) -> None:
        """Take away a run that was claimed with this configuration, if it has no other since."""
        with self._write(f"remove run {run_id!r} from", run_id) as conn:
            runs.give_up(conn, run_id, dump_json(config, f"config of run {run_id!r}"))

    def set_run_status(self, run_id: str, status: str, result: JSON | None = None) -> None:
        """Change a run's status and its result. Raises `StoreError` when it cannot follow."""
        new = _run_status(status)
        text = None if result is None else dump_json(result, f"result of run {run_id!r}")
        with self._write(f"store run {run_id!r} in", run_id) as conn:
            runs.set_run_status(conn, run_id, new, text, time.time())

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
            table = schema.training_rows
            runs.delete_rows(conn, table, run_id, table.c.step > after)

    # Metrics, checkpoints, resources

    def put_metrics(self, run_id: str, step: int, values: JSON) -> None:
        """Add metrics to those of a step; a name that is there is overwritten.

        Raises `StoreError` for NaN and infinity: leave out what could not be computed.
        """
        dump_json(values, f"metrics of step {step}")
        with self._write("store metrics in", run_id) as conn:
            runs.one_run(conn, run_id)
            runs.put_metrics(conn, run_id, MetricsRow(step, values))

    def put_checkpoint(self, run_id: str, step: int, path: str | Path) -> None:
        """Note where the checkpoint of a step lies."""
        with self._write("store a checkpoint in", run_id) as conn:
            runs.one_run(conn, run_id)
            row = schema.CHECKPOINT.encode(CheckpointRow(step, str(path)), f"step {step}")
            runs.put_row(conn, schema.checkpoints, {"run_id": run_id} | row)

    def put_resource(
        self, run_id: str, name: str, version: int, *, step: int, kind: str, data: JSON
    ) -> None:
        """Add one version of a named resource. A version keeps its content: see `resources`.

        Raises `StoreError` when that version is there with other content.
        """
        resource_row = ResourceRow(name, version, step, kind, data)
        with self._write("store a resource in", run_id) as conn:
            runs.one_run(conn, run_id)
            runs.put_resource(conn, run_id, resource_row)

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
            runs.one_run(conn, run_id)
            return runs.discard_after(conn, run_id, step, labels)

    def discard_rollout(self, run_id: str, rollout_id: str) -> None:
        """Remove a rollout that is played again, with its spans and training rows."""
        with self._write("discard a rollout of", run_id) as conn:
            runs.discard_rollout(conn, run_id, rollout_id)

    # Connections

    @contextmanager
    def _write(self, doing: str, *run_ids: str) -> Generator[Connection]:
        with self._writing:
            self._check_open()
            with self._backend.explained(doing), self._backend.writer.begin() as conn:
                self._backend.lock(conn, run_ids)
                yield conn


def _run_status(status: str) -> RolloutStatus:
    try:
        return RolloutStatus(status)
    except ValueError:
        known = ", ".join(RolloutStatus)
        raise StoreError(f"unknown run status {status!r}: choose one of {known}") from None


def _open_backend(where: str | Path, create: bool) -> Backend:
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

        return postgres.open_backend(url, create=create)
    from tutelage.store import sqlite

    return sqlite.open_backend(sqlite.database_path(url), create=create)
