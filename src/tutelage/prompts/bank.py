"""Phrases for `screen.py`: general ones, and those derived from an agent's tools and grader.

The names and descriptions of tools, and the answer form in a grader's docstring, are known before
any rollout; the user may add hints. Pure functions without access to tasks, so a bank cannot
contain an answer.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence

from tutelage.rewards.function import RewardFunction
from tutelage.tools.tool import Tool

GENERIC = (
    "Think step by step.",
    "Read the question carefully and answer exactly what it asks.",
    "Check your answer before you give it.",
    "Give the final answer only, without explanation.",
    "Be concise.",
    "Use a tool for every calculation instead of working it out yourself.",
    "Make one tool call at a time and wait for its result.",
    "Work through the problem first, then state the answer on a line of its own.",
    "Do not round or estimate: report the result exactly.",
    "If something is missing, say what you assume.",
)
"""Phrases that help some agents and tasks, and hurt others; the search finds out."""

_QUOTED = re.compile(r"`([^`\n]+)`")
_SLOT = re.compile(r"\bX\b")


def build_bank(
    tools: Mapping[str, Tool], grader: RewardFunction | None = None, hints: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the candidate phrases: general ones, two per tool, one for the grader's answer format,
    and the hints."""
    made = [*GENERIC]
    for tool in tools.values():
        made.append(f"Use the tool {tool.name} where it applies.")
        if text := tool.description.strip().split("\n")[0]:
            made.append(f"Use {tool.name} to do this: {text}")
    # As the grader's docstring shows it: in backticks, with a capital X where the answer stands.
    quoted = [] if grader is None else _QUOTED.findall(inspect.getdoc(grader.fn) or "")
    if form := next((text for text in quoted if _SLOT.search(text)), ""):
        made.append(f"Write the final answer in this form: {form}")
    return tuple(dict.fromkeys([*made, *(hint.strip() for hint in hints if hint.strip())]))
