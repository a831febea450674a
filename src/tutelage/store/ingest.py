"""How a batch of rollouts enters the tables: what is new, what is a repeat, what came too late.

The number of statements depends on the number of tables, not of rollouts: known records are read
in one go, `status.merge` decides for each, and the rows go in with one `executemany` a table.
Everything runs inside the caller's write transaction. `rows.py` makes the rows, `fetch.py` reads
them back.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, Table, bindparam, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from tutelage.errors import StoreError
from tutelage.store import schema
from tutelage.store.columns import Row
from tutelage.store.rows import AttemptRows, RolloutRows
from tutelage.store.status import Merge, Stamp, merge
from tutelage.types import RolloutStatus

Key = tuple[str, str]
CHUNK = 500
"""Identifiers in one `IN (...)`, well below every database's limit on bound values."""


@dataclass(frozen=True, slots=True)
class PutResult:
    """What became of a batch: rollouts by fate, and how many attempts were filed as late."""

    new: int = 0
    updated: int = 0
    unchanged: int = 0
    late: int = 0

    def __add__(self, other: PutResult) -> PutResult:
        return PutResult(
            self.new + other.new,
            self.updated + other.updated,
            self.unchanged + other.unchanged,
            self.late + other.late,
        )


@dataclass(slots=True)
class _Known:
    """What the store already has of one rollout."""

    head: Row
    stamps: list[Stamp] = field(default_factory=list[Stamp])
    late: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    """Digests of late results, by position of the attempt."""


@dataclass(slots=True)
class _Changes:
    """Rows to write, gathered over a batch."""

    heads: list[Row] = field(default_factory=list[Row])
    summaries: list[Row] = field(default_factory=list[Row])
    stale: list[Row] = field(default_factory=list[Row])
    attempts: list[AttemptRows] = field(default_factory=list[AttemptRows])


def chunks(items: Sequence[str], size: int = CHUNK) -> Generator[Sequence[str]]:
    """Consecutive slices of at most `size` items."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def put_encoded(conn: Connection, rollouts: Sequence[RolloutRows]) -> PutResult:
    """Write a batch. Raises `StoreError` for a run that is not there or records that contradict."""
    result = PutResult()
    tasks = {rollout.head["task"]: rollout.task for rollout in rollouts}
    toolsets = {d: {"digest": d, "tools": t} for r in rollouts for d, t in r.toolsets.items()}
    insert_missing(conn, schema.tasks, tasks)
    insert_missing(conn, schema.toolsets, toolsets)
    for wave in _waves(rollouts):
        result += _put_wave(conn, wave)
    return result


def insert_missing(conn: Connection, table: Table, rows: dict[str, Row]) -> None:
    """Insert rows by digest that are not there; other processes may insert the same ones."""
    missing = set(rows)
    for chunk in chunks(list(rows)):
        missing -= set(conn.scalars(select(table.c.digest).where(table.c.digest.in_(chunk))))
    # In one order everywhere, so that no two writers wait for each other.
    insert_new(conn, table, [rows[digest] for digest in sorted(missing)])


def insert_new(conn: Connection, table: Table, rows: list[Row]) -> None:
    """Insert rows; one whose key is there is left as it is."""
    if rows:
        dialect = postgresql if conn.dialect.name == "postgresql" else sqlite
        conn.execute(dialect.insert(table).on_conflict_do_nothing(), rows)


def _waves(rollouts: Iterable[RolloutRows]) -> list[dict[Key, RolloutRows]]:
    """The batch in order, cut so that no rollout occurs twice in a wave."""
    waves: list[dict[Key, RolloutRows]] = []
    seen: dict[Key, int] = {}
    for rollout in rollouts:
        depth = seen.get(rollout.key, 0)
        seen[rollout.key] = depth + 1
        if depth == len(waves):
            waves.append({})
        waves[depth][rollout.key] = rollout
    return waves


def _put_wave(conn: Connection, wave: dict[Key, RolloutRows]) -> PutResult:
    known = _load_known(conn, list(wave))
    changes = _Changes()
    result = PutResult()
    for key, rollout in wave.items():
        result += _place(changes, rollout, known.get(key))
    check_runs(conn, {head["run_id"] for head in changes.heads})
    _apply(conn, changes)
    return result


def _place(changes: _Changes, rollout: RolloutRows, known: _Known | None) -> PutResult:
    """Add one rollout's rows to `changes`."""
    if known is None:
        changes.heads.append(rollout.head | rollout.summary)
        changes.attempts.extend(rollout.attempts)
        return PutResult(new=1)
    _check_head(rollout.head, known.head)
    run_id, rollout_id = rollout.key
    where = f"rollout {rollout_id!r}"
    decided = merge(where, known.stamps, [attempt.stamp for attempt in rollout.attempts])
    for i in decided.replace:
        changes.stale.append({"key_run": run_id, "key_rollout": rollout_id, "key_position": i})
    changes.attempts.extend(rollout.attempts[i] for i in (*decided.replace, *decided.add))
    late = _late(rollout, known, decided)
    changes.attempts.extend(late)
    if decided.add or decided.replace:
        if len(rollout.attempts) >= len(known.stamps):
            place = {"key_run": run_id, "key_rollout": rollout_id}
            changes.summaries.append(place | rollout.summary)
        return PutResult(updated=1, late=len(late))
    return PutResult(unchanged=1, late=len(late))


def _late(rollout: RolloutRows, known: _Known, decided: Merge) -> list[AttemptRows]:
    """The late attempts that were not filed before, numbered after those that were."""
    out: list[AttemptRows] = []
    for i in decided.late:
        filed = known.late.get(i, [])
        if rollout.attempts[i].stamp.digest not in filed:
            out.append(rollout.attempts[i].as_late(len(filed) + 1))
    return out


def _check_head(new: Row, old: Row) -> None:
    for name, value in new.items():
        if old[name] != value:
            raise StoreError(
                f"rollout {new['id']!r} of run {new['run_id']!r} is in the store with {name} "
                f"{old[name]!r}, and is put again with {value!r}: when steps are done again, "
                "discard the old ones first (Store.discard_after)"
            )


def check_runs(conn: Connection, run_ids: set[str]) -> None:
    """Raises `StoreError` unless all runs are there."""
    if not run_ids:
        return
    found = set(conn.scalars(select(schema.runs.c.id).where(schema.runs.c.id.in_(run_ids))))
    for run_id in sorted(run_ids - found):
        raise StoreError(f"run {run_id!r} is not in the store: call put_run before put_rollouts")


def _load_known(conn: Connection, keys: Sequence[Key]) -> dict[Key, _Known]:
    by_run: dict[str, list[str]] = {}
    for run_id, rollout_id in keys:
        by_run.setdefault(run_id, []).append(rollout_id)
    known: dict[Key, _Known] = {}
    for run_id, ids in by_run.items():
        for chunk in chunks(ids):
            known.update(_load_chunk(conn, run_id, chunk))
    return known


def _load_chunk(conn: Connection, run_id: str, ids: Sequence[str]) -> dict[Key, _Known]:
    heads, attempts = schema.rollouts, schema.attempts
    query = select(heads).where(heads.c.run_id == run_id, heads.c.id.in_(ids))
    known = {(run_id, r["id"]): _Known(dict(r)) for r in conn.execute(query).mappings()}
    if not known:
        return known
    c = attempts.c
    stamps = (
        select(c.rollout_id, c.position, c.late, c.status, c.digest)
        .where(c.run_id == run_id, c.rollout_id.in_(ids))
        .order_by(c.rollout_id, c.position, c.late)
    )
    for rollout_id, position, late, status, digest in conn.execute(stamps):
        entry = known[(run_id, rollout_id)]
        if late:
            entry.late.setdefault(position, []).append(digest)
        else:
            entry.stamps.append(Stamp(RolloutStatus(status), digest))
    return known


def _apply(conn: Connection, changes: _Changes) -> None:
    _insert(conn, schema.rollouts, changes.heads)
    if changes.stale:
        c = schema.attempts.c
        conn.execute(
            delete(schema.attempts).where(
                c.run_id == bindparam("key_run"),
                c.rollout_id == bindparam("key_rollout"),
                c.position == bindparam("key_position"),
                c.late == 0,
            ),
            changes.stale,
        )
    if changes.summaries:
        c = schema.rollouts.c
        conn.execute(
            update(schema.rollouts)
            .where(c.run_id == bindparam("key_run"), c.id == bindparam("key_rollout"))
            .values({name: bindparam(name) for name in schema.SUMMARY.empty()}),
            changes.summaries,
        )
    _insert(conn, schema.attempts, [a.row for a in changes.attempts])
    for table in (schema.calls, schema.tool_results, schema.rewards):
        rows = [row for a in changes.attempts for row in a.parts[table.name]]
        _insert(conn, table, rows)


def _insert(conn: Connection, table: Table, rows: list[Row]) -> None:
    if rows:
        conn.execute(insert(table), rows)
