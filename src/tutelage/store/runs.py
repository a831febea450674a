"""A run's own rows: what it is, what it has beside rollouts, and what is taken out of it again.

Metrics, checkpoints and resources are small tables, written a row at a time. Steps and rollouts
that a resume does a second time are removed: deleting a rollout deletes its attempts and all below
them (`schema.py`); spans and training rows stand by themselves, since they may be there without it.
`store.py` calls these inside its transactions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, insert, or_, select, update

from tutelage.errors import StoreError
from tutelage.store import schema
from tutelage.store.columns import Row
from tutelage.store.records import MetricsRow, ResourceRow, RunRow
from tutelage.store.status import check_run_transition
from tutelage.store.values import dump_json
from tutelage.types import RolloutStatus

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
                f"run {run.id!r} has {key} {old[key]!r}, which cannot be changed to {row[key]!r}: "
                "start a new run"
            )
    check_run_transition(run.id, RolloutStatus(old["status"]), run.status)
    changed = {name: value for name, value in row.items() if name not in _OWN}
    if any(old[name] != value for name, value in changed.items()):
        _update(conn, run.id, changed | {"updated": row["updated"]})


def claim(conn: Connection, run: RunRow, row: Row, where: str) -> None:
    """Add a new run, whose configuration says who claims its name. Raises `StoreError` where that
    is another one's; a claim of the same folder by the same was killed before it began."""
    c = schema.runs.c
    old = conn.execute(select(c.folder, c.config).where(c.id == run.id)).one_or_none()
    if old is not None and tuple(old) != (row["folder"], row["config"]):
        whose = (
            f"another run named {run.id!r}, in {old.folder!r}"
            if old.folder != run.folder
            else f"a run named {run.id!r} that was started in this folder, {old.folder!r}, earlier "
            "or on another machine"
        )
        raise StoreError(
            f"the store {where!r} has {whose}: run names must be unique; choose another --output"
        )
    conn.execute(delete(schema.runs).where(c.id == run.id))
    conn.execute(insert(schema.runs).values(row))


def give_up(conn: Connection, run_id: str, config: str) -> None:
    """Take away a claim."""
    c = schema.runs.c
    conn.execute(delete(schema.runs).where(c.id == run_id, c.config == config))


def set_run_status(
    conn: Connection, run_id: str, status: RolloutStatus, result: str | None, now: float
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
    hint = f"the closest are {', '.join(map(repr, near))}" if near else "it has no runs yet"
    raise StoreError(f"no run {run_id!r} in the store: {hint}")


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
            f"version {given.version!r} of resource {given.name!r} is in the store with different "
            "content: use the next version number for the changed resource"
        )


def put_row(conn: Connection, table: Table, row: Row) -> None:
    """Insert a row, or put it in the place of the one with its key."""
    key = {column.name: row[column.name] for column in table.primary_key}
    changed = conn.execute(update(table).where(_matches(table, key)).values(row)).rowcount
    if not changed:
        conn.execute(insert(table).values(row))


def _matches(table: Table, key: Row) -> Any:
    return and_(*(table.c[name] == value for name, value in key.items()))


def discard_after(conn: Connection, run_id: str, step: int, labels: Sequence[str]) -> Counter[str]:
    """Remove what belongs to later steps than `step`, and all rollouts with these labels; returns
    how much of each table."""
    c = schema.rollouts.c
    gone = or_(c.step > step, c.label.in_(labels)) if labels else c.step > step
    # Spans of rollouts that were never stored go with them.
    known = select(c.id).where(c.run_id == run_id)
    of_rollout = schema.spans.c.rollout_id
    lost = or_(of_rollout.in_(known.where(gone)), of_rollout.not_in(known))
    delete_rows(conn, schema.spans, run_id, lost)
    tables = (schema.metrics, schema.checkpoints, schema.resources, schema.training_rows)
    later = {table.name: delete_rows(conn, table, run_id, table.c.step > step) for table in tables}
    return Counter(later | {"rollouts": delete_rows(conn, schema.rollouts, run_id, gone)})


def discard_rollout(conn: Connection, run_id: str, rollout_id: str) -> None:
    """Remove a rollout with its spans and training rows."""
    for table in (schema.spans, schema.training_rows):
        delete_rows(conn, table, run_id, table.c.rollout_id == rollout_id)
    delete_rows(conn, schema.rollouts, run_id, schema.rollouts.c.id == rollout_id)


def delete_rows(conn: Connection, table: Table, run_id: str, gone: ColumnElement[bool]) -> int:
    """Remove rows of a run; returns how many there were."""
    return conn.execute(delete(table).where(table.c.run_id == run_id, gone)).rowcount
