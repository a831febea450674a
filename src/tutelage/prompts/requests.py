"""The messages to optimiser LLMs: critique, edit, reflect, repair.

They hold the current component, the evidence and the rules for an edit. The evidence is question,
trace (tool calls, results, answer) and the grader's feedback; at most 2,000 tokens per rollout and
12,000 per request, cut in the middle, since beginnings and ends are most informative. `edits.py`
parses the replies.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tutelage.prompts.contract import Episode
from tutelage.prompts.edits import get_question
from tutelage.prompts.evaluator import EvaluationItem
from tutelage.types import Message

STYLES = {
    "rewrite": "Rewrite the text so that the problems named cannot come back. Keep what works.",
    "one point": "Mend only the most important problem. Stay as close to the text as you can.",
}
"""Styles of edits: a free rewrite, and one point at a time."""

_RULES = (
    "Write general instructions: no example, question or answer of the rollouts. Keep every "
    "{placeholder} as it stands. Reply with the whole new text between <prompt> and </prompt>."
)

TRACE_TOKENS = 2_000
REQUEST_TOKENS = 12_000

_PIECE = re.compile(r"\s*(?:\w+|[^\w\s])")

Shown = Sequence[tuple[EvaluationItem, Episode]]


def critique(component: str, text: str, rollouts: Shown) -> list[Message]:
    """Return messages that request a critique of failed rollouts (the textual gradient)."""
    return _build_messages(
        "You find out why an AI agent fails. You give a short critique and no new prompt.",
        f"This text is the agent's {component!r}:\n<current>\n{text}\n</current>\n\n"
        f"The agent played these tasks:\n\n{_format_rollouts(rollouts)}\n\n"
        "Write a critique: what in the text, or missing from it, led to the bad rewards?",
    )


def edit(component: str, text: str, criticism: str, style: str) -> list[Message]:
    """Return messages that request a new text based on a critique, in one of the `STYLES`."""
    return _build_messages(
        "You improve the instructions of an AI agent.",
        f"This text is the agent's {component!r}:\n<current>\n{text}\n</current>\n\n"
        f"A critique of it:\n<critique>\n{criticism}\n</critique>\n\n{STYLES[style]} {_RULES}",
    )


def reflect(component: str, text: str, rollouts: Shown) -> list[Message]:
    """Return messages that request a new text based on rollouts (GEPA's reflective mutation)."""
    return _build_messages(
        "You improve the instructions of an AI agent from what happened when it followed them.",
        f"This text is the agent's {component!r}:\n<current>\n{text}\n</current>\n\n"
        f"The agent played these tasks:\n\n{_format_rollouts(rollouts)}\n\n"
        f"Work out what the agent needs to be told, then write a new text. {_RULES}",
    )


def repair(messages: Sequence[Message], reply: str, problem: str) -> list[Message]:
    """Return messages that repeat a request and describe the problem of its reply."""
    return [
        *messages,
        Message("assistant", reply or "(nothing)"),
        Message("user", f"That cannot be used: {problem}. {_RULES}"),
    ]


def _build_messages(system: str, user: str) -> list[Message]:
    """Return a system message and a user message."""
    return [Message("system", system), Message("user", user)]


def cut_middle(text: str, limit: int) -> str:
    """Return `text`, with its middle removed if it has more than `limit` tokens."""
    pieces = _PIECE.findall(text)
    if len(pieces) <= limit:
        return text
    head, tail = limit - limit // 2, limit // 2
    left_out = len(pieces) - limit
    end = "".join(pieces[len(pieces) - tail :])
    return f"{''.join(pieces[:head])}\n[... {left_out} tokens left out ...]\n{end}"


def _format_rollouts(rollouts: Shown) -> str:
    """Format the rollouts as text; each rollout gets an equal share of the request."""
    share = min(TRACE_TOKENS, REQUEST_TOKENS // max(1, len(rollouts)))
    return "\n\n".join(
        f"<rollout>\n{cut_middle(_format_rollout(item, episode), share)}\n</rollout>"
        for item, episode in rollouts
    )


def _format_rollout(item: EvaluationItem, episode: Episode) -> str:
    """Format one rollout as text."""
    asked = get_question(item.task, "\n") or item.task.title
    fields = {
        "Trace": episode.trace,
        "Reward": f"{episode.value:.3g}" + (" (exact)" if episode.exact else ""),
        "Failed": episode.failure,
        "Feedback": episode.feedback,
    }
    lines = [f"{name}: {text}" for name, text in fields.items() if text]
    return "\n".join([f"Question: {asked}", *lines])
