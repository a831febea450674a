"""What an optimiser LLM is shown of failed rollouts, cut to size.

Question, trace (tool calls, results, answer) and the grader's feedback; 2,000 tokens a rollout and
12,000 a request at most, cut in the middle, since beginnings and ends tell most. `requests.py` puts
it into messages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tutelage.prompts.contract import Episode
from tutelage.prompts.evaluator import Item

TRACE_TOKENS = 2_000
REQUEST_TOKENS = 12_000

_PIECE = re.compile(r"\s*(?:\w+|[^\w\s])")


def cut(text: str, limit: int) -> str:
    """`text` with its middle left out, where it has more than `limit` tokens."""
    pieces = _PIECE.findall(text)
    if len(pieces) <= limit:
        return text
    head, tail = limit - limit // 2, limit // 2
    left_out = len(pieces) - limit
    end = "".join(pieces[len(pieces) - tail :])
    return f"{''.join(pieces[:head])}\n[... {left_out} tokens left out ...]\n{end}"


def render(shown: Sequence[tuple[Item, Episode]]) -> str:
    """The rollouts as text, each with its share of the request."""
    share = min(TRACE_TOKENS, REQUEST_TOKENS // max(1, len(shown)))
    return "\n\n".join(
        f"<rollout>\n{cut(_one(item, episode), share)}\n</rollout>" for item, episode in shown
    )


def _one(item: Item, episode: Episode) -> str:
    question = "\n".join(m.content or "" for m in item.task.messages())
    lines = [f"Question: {question}"]
    if episode.trace:
        lines.append(f"Trace: {episode.trace}")
    lines.append(f"Reward: {episode.value:.3g}" + (" (exact)" if episode.exact else ""))
    if episode.failure is not None:
        lines.append(f"Failed: {episode.failure}")
    if episode.feedback:
        lines.append(f"Feedback: {episode.feedback}")
    return "\n".join(lines)
