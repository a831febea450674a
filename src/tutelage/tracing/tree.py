"""Span trees, one for each attempt.

The record's own spans (`rollout.py`) are joined here with those of user code and other programs. A
span is a child of its parent if that is in the set; any other span of an attempt is a child of the
attempt's root, so there are no orphans. A client that traced a call of this package has the same
`gen_ai.response.id`, or none and a span around the time of the call: our span then replaces its
span, and the call appears once. The same holds for a run of an agent: of a framework's
`invoke_agent` and ours one is kept. A span with an event that names a call by that id becomes the
parent of the call, which takes over the values of the event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tutelage.tracing import names
from tutelage.tracing.records import SpanRecord
from tutelage.tracing.rollout import attempt_spans, to_workflow
from tutelage.types import Rollout

_SLACK_NS = 50_000_000
"""Maximum difference between two clocks of one machine, or two ways to read one."""


@dataclass(slots=True)
class SpanNode:
    """A span with its children, ordered by start time."""

    span: SpanRecord
    children: list[SpanNode] = field(default_factory=list["SpanNode"])


def rollout_trees(
    rollout: Rollout, spans: Iterable[SpanRecord] = (), *, content: bool = False
) -> list[SpanNode]:
    """Build the span tree of each attempt of a rollout.

    `spans` are the stored spans that user code and other programs added to the rollout. Those
    with no attempt, or an unknown one, are assigned to the last attempt.
    """
    extra: dict[str, list[SpanRecord]] = {attempt.id: [] for attempt in rollout.attempts}
    for span in spans:
        extra[span.attempt_id if span.attempt_id in extra else rollout.last.id].append(span)
    return [
        _build_tree(attempt_spans(rollout, attempt, content), extra[attempt.id])
        for attempt in rollout.attempts
    ]


def whole_trace(
    rollout: Rollout, spans: Iterable[SpanRecord] = (), *, content: bool = False
) -> list[SpanRecord]:
    """Return all spans of a rollout in one list, with parents before children. The spans of an
    attempt have the trace id of its root."""
    out: list[SpanRecord] = []
    for tree in rollout_trees(rollout, spans, content=content):
        stack: list[tuple[SpanNode, str | None]] = [(tree, None)]
        while stack:
            node, parent = stack.pop()
            out.append(replace(node.span, trace_id=tree.span.trace_id, parent_id=parent))
            stack += [(child, node.span.span_id) for child in reversed(node.children)]
    return out


def _build_tree(base: Sequence[SpanRecord], extra: Sequence[SpanRecord]) -> SpanNode:
    """Build the span tree of an attempt from its `base` spans, root first, and `extra` spans."""
    root, spans = base[0], {span.span_id: span for span in base}
    id_map = _merge_spans(spans, extra)
    calls_moved = _move_calls(spans, extra)
    _remove_duplicate_agents(spans, id_map, base, extra, calls_moved)
    tools = [s.attributes for s in extra if s.attributes.get(names.OPERATION) == names.EXECUTE_TOOL]
    traced = {attributes.get(names.TOOL) for attributes in tools}
    for span in base:  # others have traced the same tool
        if span.name.startswith(names.EXECUTE_TOOL) and span.attributes[names.TOOL] in traced:
            spans.pop(span.span_id, None)
    nodes = {span_id: SpanNode(span) for span_id, span in spans.items()}
    for span_id, node in nodes.items():
        if span_id != root.span_id:
            above = _ancestors(spans, id_map, span_id)
            nodes[above[0] if above else root.span_id].children.append(node)

    for node in nodes.values():
        node.children.sort(key=lambda child: child.span.start_ns)
    return nodes[root.span_id]


def _merge_spans(spans: dict[str, SpanRecord], extra: Sequence[SpanRecord]) -> dict[str, str]:
    """Add the spans of `extra` to `spans`; return a mapping from replaced to kept span ids.

    Of two spans of one call, our own is kept: it gets the parent and the additional attributes of
    the other.
    """
    calls = {_response_id(span): span.span_id for span in spans.values() if _response_id(span)}
    timed = [spans[span_id] for span_id in calls.values()]
    id_map: dict[str, str] = {}
    for span in sorted(extra, key=lambda s: s.start_ns):
        ours = calls.get(_response_id(span)) or _match_call(span, timed, {*id_map.values()})
        if ours is None or span.span_id in spans:
            spans.setdefault(span.span_id, span)
            continue
        id_map[span.span_id] = ours
        kept = spans[ours]
        attributes: dict[str, Any] = {**span.attributes, **kept.attributes}
        parent = span.parent_id
        if parent is None or id_map.get(parent) == ours:  # the inner of two nested client spans
            parent = kept.parent_id
        spans[ours] = replace(kept, parent_id=parent, attributes=attributes)
    return id_map


def _move_calls(spans: dict[str, SpanRecord], extra: Sequence[SpanRecord]) -> bool:
    """Make each call a child of the span with an event that refers to it. Return True if any call
    was moved."""
    calls = {_response_id(span): span.span_id for span in spans.values() if _response_id(span)}
    named = [(span, event.attributes) for span in extra for event in span.events]
    pairs = [(span, values) for span, values in named if values.get(names.RESPONSE_ID) in calls]
    for span, values in pairs:
        ours = calls[values[names.RESPONSE_ID]]
        attributes = {**spans[ours].attributes, **values}
        spans[ours] = replace(
            spans[ours],
            parent_id=span.span_id,
            name=f"{names.CHAT} {attributes[names.REQUEST_MODEL]}",
            attributes=attributes,
            status="error" if names.ERROR_TYPE in values else spans[ours].status,
        )
    return bool(pairs)


def _match_call(span: SpanRecord, calls: Sequence[SpanRecord], used_ids: set[str]) -> str | None:
    """Return the id of the call span that matches a chat span of another program, or None.

    Spans match by time: a span without a response id describes a call made while it was open. Of
    several such calls, the first that is not matched to another span is returned.
    """
    if span.attributes.get(names.OPERATION) != names.CHAT or _response_id(span):
        return None
    first, last = span.start_ns - _SLACK_NS, span.end_ns + _SLACK_NS
    inside = [c for c in calls if first <= c.start_ns and c.end_ns <= last]
    if len(inside) > 1:
        inside = [c for c in sorted(inside, key=lambda c: c.start_ns) if c.span_id not in used_ids]
    return inside[0].span_id if inside else None


def _remove_duplicate_agents(
    spans: dict[str, SpanRecord],
    id_map: dict[str, str],
    base: Sequence[SpanRecord],
    extra: Sequence[SpanRecord],
    calls_moved: bool,
) -> None:
    """Remove agent spans that duplicate spans of other programs or have no children left.

    A single agent below ours is merged into our root; with several our root becomes the workflow.
    """
    root = base[0]
    traced = {s.span_id for s in extra if s.attributes.get(names.OPERATION) == names.INVOKE_AGENT}
    if not traced and not calls_moved:
        return
    parents = {id_map.get(s.parent_id or "", s.parent_id) for s in spans.values()}
    for span in base[1:]:
        agent = span.attributes.get(names.OPERATION) == names.INVOKE_AGENT
        if agent and span.span_id not in parents:
            del spans[span.span_id]
    if root.attributes.get(names.OPERATION) != names.INVOKE_AGENT:
        return
    top = [i for i in traced if not traced & {*_ancestors(spans, id_map, i)}]
    if len(top) == 1:
        inner = spans.pop(top[0])
        id_map[top[0]] = root.span_id
        spans[root.span_id] = replace(root, attributes={**inner.attributes, **root.attributes})
    else:
        spans[root.span_id] = to_workflow(root)


def _ancestors(
    spans: Mapping[str, SpanRecord], id_map: Mapping[str, str], span_id: str
) -> list[str]:
    """Return the ancestors of a span, nearest first, or an empty list if they form a cycle."""
    ancestors: list[str] = []
    while span := spans.get(span_id):
        span_id = id_map.get(span.parent_id or "", span.parent_id or "")
        if span_id in ancestors:
            return []
        ancestors += [span_id] if span_id in spans else []
    return ancestors


def _response_id(span: SpanRecord) -> str:
    """Return the response id of a chat span, or an empty string for any other span."""
    attributes = span.attributes
    if attributes.get(names.OPERATION) != names.CHAT:
        return ""
    return str(attributes.get(names.RESPONSE_ID, ""))
