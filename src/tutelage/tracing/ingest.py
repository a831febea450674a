"""What happens to a body that an instrumented agent sends to `POST /v1/traces`.

Read within limits (`otlp.py`), claimed for the attempt whose key it came with, handed to a sink
such as `StoreWriter.submit_spans`. The gateway calls `ingest_traces` for a run and sends what it
returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tutelage.tracing import names
from tutelage.tracing.otlp import read_otlp, response_body
from tutelage.tracing.records import Identity, SpanRecord

Sink = Callable[[str, Sequence[SpanRecord]], None]
"""Takes the id of a run and spans of its rollouts."""


def ingest_traces(
    sink: Sink, run_id: str, body: bytes, content_type: str, encoding: str = "", *, only: Identity
) -> bytes:
    """Take a body of the attempt `only` of a run; returns the response's body, in the same content
    type. Threads may call it at once.

    Spans without a rollout get that one's, and spans of another are rejected. Raises `OtlpError`,
    whose `status` is the HTTP status.
    """
    spans, rejected = read_otlp(body, content_type, encoding)
    placed: list[SpanRecord] = []
    for span in spans:  # those that are, or may be, of the attempt
        attributes = names.modern(span.attributes)
        rollout = attributes.get(names.ROLLOUT_ID, span.resource.get(names.ROLLOUT_ID))
        attempt = attributes.get(names.ATTEMPT_ID, span.resource.get(names.ATTEMPT_ID))
        if rollout in (None, only.rollout_id) and attempt in (None, only.attempt_id):
            own = {"rollout_id": only.rollout_id, "attempt_id": only.attempt_id}
            placed.append(replace(span, attributes=attributes, **own))
    if placed:
        sink(run_id, placed)
    return response_body(content_type, rejected + len(spans) - len(placed))
