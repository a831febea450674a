"""Write batches of rollouts to the tables, as new, repeated or late records.

The columns of a record are defined in `schema.py`; this module builds the rows of a rollout: a head
with its summary, a task and toolsets that are stored once per content, and attempts with their
ordered parts. The digest of an attempt's content distinguishes repeats from changes. The number of
statements depends on the number of tables, not of rollouts: stored records are read together,
`status.merge` decides for each, and rows are written with one `executemany` per table, within the
caller's write transaction. `fetch.py` reads them back.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Table, delete, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from tutelage.errors import StoreError
from tutelage.store import schema
from tutelage.store.columns import Row
from tutelage.store.records import RolloutSummary, TrainingRow
from tutelage.store.status import Stamp, merge_attempts
from tutelage.store.values import dump_json, to_finite
from tutelage.tracing.records import SpanRecord
from tutelage.types import Attempt, Rollout, RolloutStatus, ToolSpec

_Key = tuple[str, str]
"""Ids of a run and a rollout."""
_CHUNK = 500
"""Number of ids in one `IN (...)`, below the limit on bound values of all databases."""


@dataclass(frozen=True, slots=True)
class _AttemptRows:
    """Database rows of an attempt and of its parts by table, with its status and hash."""

    row: Row
    parts: dict[str, list[Row]]
    stamp: Stamp

    def to_late_result(self, number: int) -> _AttemptRows:
        """Return the rows of a late result with the given number, counted from 1."""
        parts = {name: [r | {"late": number} for r in rows] for name, rows in self.parts.items()}
        return _AttemptRows(self.row | {"late": number}, parts, self.stamp)


@dataclass(frozen=True, slots=True)
class _RolloutRows:
    """Table rows of a rollout: its head, current result, task and attempts."""

    head: Row
    summary: Row
    task: Row
    attempts: tuple[_AttemptRows, ...]

    @property
    def key(self) -> _Key:
        return (self.head["run_id"], self.head["id"])


@dataclass(slots=True)
class _IngestBatch:
    """Encoded rows to write in one transaction."""

    rollouts: list[_RolloutRows] = field(default_factory=list[_RolloutRows])
    spans: list[Row] = field(default_factory=list[Row])
    training_rows: list[Row] = field(default_factory=list[Row])
    toolsets: dict[str, Row] = field(default_factory=dict[str, Row])
    """Distinct tools of calls by digest."""
    _digests: dict[Any, tuple[str, tuple[ToolSpec, ...]]] = field(default_factory=dict[Any, Any])

    def toolset(self, tools: tuple[ToolSpec, ...], label: str) -> str | None:
        """Add a toolset to the batch and return its digest, or None for no tools."""
        if not tools:
            return None
        # Keyed by the identity of the schemas, which thousands of calls share. The tools are kept
        # alive, so that no identity is reused.
        key = tuple((t.name, t.description, id(t.parameters)) for t in tools)
        if key not in self._digests:
            text = dump_json(tools, f"tools of {label}")
            digest = _hash_rows([{"tools": text}])
            self._digests[key] = (digest, tools)
            self.toolsets[digest] = {"digest": digest, "tools": text}
        return self._digests[key][0]

    @property
    def run_ids(self) -> set[str]:
        """Return the ids of the runs in the batch."""
        heads = [rollout.head for rollout in self.rollouts]
        return {row["run_id"] for row in (*heads, *self.spans, *self.training_rows)}


def encode_batch(
    rollouts: Sequence[Rollout],
    spans: Mapping[str, Sequence[SpanRecord]],
    training_rows: Mapping[str, Sequence[TrainingRow]],
) -> _IngestBatch:
    """Encode rollouts, spans and training rows as table rows.

    Shared toolsets are encoded once. Raises `StoreError` for values that cannot be stored exactly.
    """
    batch = _IngestBatch()
    for rollout in rollouts:
        if not rollout.attempts:
            raise StoreError(f"rollout {rollout.id!r} has no attempts: add a pending attempt")
        label = f"rollout {rollout.id!r}"
        task = schema.TASK.encode(rollout.task, f"task {rollout.task.id!r} of {label}")
        digest = _hash_rows([task])
        keys: Row = {"run_id": rollout.run_id, "rollout_id": rollout.id}
        encoded = _RolloutRows(
            head=schema.ROLLOUT.encode(rollout, label) | {"task": digest},
            summary=schema.SUMMARY.encode(RolloutSummary.from_rollout(rollout), label),
            task={"digest": digest} | task,
            attempts=tuple(
                _encode_attempt(attempt, keys, position, f"{label}, attempt {position}", batch)
                for position, attempt in enumerate(rollout.attempts)
            ),
        )
        batch.rollouts.append(encoded)
    for run_id, span in ((run_id, span) for run_id, each in spans.items() for span in each):
        if span.rollout_id is None:
            raise StoreError(f"span {span.name!r} does not belong to a rollout: set its rollout_id")
        label = f"span {span.name!r} of rollout {span.rollout_id!r}"
        batch.spans.append({"run_id": run_id} | schema.SPAN.encode(span, label))
    for run_id, row in ((run_id, row) for run_id, each in training_rows.items() for row in each):
        label = f"row of {row.rollout_id!r}"
        batch.training_rows.append({"run_id": run_id} | schema.TRAINING_ROW.encode(row, label))
    return batch


def _encode_attempt(
    attempt: Attempt, keys: Row, position: int, label: str, batch: _IngestBatch
) -> _AttemptRows:
    reward = attempt.reward
    row = schema.ATTEMPT.encode(attempt, label)
    row["reward"] = None if reward is None else to_finite(reward.value, f"reward of {label}")
    parts: dict[str, list[Row]] = {
        "calls": [
            schema.CALL.encode(c, f"{label}, call {i}") | {"toolset": batch.toolset(c.tools, label)}
            for i, c in enumerate(attempt.calls)
        ],
        "tool_results": [
            schema.TOOL_RESULT.encode(r, f"tool {r.name!r} of {label}")
            for r in attempt.tool_results
        ],
        "rewards": [
            {"name": name, "value": to_finite(value, f"reward part {name!r} of {label}")}
            for name, value in ({} if reward is None else reward.parts).items()
        ],
    }
    # The values that decide whether two attempts are equal.
    compared = [schema.ATTEMPT.compare_key(row) | {"reward": row["reward"]}]
    compared += [schema.CALL.compare_key(c) | {"toolset": c["toolset"]} for c in parts["calls"]]
    compared += [*map(schema.TOOL_RESULT.compare_key, parts["tool_results"]), *parts["rewards"]]
    key_values = keys | {"attempt": position, "late": 0}
    part_rows = {
        name: [key_values | {"position": i} | r for i, r in enumerate(rows)]
        for name, rows in parts.items()
    }
    digest = _hash_rows(compared)
    attempt_row = keys | {"position": position, "late": 0, "digest": digest} | row
    return _AttemptRows(attempt_row, part_rows, (RolloutStatus(attempt.status), digest))


def _hash_rows(rows: Sequence[Row]) -> str:
    """Return a hash of table rows, including the length of each value."""
    state = hashlib.blake2b(digest_size=16)
    for row in rows:
        state.update(f"row {len(row)};".encode())
        for value in row.values():
            kind = type(value).__name__
            data = (
                value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
            )
            state.update(f"{kind} {len(data)};".encode())
            state.update(data)
    return state.hexdigest()


@dataclass(slots=True)
class _State:
    """State of one rollout in the store."""

    head: Row
    stamps: list[Stamp] = field(default_factory=list[Stamp])
    late: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Digests of late results by position of the attempt."""


@dataclass(slots=True)
class _Changes:
    """Rows to insert, replace and update in the store."""

    rollouts: list[Row] = field(default_factory=list[Row])
    stale: list[tuple[str, str, int]] = field(default_factory=list[tuple[str, str, int]])
    attempts: list[_AttemptRows] = field(default_factory=list[_AttemptRows])


def put_batch(conn: Connection, batch: _IngestBatch) -> Counter[str]:
    """Write a batch of rollouts. Return the numbers of rollouts and late attempts.

    Rollouts are counted as `new`, `updated` and `unchanged`, attempts as `late`. Raises
    `StoreError` for an unknown run or for records that contradict the stored ones.
    """
    stored_runs = select(schema.runs.c.id).where(schema.runs.c.id.in_(batch.run_ids))
    for run_id in sorted(batch.run_ids - set(conn.scalars(stored_runs))):
        raise StoreError(f"run {run_id!r} is not in the store: call put_run before put_rollouts")
    # Always in the same order, so that two writers cannot deadlock.
    tasks = {r.head["task"]: r.task for r in batch.rollouts}
    for table, rows in ((schema.tasks, tasks), (schema.toolsets, batch.toolsets)):
        _insert_new(conn, table, [rows[digest] for digest in sorted(rows)])
    waves: list[dict[_Key, _RolloutRows]] = []  # no wave contains a rollout twice
    for rollout in batch.rollouts:
        wave = next((wave for wave in waves if rollout.key not in wave), None)
        if wave is None:
            waves.append(wave := {})
        wave[rollout.key] = rollout
    result = Counter[str]()
    for wave in waves:
        stored, changes = _load_stored(conn, wave), _Changes()
        for key, rollout in wave.items():
            result += _add_rollout(changes, rollout, stored.get(key))
        if changes.rollouts:
            statement = _dialect(conn).insert(schema.rollouts)
            summary = {name: statement.excluded[name] for name in schema.SUMMARY.empty_row()}
            keys = list(schema.rollouts.primary_key)
            conn.execute(
                statement.on_conflict_do_update(index_elements=keys, set_=summary), changes.rollouts
            )
        c = schema.attempts.c
        for run_id, rollout_id, position in changes.stale:
            key_values = (c.run_id == run_id, c.rollout_id == rollout_id, c.position == position)
            conn.execute(delete(schema.attempts).where(*key_values, c.late == 0))
        parts = [a.parts | {"attempts": [a.row]} for a in changes.attempts]
        for table in (schema.attempts, schema.calls, schema.tool_results, schema.rewards):
            if rows := [row for part in parts for row in part[table.name]]:
                conn.execute(insert(table), rows)
    _insert_new(conn, schema.spans, batch.spans)
    _insert_new(conn, schema.training_rows, batch.training_rows)
    return result


def _insert_new(conn: Connection, table: Table, rows: list[Row]) -> None:
    """Insert the rows whose keys do not exist yet."""
    if rows:
        conn.execute(_dialect(conn).insert(table).on_conflict_do_nothing(), rows)


def _dialect(conn: Connection) -> Any:
    return postgresql if conn.dialect.name == "postgresql" else sqlite


def _add_rollout(changes: _Changes, rollout: _RolloutRows, stored: _State | None) -> Counter[str]:
    """Add the changes for one rollout, given its stored state."""
    if stored is None:
        changes.rollouts.append(rollout.head | rollout.summary)
        changes.attempts.extend(rollout.attempts)
        return Counter(new=1)
    head = rollout.head
    for name, value in head.items():
        if stored.head[name] != value:
            raise StoreError(
                f"rollout {head['id']!r} of run {head['run_id']!r} has {name} "
                f"{stored.head[name]!r} in the store, which cannot be changed to {value!r}: before "
                "repeating steps, discard the old ones with Store.discard_after"
            )
    stamps = [attempt.stamp for attempt in rollout.attempts]
    added, replaced, late = merge_attempts(f"rollout {head['id']!r}", stored.stamps, stamps)
    changes.stale.extend((*rollout.key, i) for i in replaced)
    changes.attempts.extend(rollout.attempts[i] for i in (*replaced, *added))
    # New late attempts are numbered after the stored ones.
    late_results = [
        rollout.attempts[i].to_late_result(len(stored.late[i]) + 1)
        for i in late
        if rollout.attempts[i].stamp[1] not in stored.late[i]
    ]
    changes.attempts.extend(late_results)
    if not added and not replaced:
        return Counter(unchanged=1, late=len(late_results))
    if len(rollout.attempts) >= len(stored.stamps):
        changes.rollouts.append(head | rollout.summary)
    return Counter(updated=1, late=len(late_results))


def _load_stored(conn: Connection, keys: Iterable[_Key]) -> dict[_Key, _State]:
    by_run: defaultdict[str, list[str]] = defaultdict(list)
    for run_id, rollout_id in keys:
        by_run[run_id].append(rollout_id)
    stored: dict[_Key, _State] = {}
    head, c = schema.rollouts.c, schema.attempts.c
    chunks = ((run, start) for run, ids in by_run.items() for start in range(0, len(ids), _CHUNK))
    for run_id, start in chunks:
        ids = by_run[run_id][start : start + _CHUNK]
        heads = select(schema.rollouts).where(head.run_id == run_id, head.id.in_(ids))
        stored |= {(run_id, r["id"]): _State(dict(r)) for r in conn.execute(heads).mappings()}
        stamps = (
            select(c.rollout_id, c.position, c.late, c.status, c.digest)
            .where(c.run_id == run_id, c.rollout_id.in_(ids))
            .order_by(c.rollout_id, c.position, c.late)
        )
        for rollout_id, position, late, status, digest in conn.execute(stamps):
            entry = stored[run_id, rollout_id]
            if late:
                entry.late[position].append(digest)
            else:
                entry.stamps.append((RolloutStatus(status), digest))
    return stored
