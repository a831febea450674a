"""What is taken out again: steps and rollouts that a resume does a second time.

Deleting a rollout deletes its attempts and all below them (`schema.py`); spans and training rows
stand by themselves, since they may be there without it, and are removed here. `store.py` calls
these inside its transactions.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, Table, delete, or_, select

from tutelage.store import schema
from tutelage.store.records import Discarded


def discard_after(conn: Connection, run_id: str, step: int, labels: Sequence[str]) -> Discarded:
    """Remove what belongs to later steps than `step`, and all rollouts with these labels."""
    c = schema.rollouts.c
    gone = or_(c.step > step, c.label.in_(labels)) if labels else c.step > step
    # Spans of rollouts that were never stored go with them.
    known = select(c.id).where(c.run_id == run_id)
    of_rollout = schema.spans.c.rollout_id
    lost = or_(of_rollout.in_(known.where(gone)), of_rollout.not_in(known))
    _delete(conn, schema.spans, run_id, lost)
    return Discarded(
        rollouts=_delete(conn, schema.rollouts, run_id, gone),
        metrics=_delete(conn, schema.metrics, run_id, schema.metrics.c.step > step),
        checkpoints=_delete(conn, schema.checkpoints, run_id, schema.checkpoints.c.step > step),
        resources=_delete(conn, schema.resources, run_id, schema.resources.c.step > step),
        training_rows=discard_training(conn, run_id, step),
    )


def discard_training(conn: Connection, run_id: str, step: int) -> int:
    """Remove the training rows of later steps than `step`; returns how many there were."""
    return _delete(conn, schema.training_rows, run_id, schema.training_rows.c.step > step)


def discard_rollout(conn: Connection, run_id: str, rollout_id: str) -> None:
    """Remove a rollout with its spans and training rows."""
    for table in (schema.spans, schema.training_rows):
        _delete(conn, table, run_id, table.c.rollout_id == rollout_id)
    _delete(conn, schema.rollouts, run_id, schema.rollouts.c.id == rollout_id)


def _delete(conn: Connection, table: Table, run_id: str, gone: ColumnElement[bool]) -> int:
    return conn.execute(delete(table).where(table.c.run_id == run_id, gone)).rowcount
