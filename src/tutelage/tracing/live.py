"""Spans that user code opens while its agent runs, through the OpenTelemetry SDK.

`trace_attempt` puts an attempt into the OpenTelemetry context, which is a `contextvars` variable:
hundreds of rollouts can interleave in one process, and every span belongs to the attempt in whose
context it began, also if a framework's own instrumentation opened it (`instrument` adds the
collector to the user's `TracerProvider`). Their parent is the attempt's root span, so they join the
tree that `rollout.py` makes of the record. This module sets no global provider.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from opentelemetry import baggage, context, trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

from tutelage.tracing import names
from tutelage.tracing.otlp import from_sdk
from tutelage.tracing.records import Identity, SpanRecord, make_span_id, make_trace_id

SCOPE = "tutelage.user"
_KEY = context.create_key("tutelage-attempt")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class _AttemptTrace:
    """Live spans of one attempt. `records` may be read at any time, even after the attempt."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.trace_id = make_trace_id(identity)
        self.root_id = make_span_id(self.trace_id)
        self._count = itertools.count()
        self.open: dict[int, SdkSpan] = {}
        self.ended: list[ReadableSpan] = []
        self.closed = False

    @property
    def records(self) -> tuple[SpanRecord, ...]:
        """Return the finished spans, ordered by end time."""
        own = {"rollout_id": self.identity.rollout_id, "attempt_id": self.identity.attempt_id}
        return tuple(
            replace(
                record,
                attributes=names.normalize_names(record.attributes),
                resource={**record.resource, names.RUN_ID: self.identity.run_id},
                **own,
            )
            for record in map(from_sdk, self.ended)
        )

    def next_id(self) -> int:
        """Return the id of the next span, which is the same if the attempt is repeated."""
        return int(make_span_id(self.trace_id, "live", next(self._count)), 16)

    def close(self) -> None:
        """End all open spans, so that every span has its parent. Spans that begin later are
        dropped."""
        for span in reversed(list(self.open.values())):
            span.set_status(Status(StatusCode.ERROR, "still open when the attempt ended"))
            span.end()
        self.closed = True


class _AttemptProcessor(SpanProcessor):
    """Span processor that assigns spans to the attempt in whose context they began."""

    def __init__(self) -> None:
        self._owners: dict[int, _AttemptTrace] = {}
        """Attempts of the open spans."""

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        """Register a new span for its attempt, unless the attempt has ended. Called by the SDK."""
        attempt_trace = _current_trace(parent_context)
        if attempt_trace is None:
            return
        identity = attempt_trace.identity
        span.set_attributes(
            {names.ROLLOUT_ID: identity.rollout_id, names.ATTEMPT_ID: identity.attempt_id}
        )
        if not attempt_trace.closed:
            # It may end in another context or thread, where `on_end` receives a copy.
            self._owners[_span_key(span)] = attempt_trace
            attempt_trace.open[_span_key(span)] = span

    def on_end(self, span: ReadableSpan) -> None:
        """Add a finished span to the trace of its attempt. Called by the SDK."""
        attempt_trace = self._owners.pop(_span_key(span), None)
        if attempt_trace is not None:
            attempt_trace.open.pop(_span_key(span), None)
            attempt_trace.ended.append(span)


def _span_key(span: ReadableSpan) -> int:
    span_context = span.get_span_context()
    return 0 if span_context is None else span_context.span_id


@contextmanager
def trace_attempt(identity: Identity) -> Generator[_AttemptTrace]:
    """Assign all spans that begin inside the `with` block, in any of its tasks, to an attempt.

    The identifiers are in the baggage too, for programs to which the context is propagated.
    """
    attempt_trace = _AttemptTrace(identity)
    root = NonRecordingSpan(
        SpanContext(
            int(attempt_trace.trace_id, 16), int(attempt_trace.root_id, 16), False, _SAMPLED
        )
    )
    new = trace.set_span_in_context(root, context.set_value(_KEY, attempt_trace))
    new = baggage.set_baggage(names.ROLLOUT_ID, identity.rollout_id, new)
    new = baggage.set_baggage(names.ATTEMPT_ID, identity.attempt_id, new)
    token = context.attach(new)
    try:
        yield attempt_trace
    finally:
        context.detach(token)
        attempt_trace.close()


@contextmanager
def span(name: str, attributes: Mapping[str, Any] | None = None) -> Generator[trace.Span]:
    """Open a span around a block of agent code. Does nothing outside a rollout.

    An exception is recorded on the span and propagates.
    """
    if _current_trace(None) is None:
        yield trace.INVALID_SPAN
        return
    with _get_tracer().start_as_current_span(name, attributes=dict(attributes or {})) as new:
        yield new


def emit_evaluation(
    name: str, value: float, *, label: str | None = None, response_id: str | None = None
) -> None:
    """Record a score on the current span, as the event `gen_ai.evaluation.result`.

    `response_id` names the call that the score rates. The score is only for reading: training uses
    the reward that the rollout returns. Outside of any span of a rollout the score becomes a span
    of its own.
    """
    attributes: dict[str, Any] = {names.EVALUATION_NAME: name, names.SCORE: float(value)}
    if label is not None:
        attributes[names.SCORE_LABEL] = label
    if response_id is not None:
        attributes[names.RESPONSE_ID] = response_id
    current = trace.get_current_span()
    if current.is_recording():
        current.add_event(names.EVALUATION, attributes)
        return
    with span(f"evaluate {name}") as new:
        new.add_event(names.EVALUATION, attributes)


def instrument(provider: TracerProvider) -> None:
    """Collect spans from another tracer provider, such as the global one of a framework.

    Spans outside a rollout are ignored. Call it once for each provider.
    """
    provider.add_span_processor(_AttemptProcessor())


class _IdGenerator(RandomIdGenerator):
    """Generator of span ids: reproducible within an attempt, random elsewhere."""

    def generate_span_id(self) -> int:
        attempt_trace = _current_trace(None)
        # Outside of a rollout nothing is reproducible anyway.
        return super().generate_span_id() if attempt_trace is None else attempt_trace.next_id()


def _current_trace(parent: Context | None) -> _AttemptTrace | None:
    return cast("_AttemptTrace | None", context.get_value(_KEY, parent))


@functools.cache
def _get_tracer() -> trace.Tracer:
    """Return the tracer that `span` uses for all rollouts."""
    provider = TracerProvider(
        resource=Resource({names.SERVICE: "tutelage"}),
        id_generator=_IdGenerator(),
        shutdown_on_exit=False,
    )
    instrument(provider)
    return provider.get_tracer(SCOPE)
