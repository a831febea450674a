"""Spans in and out of their table: those that user code opened and other programs sent.

What the record of a rollout says of itself is not stored twice: `tracing/rollout.py` computes those
spans when someone asks. A span that comes again, as from an exporter that tried twice, is kept
once. `store.py` calls these inside its transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, func, or_, select

from tutelage.errors import StoreError
from tutelage.store import schema
from tutelage.store.ingest import insert_new
from tutelage.store.rows import Row, RowLike
from tutelage.store.values import dump_json, load_json
from tutelage.tracing.records import SpanEvent, SpanRecord


def encode_span(run_id: str, span: SpanRecord) -> Row:
    """The row of a span. Raises `StoreError` when it has no rollout, or holds what JSON cannot."""
    if span.rollout_id is None:
        raise StoreError(f"span {span.name!r} belongs to no rollout: join it first")
    where = f"span {span.name!r} of rollout {span.rollout_id!r}"
    events = [[e.name, e.time_ns, e.attributes] for e in span.events]
    return {
        "run_id": run_id,
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "rollout_id": span.rollout_id,
        "attempt_id": span.attempt_id,
        "parent_id": span.parent_id,
        "name": span.name,
        "kind": span.kind,
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "attributes": dump_json(span.attributes, f"attributes of {where}"),
        "events": dump_json(events, f"events of {where}"),
        "status": span.status,
        "status_message": span.status_message,
        "resource": dump_json(span.resource, f"resource of {where}"),
        "scope": span.scope,
    }


def put_spans(conn: Connection, rows: Sequence[Row]) -> None:
    """Insert spans whose identifiers are new in their run."""
    insert_new(conn, schema.spans, list(rows))


def load_spans(conn: Connection, run_id: str, rollout_ids: Sequence[str]) -> list[SpanRecord]:
    """The spans of some rollouts, in the order in which they began."""
    c = schema.spans.c
    query = (
        select(schema.spans)
        .where(c.run_id == run_id, c.rollout_id.in_(rollout_ids))
        .order_by(c.start_ns, c.trace_id, c.span_id)
    )
    return [_decode(row) for row in conn.execute(query).mappings()]


def count_spans(conn: Connection, run_id: str) -> int:
    """How many spans a run has in the table."""
    query = select(func.count()).select_from(schema.spans)
    return conn.execute(query.where(schema.spans.c.run_id == run_id)).scalar_one()


def delete_spans(conn: Connection, run_id: str, rollouts: ColumnElement[bool]) -> None:
    """Remove spans of the rollouts that `rollouts` names, and of those that were never stored."""
    c, head = schema.spans.c, schema.rollouts.c
    known = select(head.id).where(head.run_id == run_id)
    gone = or_(c.rollout_id.in_(known.where(rollouts)), c.rollout_id.not_in(known))
    conn.execute(delete(schema.spans).where(and_(c.run_id == run_id, gone)))


def _decode(row: RowLike) -> SpanRecord:
    events: list[Any] = load_json(row["events"])
    return SpanRecord(
        trace_id=row["trace_id"],
        span_id=row["span_id"],
        parent_id=row["parent_id"],
        name=row["name"],
        start_ns=row["start_ns"],
        end_ns=row["end_ns"],
        kind=row["kind"],
        attributes=load_json(row["attributes"]),
        events=tuple(SpanEvent(name, time, attributes) for name, time, attributes in events),
        status=row["status"],
        status_message=row["status_message"],
        resource=load_json(row["resource"]),
        scope=row["scope"],
        rollout_id=row["rollout_id"],
        attempt_id=row["attempt_id"],
    )
