"""What a worker is told: the whole instruction, its own subtask, and its inputs filled in.

`plan/arguments.py` says what references become. Outputs of nodes that are waited for and named in
no argument are listed below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tutelage.orchestration.plan.arguments import as_text, fill, member
from tutelage.orchestration.plan.dag import Plan, references
from tutelage.types import Message

SYSTEM = (
    "You do one part of a larger task. Other workers do the others. Reply with the result of your "
    "part and nothing else."
)
NOTHING = "(no output)"
"""The output of a node that has none."""


def node_prompt(plan: Plan, index: int, outputs: Mapping[int, str]) -> str:
    """The text for one node, given the outputs of the nodes that it waits for."""

    def filled(match: re.Match[str]) -> str:
        # What looked like a member and is none was the next sentence.
        value, left = member(outputs.get(int(match[1]), NOTHING), match[2])
        return f"{as_text(value)}{left}"

    node = plan.nodes[index]
    lines = [f"Instruction: {plan.instruction}", "", f"Your part: {node.tool}"]
    if node.description:
        lines.append(node.description)
    if node.arguments:
        lines += ["", "Arguments:"]
        values = {name: fill(value, filled) for name, value in node.arguments.items()}
        lines += [f"- {name}: {as_text(value)}" for name, value in values.items()]
    named = references(node.arguments)
    if others := [parent for parent in node.parents if parent not in named]:
        lines += ["", "Inputs:"]
        lines += [f"- {plan.nodes[k].tool}: {outputs.get(k, NOTHING)}" for k in others]
    lines += ["", "Reply with the result of your part only."]
    return "\n".join(lines)


def worker_messages(prompt: str) -> tuple[Message, Message]:
    """The prompt of a node as a worker that is a chat model gets it."""
    return Message("system", SYSTEM), Message("user", prompt)
