"""Phrases that `screen.py` and `grips.py` try: generic ones, and those an agent gives away.

What an agent's tools are called and what they say of themselves, and what the grader reads, are
known before any rollout; the user may add hints. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from tutelage.types import ToolSpec

GENERIC = (
    "Think step by step.",
    "Read the question carefully and answer exactly what it asks.",
    "Check your answer before you give it.",
    "Give the final answer only, without explanation.",
    "Be concise.",
    "Use a tool for every calculation instead of working it out yourself.",
    "Work through the problem first, then state the answer on a line of its own.",
    "If something is missing, say what you assume.",
)


def derived(
    tools: Sequence[ToolSpec] = (), output_format: str = "", hints: Sequence[str] = ()
) -> tuple[str, ...]:
    """The generic phrases, two for each tool, one for the output format, and the hints."""
    made = [*GENERIC]
    for tool in tools:
        made.append(f"Use the tool {tool.name} where it applies.")
        if said := tool.description.strip().split("\n")[0]:
            made.append(f"Use {tool.name} to do this: {said}")
    if output_format:
        made.append(f"Write the final answer in this form: {output_format}")
    return tuple(dict.fromkeys([*made, *hints]))
