"""Plain records of spans, for the store, the exporter and the span trees.

A record has everything of an OTLP span but links. It does not need the OpenTelemetry packages, so
the store and the command line load fast. `rollout.py` makes records from a rollout, `live.py` from
spans that user code opened, `otlp.py` from those that other programs send.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["unspecified", "internal", "server", "client", "producer", "consumer"]
KINDS: tuple[Kind, ...] = ("unspecified", "internal", "server", "client", "producer", "consumer")
"""In the order of OTLP's numbers, from 0."""
Status = Literal["unset", "ok", "error"]
STATUSES: tuple[Status, ...] = ("unset", "ok", "error")
"""In the order of OTLP's numbers, from 0."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Identifiers of the run, the rollout and the attempt that a span belongs to."""

    run_id: str
    rollout_id: str
    attempt_id: str


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """A timestamped event of a span. `time_ns` is in nanoseconds since 1970."""

    name: str
    time_ns: int
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """A span of a trace. Ids are lower-case hexadecimal; times are in nanoseconds since 1970.

    Attribute values are JSON values: texts, numbers, booleans, lists, objects.
    """

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    start_ns: int
    end_ns: int
    kind: Kind = "internal"
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    events: tuple[SpanEvent, ...] = ()
    status: Status = "unset"
    status_message: str = ""
    resource: Mapping[str, Any] = field(default_factory=dict[str, Any])
    scope: str = ""
    rollout_id: str | None = None
    """The rollout that it belongs to; None if it is unknown."""
    attempt_id: str | None = None

    @property
    def seconds(self) -> float:
        """Return the duration of the span in seconds."""
        return (self.end_ns - self.start_ns) / 1e9


def make_trace_id(identity: Identity) -> str:
    """Return the trace id of an attempt: a hash of its ids, which is the same in a repeated run.

    The run's identifier is included, since two runs of one seed have equal attempts and may share a
    collector.
    """
    return _hash(16, "trace", identity.run_id, identity.rollout_id, identity.attempt_id)


def make_span_id(trace_id: str, *path: str | int) -> str:
    """Return the id of the span at a path in a trace. An empty path is the root span."""
    return _hash(8, "span", trace_id, *path)


def _hash(size: int, *parts: str | int) -> str:
    text = repr(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=size).hexdigest()
