"""How a batch of rollouts enters the tables: what is new, what is a repeat, what came too late.

What one record holds is written by its columns (`schema.py`); here is which rows a rollout makes of
them: a head with its summary, a task and toolsets that are stored once per content, and attempts
with what belongs to them in order. Each attempt also gets a digest of its content, by which a
repeat is told from a change. The number of statements depends on the number of tables, not of
rollouts: known records are read in one go, `status.merge` decides for each, and the rows go in with
one `executemany` a table, inside the caller's write transaction. `fetch.py` reads them back.
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
from tutelage.store.status import Stamp, merge
from tutelage.store.values import dump_json, finite
from tutelage.tracing.records import SpanRecord
from tutelage.types import Attempt, Rollout, RolloutStatus, ToolSpec

_Key = tuple[str, str]
"""A run and a rollout."""
_CHUNK = 500
"""Identifiers in one `IN (...)`, well below every database's limit on bound values."""


@dataclass(frozen=True, slots=True)
class _AttemptRows:
    """One attempt: its own row, the rows of each table below it, and its stamp."""

    row: Row
    parts: dict[str, list[Row]]
    stamp: Stamp

    def as_late(self, number: int) -> _AttemptRows:
        """The same rows, filed as the `number`-th late result (from 1)."""
        parts = {name: [r | {"late": number} for r in rows] for name, rows in self.parts.items()}
        return _AttemptRows(self.row | {"late": number}, parts, self.stamp)


@dataclass(frozen=True, slots=True)
class _RolloutRows:
    """One rollout: its head, its result so far, its task and its attempts."""

    head: Row
    summary: Row
    task: Row
    attempts: tuple[_AttemptRows, ...]

    @property
    def key(self) -> _Key:
        return (self.head["run_id"], self.head["id"])


@dataclass(slots=True)
class _IngestBatch:
    """The rows of one transaction, before it begins."""

    rollouts: list[_RolloutRows] = field(default_factory=list[_RolloutRows])
    spans: list[Row] = field(default_factory=list[Row])
    training_rows: list[Row] = field(default_factory=list[Row])
    toolsets: dict[str, Row] = field(default_factory=dict[str, Row])
    """The distinct tools of calls by their digest."""
    _known: dict[Any, tuple[str, tuple[ToolSpec, ...]]] = field(default_factory=dict[Any, Any])

    def toolset(self, tools: tuple[ToolSpec, ...], where: str) -> str | None:
        """Return the digest under which the tools are stored, written and hashed once; None for no
        tools."""
        if not tools:
            return None
        # By identity of the schemas, which thousands of calls share; the tools are kept, so that
        # no identity is used again while this lives.
        key = tuple((t.name, t.description, id(t.parameters)) for t in tools)
        if key not in self._known:
            text = dump_json(tools, f"tools of {where}")
            digest = _digest([{"tools": text}])
            self._known[key] = (digest, tools)
            self.toolsets[digest] = {"digest": digest, "tools": text}
        return self._known[key][0]

    @property
    def run_ids(self) -> set[str]:
        """The runs that they belong to."""
        heads = [rollout.head for rollout in self.rollouts]
        return {row["run_id"] for row in (*heads, *self.spans, *self.training_rows)}


def encode(
    rollouts: Sequence[Rollout],
    spans: Mapping[str, Sequence[SpanRecord]],
    training_rows: Mapping[str, Sequence[TrainingRow]],
) -> _IngestBatch:
    """All rows of some rollouts, and of spans and training rows by run; what they have in common is
    made once. Raises `StoreError` for what cannot be stored exactly."""
    batch = _IngestBatch()
    for rollout in rollouts:
        if not rollout.attempts:
            raise StoreError(f"rollout {rollout.id!r} has no attempts: put it with a pending one")
        where = f"rollout {rollout.id!r}"
        task = schema.TASK.encode(rollout.task, f"task {rollout.task.id!r} of {where}")
        digest = _digest([task])
        keys: Row = {"run_id": rollout.run_id, "rollout_id": rollout.id}
        encoded = _RolloutRows(
            head=schema.ROLLOUT.encode(rollout, where) | {"task": digest},
            summary=schema.SUMMARY.encode(RolloutSummary.of(rollout), where),
            task={"digest": digest} | task,
            attempts=tuple(
                _encode_attempt(attempt, keys, position, f"{where}, attempt {position}", batch)
                for position, attempt in enumerate(rollout.attempts)
            ),
        )
        batch.rollouts.append(encoded)
    for run_id, span in ((run_id, span) for run_id, some in spans.items() for span in some):
        if span.rollout_id is None:
            raise StoreError(f"span {span.name!r} does not belong to a rollout: join it first")
        where = f"span {span.name!r} of rollout {span.rollout_id!r}"
        batch.spans.append({"run_id": run_id} | schema.SPAN.encode(span, where))
    for run_id, row in ((run_id, row) for run_id, some in training_rows.items() for row in some):
        where = f"row of {row.rollout_id!r}"
        batch.training_rows.append({"run_id": run_id} | schema.TRAINING_ROW.encode(row, where))
    return batch


def _encode_attempt(
    attempt: Attempt, keys: Row, position: int, where: str, batch: _IngestBatch
) -> _AttemptRows:
    reward = attempt.reward
    row = schema.ATTEMPT.encode(attempt, where)
    row["reward"] = None if reward is None else finite(reward.value, f"reward of {where}")
    parts: dict[str, list[Row]] = {
        "calls": [
            schema.CALL.encode(c, f"{where}, call {i}") | {"toolset": batch.toolset(c.tools, where)}
            for i, c in enumerate(attempt.calls)
        ],
        "tool_results": [
            schema.TOOL_RESULT.encode(r, f"tool {r.name!r} of {where}")
            for r in attempt.tool_results
        ],
        "rewards": [
            {"name": name, "value": finite(value, f"reward part {name!r} of {where}")}
            for name, value in ({} if reward is None else reward.parts).items()
        ],
    }
    # What decides whether two attempts are equal.
    same = [schema.ATTEMPT.counted(row) | {"reward": row["reward"]}]
    same += [schema.CALL.counted(c) | {"toolset": c["toolset"]} for c in parts["calls"]]
    same += [*map(schema.TOOL_RESULT.counted, parts["tool_results"]), *parts["rewards"]]
    place = keys | {"attempt": position, "late": 0}
    placed = {
        name: [place | {"position": i} | r for i, r in enumerate(rows)]
        for name, rows in parts.items()
    }
    digest = _digest(same)
    own = keys | {"position": position, "late": 0, "digest": digest} | row
    return _AttemptRows(own, placed, (RolloutStatus(attempt.status), digest))


def _digest(rows: Sequence[Row]) -> str:
    """A hash of the rows' values; lengths go in, so that no two contents share one byte string."""
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
class _Known:
    """What the store already has of one rollout."""

    head: Row
    stamps: list[Stamp] = field(default_factory=list[Stamp])
    late: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Digests of late results, by position of the attempt."""


@dataclass(slots=True)
class _Changes:
    """Rows to write, gathered over a batch."""

    rollouts: list[Row] = field(default_factory=list[Row])
    stale: list[tuple[str, str, int]] = field(default_factory=list[tuple[str, str, int]])
    attempts: list[_AttemptRows] = field(default_factory=list[_AttemptRows])


def put(conn: Connection, batch: _IngestBatch) -> Counter[str]:
    """Write a batch; returns how many rollouts are `new`, `updated` and `unchanged`, and how many
    attempts were filed as `late`.

    Raises `StoreError` for a run that is not there or records that contradict.
    """
    known_runs = select(schema.runs.c.id).where(schema.runs.c.id.in_(batch.run_ids))
    for run_id in sorted(batch.run_ids - set(conn.scalars(known_runs))):
        raise StoreError(f"run {run_id!r} is not in the store: call put_run before put_rollouts")
    # In one order everywhere, so that no two writers wait for each other.
    tasks = {r.head["task"]: r.task for r in batch.rollouts}
    for table, rows in ((schema.tasks, tasks), (schema.toolsets, batch.toolsets)):
        _insert_new(conn, table, [rows[digest] for digest in sorted(rows)])
    waves: list[dict[_Key, _RolloutRows]] = []  # in none of which a rollout is twice
    for rollout in batch.rollouts:
        wave = next((wave for wave in waves if rollout.key not in wave), None)
        if wave is None:
            waves.append(wave := {})
        wave[rollout.key] = rollout
    result = Counter[str]()
    for wave in waves:
        known, changes = _load_known(conn, wave), _Changes()
        for key, rollout in wave.items():
            result += _place(changes, rollout, known.get(key))
        if changes.rollouts:
            made = _dialect(conn).insert(schema.rollouts)
            summary = {name: made.excluded[name] for name in schema.SUMMARY.empty()}
            keys = list(schema.rollouts.primary_key)
            conn.execute(
                made.on_conflict_do_update(index_elements=keys, set_=summary), changes.rollouts
            )
        c = schema.attempts.c
        for run_id, rollout_id, position in changes.stale:
            place = (c.run_id == run_id, c.rollout_id == rollout_id, c.position == position)
            conn.execute(delete(schema.attempts).where(*place, c.late == 0))
        parts = [a.parts | {"attempts": [a.row]} for a in changes.attempts]
        for table in (schema.attempts, schema.calls, schema.tool_results, schema.rewards):
            if rows := [row for part in parts for row in part[table.name]]:
                conn.execute(insert(table), rows)
    _insert_new(conn, schema.spans, batch.spans)
    _insert_new(conn, schema.training_rows, batch.training_rows)
    return result


def _insert_new(conn: Connection, table: Table, rows: list[Row]) -> None:
    """Insert rows; one whose key is there, as from another process, is left as it is."""
    if rows:
        conn.execute(_dialect(conn).insert(table).on_conflict_do_nothing(), rows)


def _dialect(conn: Connection) -> Any:
    return postgresql if conn.dialect.name == "postgresql" else sqlite


def _place(changes: _Changes, rollout: _RolloutRows, known: _Known | None) -> Counter[str]:
    """Add one rollout's rows to `changes`."""
    if known is None:
        changes.rollouts.append(rollout.head | rollout.summary)
        changes.attempts.extend(rollout.attempts)
        return Counter(new=1)
    head = rollout.head
    for name, value in head.items():
        if known.head[name] != value:
            raise StoreError(
                f"rollout {head['id']!r} of run {head['run_id']!r} is in the store with {name} "
                f"{known.head[name]!r} and cannot be replaced with {value!r}: before repeating "
                "steps, discard the old ones (Store.discard_after)"
            )
    stamps = [attempt.stamp for attempt in rollout.attempts]
    added, replaced, filed = merge(f"rollout {head['id']!r}", known.stamps, stamps)
    changes.stale.extend((*rollout.key, i) for i in replaced)
    changes.attempts.extend(rollout.attempts[i] for i in (*replaced, *added))
    # Late attempts that were not filed before are numbered after those that were.
    late = [
        rollout.attempts[i].as_late(len(known.late[i]) + 1)
        for i in filed
        if rollout.attempts[i].stamp[1] not in known.late[i]
    ]
    changes.attempts.extend(late)
    if not added and not replaced:
        return Counter(unchanged=1, late=len(late))
    if len(rollout.attempts) >= len(known.stamps):
        changes.rollouts.append(head | rollout.summary)
    return Counter(updated=1, late=len(late))


def _load_known(conn: Connection, keys: Iterable[_Key]) -> dict[_Key, _Known]:
    by_run: defaultdict[str, list[str]] = defaultdict(list)
    for run_id, rollout_id in keys:
        by_run[run_id].append(rollout_id)
    known: dict[_Key, _Known] = {}
    head, c = schema.rollouts.c, schema.attempts.c
    places = ((run, at) for run, ids in by_run.items() for at in range(0, len(ids), _CHUNK))
    for run_id, at in places:
        ids = by_run[run_id][at : at + _CHUNK]
        heads = select(schema.rollouts).where(head.run_id == run_id, head.id.in_(ids))
        known |= {(run_id, r["id"]): _Known(dict(r)) for r in conn.execute(heads).mappings()}
        stamps = (
            select(c.rollout_id, c.position, c.late, c.status, c.digest)
            .where(c.run_id == run_id, c.rollout_id.in_(ids))
            .order_by(c.rollout_id, c.position, c.late)
        )
        for rollout_id, position, late, status, digest in conn.execute(stamps):
            entry = known[run_id, rollout_id]
            if late:
                entry.late[position].append(digest)
            else:
                entry.stamps.append((RolloutStatus(status), digest))
    return known
