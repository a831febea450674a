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
from tutelage.tracing.rollout import as_workflow, attempt_spans
from tutelage.types import Rollout

_SLACK_NS = 50_000_000
"""Maximum difference between two clocks of one machine, or two ways to read one."""


@dataclass(slots=True)
class SpanNode:
    """A span with its children, in the order in which they began."""

    span: SpanRecord
    children: list[SpanNode] = field(default_factory=list["SpanNode"])


def rollout_trees(
    rollout: Rollout, recorded: Iterable[SpanRecord] = (), *, content: bool = False
) -> list[SpanNode]:
    """Return a tree of spans for each attempt of a rollout.

    `recorded` are the stored spans that user code and other programs added to the rollout. Those
    with no attempt, or an unknown one, are assigned to the last attempt.
    """
    extra: dict[str, list[SpanRecord]] = {attempt.id: [] for attempt in rollout.attempts}
    for span in recorded:
        extra[span.attempt_id if span.attempt_id in extra else rollout.last.id].append(span)
    return [
        _build_tree(attempt_spans(rollout, attempt, content), extra[attempt.id])
        for attempt in rollout.attempts
    ]


def whole_trace(
    rollout: Rollout, recorded: Iterable[SpanRecord] = (), *, content: bool = False
) -> list[SpanRecord]:
    """Return all spans of a rollout in one list, each attempt's with the root's trace id. Each
    span's parent is in the list, before the span."""
    out: list[SpanRecord] = []
    for tree in rollout_trees(rollout, recorded, content=content):
        stack: list[tuple[SpanNode, str | None]] = [(tree, None)]
        while stack:
            node, parent = stack.pop()
            out.append(replace(node.span, trace_id=tree.span.trace_id, parent_id=parent))
            stack += [(child, node.span.span_id) for child in reversed(node.children)]
    return out


def _build_tree(own: Sequence[SpanRecord], extra: Sequence[SpanRecord]) -> SpanNode:
    """Build an attempt's span tree from its `own` spans, root first, and the spans of `extra`."""
    root, spans = own[0], {span.span_id: span for span in own}
    moved = _merge(spans, extra)
    placed = _place_calls(spans, extra)
    _remove_duplicate_agents(spans, moved, own, extra, placed)
    tools = [s.attributes for s in extra if s.attributes.get(names.OPERATION) == names.EXECUTE_TOOL]
    traced = {attributes.get(names.TOOL) for attributes in tools}
    for span in own:  # others have traced the same tool
        if span.name.startswith(names.EXECUTE_TOOL) and span.attributes[names.TOOL] in traced:
            spans.pop(span.span_id, None)
    nodes = {span_id: SpanNode(span) for span_id, span in spans.items()}
    for span_id, node in nodes.items():
        if span_id != root.span_id:
            above = _ancestors(spans, moved, span_id)
            nodes[above[0] if above else root.span_id].children.append(node)

    for node in nodes.values():
        node.children.sort(key=lambda child: child.span.start_ns)
    return nodes[root.span_id]


def _merge(spans: dict[str, SpanRecord], extra: Sequence[SpanRecord]) -> dict[str, str]:
    """Add the spans of `extra` to `spans`; return a mapping of replaced to replacing span ids.

    Of two spans of one call, our own is kept: it gets the parent and the additional attributes of
    the other.
    """
    calls = {_response_id(span): span.span_id for span in spans.values() if _response_id(span)}
    timed = [spans[span_id] for span_id in calls.values()]
    moved: dict[str, str] = {}
    for span in sorted(extra, key=lambda s: s.start_ns):
        ours = calls.get(_response_id(span)) or _match_call(span, timed, {*moved.values()})
        if ours is None or span.span_id in spans:
            spans.setdefault(span.span_id, span)
            continue
        moved[span.span_id] = ours
        kept = spans[ours]
        attributes: dict[str, Any] = {**span.attributes, **kept.attributes}
        parent = span.parent_id
        if parent is None or moved.get(parent) == ours:  # the inner of two nested client spans
            parent = kept.parent_id
        spans[ours] = replace(kept, parent_id=parent, attributes=attributes)
    return moved


def _place_calls(spans: dict[str, SpanRecord], extra: Sequence[SpanRecord]) -> bool:
    """Move each call's span below the span with an event that names it; return True if any
    moved."""
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


def _match_call(span: SpanRecord, calls: Sequence[SpanRecord], used: set[str]) -> str | None:
    """Return the id of our own call span that matches another program's chat span.

    It matches by time: a span without a response id describes a call made while it was open. Of
    several such calls, it is the first that is not matched to another span.
    """
    if span.attributes.get(names.OPERATION) != names.CHAT or _response_id(span):
        return None
    first, last = span.start_ns - _SLACK_NS, span.end_ns + _SLACK_NS
    inside = [c for c in calls if first <= c.start_ns and c.end_ns <= last]
    if len(inside) > 1:
        inside = [c for c in sorted(inside, key=lambda c: c.start_ns) if c.span_id not in used]
    return inside[0].span_id if inside else None


def _remove_duplicate_agents(
    spans: dict[str, SpanRecord],
    moved: dict[str, str],
    own: Sequence[SpanRecord],
    extra: Sequence[SpanRecord],
    placed: bool,
) -> None:
    """Remove our own spans for agents that other programs traced, or whose calls are `placed`
    elsewhere.

    A single agent below ours is merged into our root; with several our root becomes the workflow.
    """
    root = own[0]
    traced = {s.span_id for s in extra if s.attributes.get(names.OPERATION) == names.INVOKE_AGENT}
    if not traced and not placed:
        return
    parents = {moved.get(s.parent_id or "", s.parent_id) for s in spans.values()}
    for span in own[1:]:
        agent = span.attributes.get(names.OPERATION) == names.INVOKE_AGENT
        if agent and span.span_id not in parents:
            del spans[span.span_id]
    if root.attributes.get(names.OPERATION) != names.INVOKE_AGENT:
        return
    top = [i for i in traced if not traced & {*_ancestors(spans, moved, i)}]
    if len(top) == 1:
        inner = spans.pop(top[0])
        moved[top[0]] = root.span_id
        spans[root.span_id] = replace(root, attributes={**inner.attributes, **root.attributes})
    else:
        spans[root.span_id] = as_workflow(root)


def _ancestors(
    spans: Mapping[str, SpanRecord], moved: Mapping[str, str], span_id: str
) -> list[str]:
    """Return the ancestors of a span, the nearest first, or none if its parents form a cycle."""
    ancestors: list[str] = []
    while span := spans.get(span_id):
        span_id = moved.get(span.parent_id or "", span.parent_id or "")
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
