"""What a worker is told: the whole instruction, its own subtask, and its inputs filled in.

`<node-3>` in an argument becomes the output of node 3, several in one argument each their own;
`<node-3>.title` becomes that member when the output is a JSON object that has it. Outputs of nodes
that are waited for and named in no argument are listed below. `plan/dag.py` finds the references.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tutelage.bounded import parse_json
from tutelage.orchestration.plan.dag import Plan, references
from tutelage.types import Message

_REFERENCE = re.compile(r"<node-(\d+)>(?:\.([A-Za-z_]\w*))?")
SYSTEM = (
    "You do one part of a larger task. Other workers do the others. Reply with the result of your "
    "part and nothing else."
)
NOTHING = "(no output)"
"""The output of a node that has none."""


def _fill(value: object, outputs: Mapping[int, str]) -> object:
    """An argument with its references replaced, inside lists and objects too."""
    if isinstance(value, str):
        return _REFERENCE.sub(lambda found: _one(found, outputs), value)
    if isinstance(value, Mapping):
        inner = cast("Mapping[object, object]", value)
        return {key: _fill(item, outputs) for key, item in inner.items()}
    if isinstance(value, (list, tuple)):
        return [_fill(item, outputs) for item in cast("Sequence[object]", value)]
    return value


def _one(found: re.Match[str], outputs: Mapping[int, str]) -> str:
    output = outputs.get(int(found[1]), NOTHING)
    if found[2] is None:
        return output
    try:
        members: Any = parse_json(output)
        member: object = members[found[2]]
    except (ValueError, KeyError, TypeError, IndexError):
        return f"{output}.{found[2]}"  # no such member: what looked like one was the next sentence
    return _shown(member)


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def node_prompt(plan: Plan, index: int, outputs: Mapping[int, str]) -> str:
    """The text for one node, given the outputs of the nodes that it waits for."""
    node = plan.nodes[index]
    lines = [f"Instruction: {plan.instruction}", "", f"Your part: {node.tool}"]
    if node.description:
        lines.append(node.description)
    if node.arguments:
        lines += ["", "Arguments:"]
        filled = {name: _fill(value, outputs) for name, value in node.arguments.items()}
        lines += [f"- {name}: {_shown(value)}" for name, value in filled.items()]
    named = references(node.arguments)
    others = [parent for parent in node.parents if parent not in named]
    if others:
        lines += ["", "Inputs:"]
        lines += [f"- {plan.nodes[k].tool}: {outputs.get(k, NOTHING)}" for k in others]
    lines += ["", "Reply with the result of your part only."]
    return "\n".join(lines)


def worker_messages(prompt: str) -> tuple[Message, Message]:
    """The prompt of a node as a worker that is a chat model gets it."""
    return Message("system", SYSTEM), Message("user", prompt)
