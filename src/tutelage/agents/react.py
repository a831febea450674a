"""The ReAct agent (`agent_type=react`): Thought, Action and Action Input as plain text.

The format of Yao et al. 2022 (arXiv:2210.03629), for any chat model, with or without a template
that supports tools:

    Thought: I need the product.
    Action: calculator
    Action Input: {"expression": "17*23"}

and later `Answer: 391`, which ends the episode. Sampling stops before an observation. A tool with
one parameter accepts its bare value; several actions in a turn run concurrently and are observed in
order. The loop is `loop.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tutelage.agents.loop import LoopAgent, Turn
from tutelage.bounded import parse_json
from tutelage.tools.tool import Tool
from tutelage.types import JSON, Call, Message, ToolCall, ToolResult

STOP = "Observation:"
_LABEL = re.compile(
    r"^[ \t]*(thought|action input|action|final answer|answer|observation)[ \t]*:[ \t]*",
    re.IGNORECASE | re.MULTILINE,
)
_FORM = "'Action: NAME' and 'Action Input: JSON' to use a tool, or 'Answer: TEXT' to end"


_LabelledPart = tuple[str, str]
"""A labelled part of a turn: its label and its text."""


@dataclass(frozen=True, slots=True)
class ReactAgent(LoopAgent):
    """ReAct agent, which writes thoughts, actions and answers as lines of text."""

    own_stops: ClassVar[tuple[str, ...]] = (STOP,)

    def own_prompt(self) -> str:
        """Return the default system prompt with the tools and the output format."""
        if not self.tools:
            return "Think, then end with the answer alone in this form:\nThought: ...\nAnswer: ..."
        described = "\n".join(_format_tool(tool) for tool in self.tools.values())
        return (
            f"Answer the question. You can use these tools:\n{described}\n\n"
            "To use a tool, write\nThought: what to do next\nAction: the tool's name\n"
            "Action Input: its arguments as a JSON object\n"
            "and stop; an observation follows. When you know the answer, write\n"
            "Thought: why this is the answer\nAnswer: the answer alone"
        )

    def read(self, call: Call) -> Turn:
        """Parse a model call as actions or an answer."""
        if call.reply.tool_calls or call.parse_errors:
            return Turn.from_error(f"calls in <tool_call> tags are not read here; write {_FORM}")
        return self.read_text(call.answer, call.id)

    def read_text(self, text: str, turn_id: str) -> Turn:
        """Parse the text of a turn.

        An answer together with an action, and an observation written by the model, are errors, and
        nothing is run.
        """
        parts = _split_parts(text)
        while parts and parts[-1] == ("observation", ""):
            parts.pop()  # the stop string
        labels = [label for label, _ in parts]
        if "observation" in labels:
            return Turn.from_error("observations come from the tools; stop after 'Action Input:'")
        answers = [said for label, said in parts if label == "answer"]
        if "action" in labels or "action input" in labels:
            if answers:
                return Turn.from_error("an action and an answer in one turn; write one of them")
            return self._parse_actions(parts, turn_id)
        if len(answers) > 1:
            return Turn.from_error(f"{len(answers)} answers in one turn; write one")
        if answers:
            return Turn(answer=answers[0])
        return Turn.from_error(f"no action and no answer; write {_FORM}")

    def _parse_actions(self, parts: Sequence[_LabelledPart], turn_id: str) -> Turn:
        """Parse the actions of a turn as tool calls, with errors for incomplete actions."""
        calls: list[ToolCall] = []
        errors: list[str] = []
        steps = [part for part in parts if part[0] in ("action", "action input")]
        at = 0
        while at < len(steps):
            label, text = steps[at]
            at += 1
            if label == "action input":
                errors.append("'Action Input:' without 'Action:' before it")
                continue
            message = ""
            if at < len(steps) and steps[at][0] == "action input":
                message = steps[at][1]
                at += 1
            if not text:
                errors.append("'Action:' names no tool")
                continue
            arguments = _parse_arguments(message, self.tools.get(text))
            calls.append(ToolCall(f"{turn_id}.{len(calls)}", text, arguments))
        return Turn(calls=tuple(calls), errors=tuple(errors))

    def observe(self, call: Call, turn: Turn, results: Sequence[ToolResult]) -> list[Message]:
        """Return a message with all results and errors, numbered if there are several."""
        texts = [r.text for r in results] + [f"Error: {reason}" for reason in turn.errors]
        if len(texts) == 1:
            return [Message("user", f"Observation: {texts[0]}")]
        lines = [f"Observation {number}: {text}" for number, text in enumerate(texts, 1)]
        return [Message("user", "\n".join(lines))]


def _format_tool(tool: Tool) -> str:
    """Format a tool and its arguments as a line of text."""
    parameters = tool.parameters.get("properties", {})
    lines: list[str] = []
    for name, schema in parameters.items():
        about = schema.get("description")
        lines.append(f"{name} ({about.rstrip('.')})" if about else str(name))
    first = tool.description.partition("\n")[0]
    return f"- {tool.name}: {first} Arguments: {'; '.join(lines) if lines else 'none'}."


def _split_parts(text: str) -> list[_LabelledPart]:
    """Split a text into its labelled parts, without the text before the first label."""
    items = list(_LABEL.finditer(text))
    parts: list[_LabelledPart] = []
    for place, match in enumerate(items):
        end = items[place + 1].start() if place + 1 < len(items) else len(text)
        label = " ".join(match[1].lower().split())
        label = "answer" if label == "final answer" else label
        parts.append((label, text[match.end() : end].strip()))
    return parts


def _parse_arguments(text: str, tool: Tool | None) -> str:
    """Convert the input of an action to a JSON object with the tool's arguments.

    Text that begins with `{` is that object. For a tool with a single parameter any other text is
    its value: parsed as JSON unless the parameter is a text.
    """
    fenced = re.fullmatch(r"```[a-zA-Z]*\n(.*)\n?```", text, re.DOTALL)
    text = fenced[1].strip() if fenced else text
    properties: JSON = {} if tool is None else tool.parameters.get("properties", {})
    if not text or text.startswith("{") or len(properties) != 1:
        return text
    ((name, schema),) = properties.items()
    try:
        value = parse_json(text)
    except ValueError:
        value = text
    if schema.get("type") == "string" and not isinstance(value, str):
        value = text
    return json.dumps({name: value}, ensure_ascii=False)
