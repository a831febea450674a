"""The tool-calling agent (`agent_type=hf`): calls in the chat template's own form.

The template tells the model about its tools, the codec reads the calls, and results are `tool`
messages. A turn without a call is the answer. A call that cannot be read gets an observation that
says what was wrong. The loop is `loop.py`; `rollouts/runner.py` runs the agent on tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tutelage.agents.loop import LoopAgent, Turn
from tutelage.types import Call, Message, ToolResult, ToolSpec


@dataclass(frozen=True, slots=True)
class ToolCallingAgent(LoopAgent):
    """Calls through the chat template; what it does not call, it answers."""

    def tool_specs(self) -> list[ToolSpec]:
        """All tools."""
        return [tool.spec for tool in self.tools.values()]

    def read(self, call: Call) -> Turn:
        """The calls that the codec found; a turn without any is the answer."""
        if not call.reply.tool_calls and not call.parse_errors:
            return Turn(answer=call.reply.content or "")
        return Turn(calls=call.reply.tool_calls, errors=call.parse_errors)

    def observe(self, call: Call, turn: Turn, results: Sequence[ToolResult]) -> list[Message]:
        """One message for each result, and one for each call that was unreadable."""
        observed = [Message("tool", r.text, tool_call_id=r.call_id, name=r.name) for r in results]
        broken = [
            Message("tool", f"Error: {reason}", tool_call_id=call.id, name="unreadable")
            for reason in turn.errors
        ]
        return observed + broken
