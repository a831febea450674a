"""To which rollout a span of another program belongs.

Its own attributes, or those of its resource, name the rollout and the attempt; or it is about a
call that we answered, known by `gen_ai.response.id`; or it stands under, or above, such a span. The
parts of a trace arrive in any order and in several bodies (children end first), so a span that
cannot be placed yet waits for a while. `ingest.py` feeds bodies in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tutelage.tracing import names
from tutelage.tracing.records import Identity, SpanRecord

MAX_TRACES = 4096
"""Traces remembered at once; the one that was quiet for the longest is forgotten first."""
MAX_WAITING = 1024
"""Spans of one trace that may wait for a place."""

Find = Callable[[str], Identity | None]
Place = tuple[str, str | None]
"""A rollout id, and an attempt id where it is known."""


@dataclass(slots=True)
class _Trace:
    """What is known of one trace."""

    places: dict[str, Place] = field(default_factory=dict[str, Place])
    """Where spans belong, by span id."""
    parents: dict[str, str | None] = field(default_factory=dict[str, str | None])
    waiting: list[SpanRecord] = field(default_factory=list[SpanRecord])


class TraceJoiner:
    """Places spans; `find` says whose call a response id is. One thread at a time."""

    def __init__(self, find: Find | None = None) -> None:
        self._find: Find = find or _nobody
        self._traces: OrderedDict[str, _Trace] = OrderedDict()
        self.forgotten = 0
        """Spans that found no rollout."""

    def add(self, spans: Sequence[SpanRecord]) -> list[SpanRecord]:
        """The spans that have a rollout now, these and earlier ones, with its identifiers."""
        touched: dict[str, _Trace] = {}
        for span in spans:
            found = self._traces.setdefault(span.trace_id, _Trace())
            self._traces.move_to_end(span.trace_id)
            touched[span.trace_id] = found
            self._take(found, replace(span, attributes=names.modern(span.attributes)))
        out = [span for found in touched.values() for span in _place(found)]
        while len(self._traces) > MAX_TRACES:
            self.forgotten += len(self._traces.popitem(last=False)[1].waiting)
        return out

    def _take(self, found: _Trace, span: SpanRecord) -> None:
        if len(found.parents) >= 8 * MAX_WAITING or len(found.waiting) >= MAX_WAITING:
            self.forgotten += 1
            return
        place = self._named(span)
        if place is not None:
            found.places[span.span_id] = place
        found.parents[span.span_id] = span.parent_id
        found.waiting.append(span)

    def _named(self, span: SpanRecord) -> Place | None:
        """Where the span itself says that it belongs."""
        for attributes in (span.attributes, span.resource):
            rollout = _text(attributes, names.ROLLOUT_ID)
            if rollout is not None:
                return rollout, _text(attributes, names.ATTEMPT_ID)
        response = _text(span.attributes, names.RESPONSE_ID)
        identity = None if response is None else self._find(response)
        return None if identity is None else (identity.rollout_id, identity.attempt_id)


def _nobody(response_id: str) -> Identity | None:
    """Without a record of calls, no response id says anything."""


def _place(found: _Trace) -> list[SpanRecord]:
    """Take out of a trace's waiting spans those that can be placed."""
    whole = set(found.places.values())
    only = next(iter(whole)) if len(whole) == 1 else None
    out: list[SpanRecord] = []
    left: list[SpanRecord] = []
    for span in found.waiting:
        # A trace may hold several rollouts (one program plays them all): then only what stands
        # under a span of one of them is its own.
        place = _above(found, span) or only
        if place is None:
            left.append(span)
        else:
            found.places[span.span_id] = place
            out.append(replace(span, rollout_id=place[0], attempt_id=place[1]))
    found.waiting = left
    return out


def _above(found: _Trace, span: SpanRecord) -> Place | None:
    """The place of the span, or of the nearest span above it that has one."""
    here: str | None = span.span_id
    seen: set[str] = set()
    while here is not None and here not in seen:
        if here in found.places:
            return found.places[here]
        seen.add(here)
        here = found.parents.get(here)
    return None


def _text(attributes: Mapping[str, Any], name: str) -> str | None:
    value = attributes.get(name)
    return value if isinstance(value, str) and value else None
