"""Prompts of workers: the whole instruction, the subtask, and its arguments with inputs filled in.

See `plan/arguments.py` for how references are resolved. Outputs of parent nodes that no argument
refers to are listed below the arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tutelage.orchestration.plan.arguments import as_text, fill_references, get_member
from tutelage.orchestration.plan.dag import Plan, find_references
from tutelage.types import Message

SYSTEM = (
    "You do one part of a larger task. Other workers do the others. Reply with the result of your "
    "part and nothing else."
)
NOTHING = "(no output)"
"""Placeholder for the output of a node without output."""


def node_prompt(plan: Plan, index: int, outputs: Mapping[int, str]) -> str:
    """Return the prompt for a node, including the outputs of its parents."""

    def format_reference(match: re.Match[str]) -> str:
        # Text after the reference that is not a member of the output is kept as text.
        value, left = get_member(outputs.get(int(match[1]), NOTHING), match[2])
        return f"{as_text(value)}{left}"

    node = plan.nodes[index]
    lines = [f"Instruction: {plan.instruction}", "", f"Your part: {node.tool}"]
    if node.description:
        lines.append(node.description)
    if node.arguments:
        lines += ["", "Arguments:"]
        values = {n: fill_references(v, format_reference) for n, v in node.arguments.items()}
        lines += [f"- {name}: {as_text(value)}" for name, value in values.items()]
    named = find_references(node.arguments)
    if others := [parent for parent in node.parents if parent not in named]:
        lines += ["", "Inputs:"]
        lines += [f"- {plan.nodes[k].tool}: {outputs.get(k, NOTHING)}" for k in others]
    lines += ["", "Reply with the result of your part only."]
    return "\n".join(lines)


def worker_messages(prompt: str) -> tuple[Message, Message]:
    """Return the chat messages for the prompt of a node."""
    return Message("system", SYSTEM), Message("user", prompt)
