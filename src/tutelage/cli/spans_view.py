"""The trace of a rollout as a tree of spans, one line each, with times, tokens and scores.

What the record says and what user code or other programs traced stand in one tree
(`tracing/tree.py`). `show.py` prints it under the turns of a rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from tutelage.cli.console import number, one_line, say, visible
from tutelage.tracing import SpanRecord, names, rollout_trees
from tutelage.tracing.tree import SpanNode
from tutelage.types import Rollout

_INDENT = 2
_NAMED = frozenset({names.OPERATION, names.PROVIDER, names.AGENT, names.TOOL, names.REQUEST_MODEL,
                    names.RESPONSE_MODEL, names.INPUT_TOKENS, names.OUTPUT_TOKENS, names.ROLLOUT_ID,
                    names.ATTEMPT_ID, names.ERROR_TYPE})  # fmt: skip
"""Attributes that a line tells already."""


def show_trace(
    console: Console, rollout: Rollout, recorded: Sequence[SpanRecord], *, content: bool = False
) -> None:
    """The span tree of the last attempt; with `content` all attributes of its spans too."""
    tree = rollout_trees(rollout, recorded, content=content)[-1]
    say(console, ("\nTrace ", "bold"), (tree.span.trace_id, "dim"))
    _show(console, tree, "", "", tree.span.start_ns, content)


def _show(
    console: Console, node: SpanNode, lead: str, below: str, origin: int, content: bool
) -> None:
    span = node.span
    style = "red" if span.status == "error" else ""
    say(console, " " * _INDENT + lead, (visible(span.name), style), (_facts(span, origin), "dim"))
    inner = below + ("│ " if node.children else "  ")
    for event in span.events:
        if (told := _event(event.name, event.attributes)) is not None:
            say(console, " " * _INDENT + inner, (told, "cyan"))
    if content:
        room = max(40, console.width - _INDENT - len(inner) - 4)
        for name, value in span.attributes.items():
            if name not in _NAMED:
                told = one_line(f"{name} = {value}", room)
                say(console, " " * _INDENT + inner, (told, "dim"))
    for i, child in enumerate(node.children):
        last = i == len(node.children) - 1
        branch, deeper = ("└ ", "  ") if last else ("├ ", "│ ")
        _show(console, child, below + branch, below + deeper, origin, content)


def _facts(span: SpanRecord, origin: int) -> str:
    """`  +0.12 s, 0.30 s, 21 -> 9 tokens, stop, failed: timeout`."""
    facts: list[str] = []
    if span.start_ns or span.end_ns:
        offset = (span.start_ns - origin) / 1e9
        facts += [f"+{offset:.3f} s"] * (offset > 0) + [f"{span.seconds:.3f} s"]
    attributes = span.attributes
    sent, sampled = attributes.get(names.INPUT_TOKENS), attributes.get(names.OUTPUT_TOKENS)
    if attributes.get(names.OPERATION) == names.CHAT and sent is not None:
        facts.append(f"{sent} -> {sampled} tokens")
    reasons: Any = attributes.get(names.FINISH_REASONS)
    if isinstance(reasons, (list, tuple)):
        facts += [str(reason) for reason in reasons]
    if span.status == "error":
        facts.append(f"failed: {one_line(attributes.get(names.ERROR_TYPE, 'error'), 40)}")
    told = ", ".join(visible(fact) for fact in facts)
    return f"  {told}" if told else ""


def _event(name: str, attributes: Any) -> str | None:
    """A score as `reward = 1`, an exception as its type; other events by their name."""
    if name == names.EVALUATION:
        value = attributes.get(names.SCORE)
        told = number(float(value)) if isinstance(value, (int, float)) else str(value)
        label = attributes.get(names.SCORE_LABEL)
        words = f"{attributes.get(names.EVALUATION_NAME, 'score')} = {told}"
        return visible(words + (f" ({label})" if label else ""))
    if name == names.EXCEPTION:
        kind = attributes.get(names.EXCEPTION_TYPE, "exception")
        return one_line(f"{kind}: {attributes.get(names.EXCEPTION_MESSAGE, '')}", 100)
    if name == names.DECISION:
        if names.RESPONSE_ID in attributes:
            return None  # the call stands below
        who, why = (attributes.get(n, "") for n in (names.REQUEST_MODEL, names.ERROR_TYPE))
        return one_line(" ".join(f"{attributes.get(names.ACTION)} {who} {why}".split()), 100)
    return one_line(name, 100)
