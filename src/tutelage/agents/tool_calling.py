"""The tool-calling agent (`agent_type=hf`): calls in the chat template's format.

The template shows the tools to the model, the codec parses the calls, and results are `tool`
messages. A turn without a call is the answer. A call that cannot be parsed gets an observation with
the error. The loop is `loop.py`; `rollouts/runner.py` runs the agent on tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tutelage.agents.loop import LoopAgent, Turn
from tutelage.types import Call, Message, ToolResult, ToolSpec


@dataclass(frozen=True, slots=True)
class ToolCallingAgent(LoopAgent):
    """Agent that calls tools with the chat template. A turn without a call is its answer."""

    def tool_specs(self) -> list[ToolSpec]:
        """Return the tools for the chat template."""
        return [tool.spec for tool in self.tools.values()]

    def read(self, call: Call) -> Turn:
        """Parse a model call as tool calls, or as an answer if it has none."""
        if not call.reply.tool_calls and not call.parse_errors:
            return Turn(answer=call.reply.content or "")
        return Turn(calls=call.reply.tool_calls, errors=call.parse_errors)

    def observe(self, call: Call, turn: Turn, results: Sequence[ToolResult]) -> list[Message]:
        """Return a message for each result and for each unreadable call."""
        observed = [Message("tool", r.text, tool_call_id=r.call_id, name=r.name) for r in results]
        broken = [
            Message("tool", f"Error: {reason}", tool_call_id=call.id, name="unreadable")
            for reason in turn.errors
        ]
        return observed + broken
