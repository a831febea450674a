"""A run's own rows: what it is, and what it has beside rollouts: metrics, checkpoints, resources.

Small tables that are written a row at a time and read whole. `store.py` calls these inside its
transactions; `schema.py` has the columns.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Table, and_, insert, select, update

from tutelage.errors import StoreError
from tutelage.store import schema
from tutelage.store.columns import Columns, Row
from tutelage.store.records import MetricsRow, ResourceRow, RunRow
from tutelage.store.status import RunStatus, check_run_transition
from tutelage.store.values import dump_json

T = TypeVar("T")
_FIXED = ("recipe", "algorithm", "seed")
"""What a run keeps for life: its identifiers and draws come from them."""
_OWN = ("result", "created", "updated")
"""What of a run the store sets itself."""


def put_run(conn: Connection, run: RunRow, row: Row) -> None:
    """Add a run, or bring one that is there up to date; `row` is that of `run`."""
    query = select(schema.runs).where(schema.runs.c.id == run.id)
    old = conn.execute(query).mappings().one_or_none()
    if old is None:
        conn.execute(insert(schema.runs).values(row))
        return
    for key in _FIXED:
        if old[key] != row[key]:
            raise StoreError(
                f"run {run.id!r} has {key} {old[key]!r} and cannot get {row[key]!r}: "
                "start a new run"
            )
    check_run_transition(run.id, RunStatus(old["status"]), run.status)
    changed = {name: value for name, value in row.items() if name not in _OWN}
    if any(old[name] != value for name, value in changed.items()):
        _update(conn, run.id, changed | {"updated": row["updated"]})


def set_run_status(
    conn: Connection, run_id: str, status: RunStatus, result: str | None, now: float
) -> None:
    """Change a run's status and its result, which is JSON text."""
    check_run_transition(run_id, one_run(conn, run_id).status, status)
    _update(conn, run_id, {"status": status.value, "result": result, "updated": now})


def _update(conn: Connection, run_id: str, row: Row) -> None:
    conn.execute(update(schema.runs).where(schema.runs.c.id == run_id).values(row))


def one_run(conn: Connection, run_id: str) -> RunRow:
    """A run. Raises `StoreError` with the nearest ids when there is none."""
    query = select(schema.runs).where(schema.runs.c.id == run_id)
    row = conn.execute(query).mappings().one_or_none()
    if row is not None:
        return schema.RUN.decode(row)
    known = list(conn.scalars(select(schema.runs.c.id).order_by(schema.runs.c.created)))
    near = get_close_matches(run_id, known, n=3, cutoff=0.0)
    hint = f"the nearest are {', '.join(map(repr, near))}" if near else "it has none yet"
    raise StoreError(f"no run {run_id!r} in the store: {hint}")


def all_runs(conn: Connection) -> list[RunRow]:
    """All runs, the oldest first."""
    query = select(schema.runs).order_by(schema.runs.c.created, schema.runs.c.id)
    return [schema.RUN.decode(row) for row in conn.execute(query).mappings()]


def put_metrics(conn: Connection, run_id: str, given: MetricsRow) -> None:
    """Add metrics to those of a step."""
    key: Row = {"run_id": run_id, "step": given.step}
    query = select(schema.metrics).where(_matches(schema.metrics, key))
    old = conn.execute(query).mappings().one_or_none()
    before = {} if old is None else schema.METRICS.decode(old).values
    text = dump_json(before | given.values, f"metrics of step {given.step}")
    put_row(conn, schema.metrics, key | {"values": text})


def put_resource(conn: Connection, run_id: str, given: ResourceRow) -> None:
    """Add one version of a resource. Raises `StoreError` when it is there with other content."""
    row = {"run_id": run_id} | schema.RESOURCE.encode(given, f"resource {given.name!r}")
    key = {name: row[name] for name in ("run_id", "name", "version")}
    query = select(schema.resources).where(_matches(schema.resources, key))
    old = conn.execute(query).mappings().one_or_none()
    if old is None:
        conn.execute(insert(schema.resources).values(row))
    elif dict(old) != row:
        raise StoreError(
            f"version {given.version!r} of resource {given.name!r} is in the store with other "
            "content: give the changed resource the next version"
        )


def put_row(conn: Connection, table: Table, row: Row) -> None:
    """Insert a row, or put it in the place of the one with its key."""
    key = {column.name: row[column.name] for column in table.primary_key}
    changed = conn.execute(update(table).where(_matches(table, key)).values(row)).rowcount
    if not changed:
        conn.execute(insert(table).values(row))


def ordered(
    conn: Connection, table: Table, columns: Columns[T], run_id: str, *tests: ColumnElement[bool]
) -> list[T]:
    """The records of a run in a table, in the order of their keys."""
    query = select(table).where(table.c.run_id == run_id, *tests).order_by(*table.primary_key)
    return [columns.decode(row) for row in conn.execute(query).mappings()]


def _matches(table: Table, key: Row) -> Any:
    return and_(*(table.c[name] == value for name, value in key.items()))
