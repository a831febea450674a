"""Spans in and out of their table: those that user code opened and other programs sent.

What the record of a rollout says of itself is not stored twice: `tracing/rollout.py` computes those
spans when someone asks. A span that comes again, as from an exporter that tried twice, is kept
once. `store.py` calls these inside its transactions.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from tutelage.errors import StoreError
from tutelage.store import schema
from tutelage.store.columns import Row
from tutelage.store.ingest import insert_new
from tutelage.tracing.records import SpanRecord


def encode_span(run_id: str, span: SpanRecord) -> Row:
    """The row of a span. Raises `StoreError` when it has no rollout, or holds what JSON cannot."""
    if span.rollout_id is None:
        raise StoreError(f"span {span.name!r} belongs to no rollout: join it first")
    where = f"span {span.name!r} of rollout {span.rollout_id!r}"
    return {"run_id": run_id} | schema.SPAN.encode(span, where)


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
    return [schema.SPAN.decode(row) for row in conn.execute(query).mappings()]


def count_spans(conn: Connection, run_id: str) -> int:
    """How many spans a run has in the table."""
    query = select(func.count()).select_from(schema.spans)
    return conn.execute(query.where(schema.spans.c.run_id == run_id)).scalar_one()
