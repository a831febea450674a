"""Store the spans that an instrumented agent sends to `POST /v1/traces`.

A body is read within limits (`otlp.py`), assigned to the attempt whose key it came with, and passed
to a sink such as `StoreWriter.submit_spans`. The gateway calls `ingest_traces` for a run and sends
the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tutelage.tracing import names
from tutelage.tracing.otlp import read_otlp, response_body
from tutelage.tracing.records import Identity, SpanRecord

Sink = Callable[[str, Sequence[SpanRecord]], None]
"""Callback that receives the id of a run and spans of its rollouts."""


def ingest_traces(
    sink: Sink, run_id: str, body: bytes, content_type: str, encoding: str = "", *, owner: Identity
) -> bytes:
    """Store the spans that an agent sent for an attempt, and return the response body.

    The response has the content type of the request. Spans without a rollout are assigned to the
    attempt `owner`, and spans of other attempts are rejected. Raises `OtlpError`, whose `status` is
    the HTTP status. Thread-safe.
    """
    spans, rejected = read_otlp(body, content_type, encoding)
    accepted: list[SpanRecord] = []
    for span in spans:  # keep those that may be of the attempt
        attributes = names.normalize_names(span.attributes)
        rollout = attributes.get(names.ROLLOUT_ID, span.resource.get(names.ROLLOUT_ID))
        attempt = attributes.get(names.ATTEMPT_ID, span.resource.get(names.ATTEMPT_ID))
        if rollout in (None, owner.rollout_id) and attempt in (None, owner.attempt_id):
            own = {"rollout_id": owner.rollout_id, "attempt_id": owner.attempt_id}
            accepted.append(replace(span, attributes=attributes, **own))
    if accepted:
        sink(run_id, accepted)
    return response_body(content_type, rejected + len(spans) - len(accepted))
