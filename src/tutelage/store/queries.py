"""The queries of a store for runs, rollouts and training data, read from snapshots.

Whole records contain every token; sums, grades and failures use only small columns, so that a run
of a hundred thousand rollouts is summed, sorted or counted quickly. `fetch.py` reads whole records,
`records.py` has the other result types, and `store.py` the writes.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, TypeVar, Unpack

from sqlalchemy import ColumnElement, Connection, Table, and_, func, select

from tutelage.errors import StoreError, TutelageError
from tutelage.store import schema
from tutelage.store.backend import Backend
from tutelage.store.columns import Columns
from tutelage.store.fetch import PAGE_SIZE, RolloutFilter, load_attempts, resolve_id, rollout_order
from tutelage.store.records import (
    CheckpointRow,
    FailureCount,
    Grade,
    MetricsRow,
    ResourceRow,
    RunRow,
    Totals,
    TrainingRow,
)
from tutelage.store.values import load_json
from tutelage.tracing.records import SpanRecord
from tutelage.types import JSON, Attempt, FailureCause, Mode, Rollout, RolloutStatus

T = TypeVar("T")
_BYTES = 4
"""Size of a packed token id; see `values.pack`."""


class Queries:
    """Thread-safe read access to a store's database."""

    def __init__(self, backend: Backend) -> None:
        self.where = backend.where
        """The path, or the URL without its password."""
        self._backend = backend
        # Orders the threads of this process; other processes poll the lock of the database.
        self._writing = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Close the database. Later queries raise `StoreError`. May be called twice."""
        with self._writing:
            self._closed = True
            self._backend.close()

    def runs(self) -> list[RunRow]:
        """Return all runs, oldest first."""
        query = select(schema.runs).order_by(schema.runs.c.created, schema.runs.c.id)
        with self._read("read runs from") as conn:
            return [schema.RUN.decode(row) for row in conn.execute(query).mappings()]

    def run(self, run_id: str) -> RunRow:
        """Return a run. Raises `StoreError` with the closest ids if it does not exist."""
        with self._read(f"read run {run_id!r} from") as conn:
            return read_run(conn, run_id)

    # Rollouts

    def rollout(self, rollout_id: str, run_id: str | None = None) -> Rollout:
        """Return the complete record of a rollout by its full id.

        `run_id` is only needed if the store has several runs with the same seed.
        """
        rollout = self.find_rollout(rollout_id, run_id)
        if rollout.id != rollout_id:
            raise StoreError(f"no rollout {rollout_id!r}: did you mean {rollout.id!r}?")
        return rollout

    def find_rollout(self, prefix: str, run_id: str | None = None) -> Rollout:
        """Return a rollout by its id or by a unique prefix of it.

        Raises `StoreError` with the candidates if several match, or the closest ids if none does.
        """
        with self._read("read a rollout from") as conn:
            run, rollout_id = resolve_id(conn, prefix, run_id)
            return _load_rollouts(conn, run, [rollout_id])[0]

    def rollouts(
        self, run_id: str, *, limit: int | None = None, **filters: Unpack[RolloutFilter]
    ) -> Iterator[Rollout]:
        """Yield the complete records of matching rollouts, reading lazily.

        The label of training rollouts is ''. Rollouts are sorted by step, label, mode, group and
        position. Rollouts added during the iteration are not included. Raises `StoreError` for an
        unknown run.
        """
        with self._read("read rollouts from", run_id) as conn:
            query = select(schema.rollouts.c.id).where(*_clauses(run_id, filters))
            ids = list(conn.scalars(query.order_by(*rollout_order()).limit(limit)))
        return self._read_pages(run_id, ids)

    def _read_pages(self, run_id: str, ids: list[str]) -> Generator[Rollout]:
        for start in range(0, len(ids), PAGE_SIZE):
            with self._read("read rollouts from") as conn:
                records = _load_rollouts(conn, run_id, ids[start : start + PAGE_SIZE])
            yield from records

    def count(self, run_id: str, **filters: Unpack[RolloutFilter]) -> int:
        """Count matching rollouts. Raises `StoreError` for an unknown run."""
        query = select(func.count()).select_from(schema.rollouts).where(*_clauses(run_id, filters))
        with self._read("count rollouts of", run_id) as conn:
            return conn.execute(query).scalar_one()

    def failures(self, run_id: str, **filters: Unpack[RolloutFilter]) -> list[FailureCount]:
        """Count matching failed and cancelled rollouts by cause, most frequent first."""
        heads, attempts = schema.rollouts, schema.attempts
        last_attempt = and_(
            attempts.c.run_id == heads.c.run_id,
            attempts.c.rollout_id == heads.c.id,
            attempts.c.late == 0,
            attempts.c.failure_cause.is_not_distinct_from(heads.c.cause),
        )
        ended = [RolloutStatus.FAILED.value, RolloutStatus.CANCELLED.value]
        query = (
            select(heads.c.cause, heads.c.id, attempts.c.failure_message)
            .select_from(heads.outerjoin(attempts, last_attempt))
            .where(*_clauses(run_id, filters), heads.c.status.in_(ended))
            .order_by(*rollout_order(), attempts.c.position.desc())
        )
        messages_by_cause: dict[str | None, dict[str, str]] = {}
        with self._read("count failures of", run_id) as conn:
            for cause, rollout_id, message in conn.execute(query):
                messages_by_cause.setdefault(cause, {}).setdefault(rollout_id, message or "")
        counts: list[FailureCount] = []
        for cause, messages in messages_by_cause.items():
            typed = None if cause is None else FailureCause(cause)
            counts.append(FailureCount(typed, len(messages), next(iter(messages.values()))))
        return sorted(counts, key=lambda count: (-count.number, count.cause or ""))

    def totals(self, run_id: str) -> Totals:
        """Count the rollouts, calls and tokens of a run over all attempts.

        Raises `StoreError` for an unknown run.
        """
        calls, rollouts = schema.calls.c, schema.rollouts.c
        heads = select(rollouts.mode, func.count()).where(rollouts.run_id == run_id)
        sums = select(
            func.count(),
            func.coalesce(func.sum(func.length(calls.prompt_ids)), 0),
            func.coalesce(func.sum(func.length(calls.token_ids)), 0),
        ).where(calls.run_id == run_id, calls.late == 0)
        with self._read("sum up rollouts of", run_id) as conn:
            by_mode: dict[str, int] = {
                row[0]: row[1] for row in conn.execute(heads.group_by(rollouts.mode))
            }
            count, prompt_bytes, sampled_bytes = conn.execute(sums).one()
        return Totals(
            rollouts=sum(by_mode.values()),
            tests=by_mode.get(Mode.TEST.value, 0),
            calls=count,
            prompt_tokens=int(prompt_bytes) // _BYTES,
            sampled_tokens=int(sampled_bytes) // _BYTES,
        )

    def grades(
        self, run_id: str, *labels: str, mode: Mode = Mode.TEST, part: str = "exact"
    ) -> list[Grade]:
        """Return the final rewards of rollouts with these labels, and one part of each reward. The
        result is sorted by label, then by task."""
        heads, attempts, rewards = schema.rollouts.c, schema.attempts.c, schema.rewards.c
        last = (
            select(func.max(attempts.position))
            .where(attempts.run_id == heads.run_id, attempts.rollout_id == heads.id)
            .where(attempts.late == 0)
            .correlate(schema.rollouts)
            .scalar_subquery()
        )
        part_of_last = and_(
            rewards.run_id == heads.run_id,
            rewards.rollout_id == heads.id,
            rewards.attempt == last,
            rewards.late == 0,
            rewards.name == part,
        )
        query = (
            select(
                heads.label,
                schema.tasks.c.id.label("task"),
                schema.tasks.c.fields,
                heads.reward,
                heads.cause.label("failure"),
                rewards.value.label("part"),
            )
            .select_from(
                schema.rollouts.join(schema.tasks, heads.task == schema.tasks.c.digest).outerjoin(
                    schema.rewards, part_of_last
                )
            )
            .where(heads.run_id == run_id, heads.mode == mode.value, heads.label.in_(labels))
            .order_by(heads.label, heads.step, heads.group, heads["index"], heads.id)
        )
        with self._read("read rewards from", run_id) as conn:
            rows = conn.execute(query).mappings()
            return [Grade(**{**row, "fields": load_json(row["fields"])}) for row in rows]

    def late_results(self, run_id: str, rollout_id: str) -> tuple[Attempt, ...]:
        """Return the results that arrived after the attempts of a rollout had ended, in order."""
        with self._read("read late results from") as conn:
            return tuple(load_attempts(conn, run_id, [rollout_id], late=True)[rollout_id])

    # Spans

    def spans(self, run_id: str, rollout_id: str) -> list[SpanRecord]:
        """Return the spans of a rollout from user code and other programs, by start time.

        The spans that are derived from the rollout's record are not included: `tracing.whole_trace`
        combines both into complete trees.
        """
        c = schema.spans.c
        query = (
            select(schema.spans)
            .where(c.run_id == run_id, c.rollout_id == rollout_id)
            .order_by(c.start_ns, c.trace_id, c.span_id)
        )
        with self._read("read spans from") as conn:
            return [schema.SPAN.decode(row) for row in conn.execute(query).mappings()]

    # Other records of a run

    def training_rows(
        self, run_id: str, *, rollout_id: str | None = None, step: int | None = None
    ) -> list[TrainingRow]:
        """Return the training rows of a rollout, of a step, or of the whole run, in order."""
        c = schema.training_rows.c
        values = {c.rollout_id: rollout_id, c.step: step}
        tests = [column == value for column, value in values.items() if value is not None]
        return self._read_ordered(schema.training_rows, schema.TRAINING_ROW, run_id, *tests)

    def metrics(self, run_id: str) -> list[MetricsRow]:
        """Return the metrics of each step, in order."""
        return self._read_ordered(schema.metrics, schema.METRICS, run_id)

    def checkpoints(self, run_id: str) -> list[CheckpointRow]:
        """Return all checkpoints of a run, by step."""
        return self._read_ordered(schema.checkpoints, schema.CHECKPOINT, run_id)

    def resources(self, run_id: str) -> list[ResourceRow]:
        """Return all resources of a run, by name and version."""
        return self._read_ordered(schema.resources, schema.RESOURCE, run_id)

    def events(self, run_id: str, key: str) -> list[JSON]:
        """Return the events stored under a key of a run, in order."""
        c = schema.events.c
        query = select(c.data).where(c.run_id == run_id, c.key == key).order_by(c.number)
        with self._read("read events from") as conn:
            return [load_json(text) for text in conn.scalars(query)]

    def rollout_ids(self, run_id: str) -> list[str]:
        """Return the ids of all rollouts of a run."""
        query = select(schema.rollouts.c.id).where(schema.rollouts.c.run_id == run_id)
        with self._read("list rollouts of") as conn:
            return list(conn.scalars(query))

    @contextmanager
    def _read(self, action: str, run_id: str | None = None) -> Generator[Connection]:
        """Open a snapshot for reading. Raises `StoreError` if the run does not exist."""
        self._check_open()
        with self._backend.explain_errors(action), self._backend.reader.begin() as conn:
            if run_id is not None:
                read_run(conn, run_id)
            try:
                yield conn
            except TutelageError:
                raise
            except (ValueError, TypeError, LookupError, struct.error) as error:
                raise StoreError(
                    f"cannot {action} {self.where!r}: it is corrupt; move it away or restore a "
                    f"backup ({type(error).__name__}: {error})"
                ) from error

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self.where!r} is closed: open it again")

    def _read_ordered(
        self, table: Table, columns: Columns[T], run_id: str, *tests: ColumnElement[bool]
    ) -> list[T]:
        """Return the records of a run in a table, in the order of their keys."""
        query = select(table).where(table.c.run_id == run_id, *tests).order_by(*table.primary_key)
        with self._read(f"read {table.name} from", run_id) as conn:
            return [columns.decode(row) for row in conn.execute(query).mappings()]


def read_run(conn: Connection, run_id: str) -> RunRow:
    """Return a run. Raises `StoreError` with the closest ids if it does not exist."""
    query = select(schema.runs).where(schema.runs.c.id == run_id)
    row = conn.execute(query).mappings().one_or_none()
    if row is not None:
        return schema.RUN.decode(row)
    run_ids = list(conn.scalars(select(schema.runs.c.id).order_by(schema.runs.c.created)))
    closest = get_close_matches(run_id, run_ids, n=3, cutoff=0.0)
    hint = f"the closest are {', '.join(map(repr, closest))}" if closest else "it has no runs yet"
    raise StoreError(f"no run {run_id!r} in the store: {hint}")


def _clauses(run_id: str, filters: RolloutFilter) -> list[ColumnElement[bool]]:
    """Convert a rollout filter to SQL conditions."""
    c = schema.rollouts.c
    tests: dict[str, Callable[[Any], ColumnElement[bool]]] = {
        "mode": lambda mode: c.mode == Mode(mode).value,
        "step": lambda step: c.step == step,
        "after": lambda step: c.step > step,
        "label": lambda label: c.label == label,
        "status": lambda status: c.status == RolloutStatus(status).value,
        "cause": lambda cause: c.cause == FailureCause(cause).value,
        "min_reward": lambda minimum: c.reward >= minimum,
    }
    return [
        c.run_id == run_id,
        *(tests[name](value) for name, value in filters.items() if value is not None),
    ]


def _load_rollouts(conn: Connection, run_id: str, ids: Sequence[str]) -> list[Rollout]:
    """Load complete rollouts in the order of `ids`, omitting ids that no longer exist."""
    heads = schema.rollouts
    query = (
        select(heads, schema.tasks.c.id.label("task_id"), schema.tasks.c.fields)
        .join(schema.tasks, heads.c.task == schema.tasks.c.digest)
        .where(heads.c.run_id == run_id, heads.c.id.in_(ids))
    )
    values = {row["id"]: row for row in conn.execute(query).mappings()}
    attempts = load_attempts(conn, run_id, list(values), late=False)
    rollouts: list[Rollout] = []
    for rollout_id in ids:
        if (head := values.get(rollout_id)) is not None:
            task = schema.TASK.decode({"id": head["task_id"], "fields": head["fields"]})
            attempts_of_rollout = tuple(attempts[rollout_id])
            if not attempts_of_rollout:
                raise LookupError(f"rollout {rollout_id!r} has no attempts")
            rollouts.append(schema.ROLLOUT.decode(head, task=task, attempts=attempts_of_rollout))
    return rollouts
