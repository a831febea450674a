"""Tracing: what happened in a rollout as OpenTelemetry spans, to read and to join.

The spans of a rollout are computed from its record (`rollout.py`); user code and frameworks add
live ones (`live.py`), other programs send theirs (`ingest.py`); together they are one tree
(`tree.py`), which goes to any collector (`export.py`). Names stand in `names.py`. What trains a
policy is never read from a span: it is the engine's or the gateway's own record of tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tutelage.tracing.records import Identity, SpanRecord
from tutelage.tracing.rollout import rollout_spans
from tutelage.tracing.tree import rollout_trees, whole_trace

if TYPE_CHECKING:
    from tutelage.tracing.live import emit_evaluation, instrument, span, trace_attempt

__all__ = [
    "Identity",
    "SpanRecord",
    "emit_evaluation",
    "instrument",
    "rollout_spans",
    "rollout_trees",
    "span",
    "trace_attempt",
    "whole_trace",
]


def __getattr__(name: str) -> Any:
    """Return a name of `live.py`, which loads OpenTelemetry, when it is used first."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.live"), name)
