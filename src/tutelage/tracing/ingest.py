"""What happens to a body that an instrumented agent sends to `POST /v1/traces`.

Read within limits (`otlp.py`), joined to rollouts (`join.py`), handed to a sink such as
`StoreWriter.submit_spans`. The gateway calls `TraceIngest` and sends what it returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from tutelage.tracing import names
from tutelage.tracing.join import Find, TraceJoiner
from tutelage.tracing.otlp import read_counted, response_body
from tutelage.tracing.records import Identity, SpanRecord

Sink = Callable[[str, Sequence[SpanRecord]], None]
"""Takes the id of a run and spans of its rollouts."""


class TraceIngest:
    """Takes OTLP bodies for one run; threads may share it.

    `find` says whose call a `gen_ai.response.id` is.
    """

    def __init__(self, sink: Sink, run_id: str, find: Find | None = None) -> None:
        self._sink, self._run_id = sink, run_id
        self._joiner = TraceJoiner(find)
        self._lock = threading.Lock()
        self.received = self.joined = self.rejected = 0

    def __call__(
        self, body: bytes, content_type: str, encoding: str = "", *, only: Identity | None = None
    ) -> bytes:
        """Take a body; returns the response's body, in the same content type.

        With `only`, as for the key of one attempt, spans without a rollout get that one's and spans
        of another are rejected. Raises `OtlpError`, whose `status` is the HTTP status.
        """
        spans, rejected = read_counted(body, content_type, encoding)
        with self._lock:
            self.received += len(spans)
            placed = self._joiner.add(spans) if only is None else _claimed(spans, only)
            if only is not None:
                rejected += len(spans) - len(placed)
            self.joined += len(placed)
            self.rejected += rejected
        if placed:
            self._sink(self._run_id, placed)
        return response_body(content_type, rejected)


def _claimed(spans: Sequence[SpanRecord], only: Identity) -> list[SpanRecord]:
    """The spans that are, or may be, of one attempt, with its identifiers."""
    out: list[SpanRecord] = []
    for span in spans:
        attributes = names.modern(span.attributes)
        rollout = attributes.get(names.ROLLOUT_ID, span.resource.get(names.ROLLOUT_ID))
        attempt = attributes.get(names.ATTEMPT_ID, span.resource.get(names.ATTEMPT_ID))
        if rollout in (None, only.rollout_id) and attempt in (None, only.attempt_id):
            placed = replace(
                span,
                attributes=attributes,
                rollout_id=only.rollout_id,
                attempt_id=only.attempt_id,
            )
            out.append(placed)
    return out
