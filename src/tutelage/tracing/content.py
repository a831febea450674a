"""Remove people's and models' texts from spans, to export them without content.

Instrumentations write prompts, completions, arguments and results under names of their own, and
errors quote them. So nothing is removed by name: a span keeps only listed attributes, which are
structure, counts and names chosen by a program. `export.py` and `store/export.py` call this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from tutelage.tracing import names
from tutelage.tracing.records import SpanEvent, SpanRecord

_TEXTS = frozenset({
    names.OPERATION, names.PROVIDER, names.AGENT, names.CONVERSATION, names.REQUEST_MODEL,
    names.RESPONSE_ID, names.RESPONSE_MODEL, names.FINISH_REASONS, names.TOOL, names.TOOL_CALL_ID,
    names.ERROR_TYPE, names.EVALUATION_NAME, names.SCORE_LABEL, names.EXCEPTION_TYPE,
    names.RUN_ID, names.ROLLOUT_ID, names.ATTEMPT_ID, names.TASK_ID, names.MODE, names.LABEL,
    names.NODE, names.NODE_STATUS, names.WORKER, names.ACTION, names.VERDICT,
    names.WORKFLOW, "gen_ai.agent.id", "gen_ai.tool.type", "gen_ai.output.type",
    "gen_ai.system", "openinference.span.kind", "traceloop.span.kind", "llm.model_name",
    "llm.provider",
    "llm.system", "agent.name", "tool.name", "http.request.method", "server.address",
})  # fmt: skip
"""Attributes whose text is chosen by a program, not by a person or a model."""
_RESOURCE = ("service.", "telemetry.", "tutelage.")
_LONGEST = 128
_ONE_WORD = re.compile(r"[\w.:/@+-]{1,64}")
_NAME = re.compile(r"[\w.:/@-]{1,64}( [\w.:/@-]{1,64})?")
_KEY = re.compile(r"[\w.:/-]{1,100}")


def remove_content(span: SpanRecord) -> SpanRecord:
    """Remove the content of a span. Times, ids, numbers and texts of listed attributes are
    kept."""
    attributes = _filter(span.attributes)
    resource = _filter(span.resource, all_texts=True).items()
    return replace(
        span,
        name=_safe_name(span.name, str(attributes.get(names.OPERATION, "span"))),
        attributes=attributes,
        events=tuple(
            SpanEvent(_safe_name(event.name, "event"), event.time_ns, _filter(event.attributes))
            for event in span.events
        ),
        status_message="",
        resource={k: v for k, v in resource if k.startswith(_RESOURCE)},
    )


def _safe_name(name: str, default: str) -> str:
    return name if _NAME.fullmatch(name) else default


def _filter(attributes: Mapping[str, Any], *, all_texts: bool = False) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in attributes.items():
        if not _KEY.fullmatch(name):
            continue
        text = all_texts or name in _TEXTS
        if isinstance(value, (bool, int, float)) or (text and _is_short(name, value)):
            values[name] = value
    return values


def _is_short(name: str, value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_short(name, item) for item in cast("list[Any]", value))
    if not isinstance(value, str) or len(value) > _LONGEST or not value.isprintable():
        return False
    # A model writes the name of a tool that it calls, and may write anything; so may an error.
    return name not in (names.TOOL, names.ERROR_TYPE) or _ONE_WORD.fullmatch(value) is not None
