"""Tracing: what happened in a rollout as OpenTelemetry spans, to read and to join.

The spans of a rollout are computed from its record (`rollout.py`); user code and frameworks add
live ones (`live.py`), other programs send theirs (`ingest.py`); together they are one tree
(`tree.py`), which goes to any collector (`export.py`). Names stand in `names.py`. What trains a
policy is never read from a span: it is the engine's or the gateway's own record of tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tutelage.tracing.records import Identity, SpanEvent, SpanRecord
from tutelage.tracing.rollout import rollout_spans
from tutelage.tracing.tree import SpanNode, rollout_trees, whole_trace

if TYPE_CHECKING:
    from tutelage.tracing.export import OtlpExporter
    from tutelage.tracing.ingest import ingest_traces
    from tutelage.tracing.live import emit_evaluation, instrument, span, trace_attempt
    from tutelage.tracing.otlp import read_otlp

_LAZY = {
    "OtlpExporter": "export",
    "ingest_traces": "ingest",
    "emit_evaluation": "live",
    "instrument": "live",
    "read_otlp": "otlp",
    "span": "live",
    "trace_attempt": "live",
}
"""Names whose modules need OpenTelemetry or HTTP, loaded when they are asked for."""

__all__ = [
    "Identity",
    "OtlpExporter",
    "SpanEvent",
    "SpanNode",
    "SpanRecord",
    "emit_evaluation",
    "ingest_traces",
    "instrument",
    "read_otlp",
    "rollout_spans",
    "rollout_trees",
    "span",
    "trace_attempt",
    "whole_trace",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
