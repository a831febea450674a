"""Record the events of a rollout as OpenTelemetry spans, joined with those of other programs.

The spans of a rollout are computed from its record (`rollout.py`); user code and frameworks add
live ones (`live.py`), and other programs send theirs (`ingest.py`). Together they form one tree
(`tree.py`), which can be sent to any collector (`export.py`). Attribute names are in `names.py`.
Training never reads a span: it uses the token records of the engine or the gateway.
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
    """Import a name from `live.py` on first use, because that module loads OpenTelemetry."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.live"), name)
