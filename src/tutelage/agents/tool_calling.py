"""The tool-calling agent (`agent_type=hf`): call the model, run its tools, observe, repeat.

It ends with an answer (a turn without calls, or a terminal tool), at the turn limit, or when its
token budget or the context is used up. Whatever the model writes is obeyed or answered: a call
that cannot be read gets an observation that says what was wrong. The model is any `ChatClient`;
`rollouts/runner.py` runs the agent on tasks, `tools/execute.py` runs the calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tutelage.errors import ContextOverflowError
from tutelage.tools.execute import execute_tool_calls
from tutelage.tools.tool import Tool
from tutelage.types import Call, ChatClient, Message, Sampling, StopReason, Task, ToolResult


@dataclass(slots=True)
class Outcome:
    """How an episode went: the final text, why it ended, and every tool result."""

    answer: str | None = None
    stop: str = "max_turns"
    tool_results: list[ToolResult] = field(default_factory=list[ToolResult])


@dataclass(frozen=True, slots=True)
class ToolCallingAgent:
    """Settings of the loop. `token_budget` bounds the sampled tokens of a whole episode."""

    tools: Mapping[str, Tool]
    sampling: Sampling
    max_turns: int = 4
    token_budget: int = 1 << 30
    system_prompt: str | None = None

    async def run(self, task: Task, client: ChatClient, outcome: Outcome) -> None:
        """Play one task, filling `outcome` as it goes, so that a timeout loses nothing."""
        messages = list(task.messages())
        if self.system_prompt is not None:
            messages.insert(0, Message("system", self.system_prompt))
        specs = [t.spec for t in self.tools.values()]
        left = self.token_budget
        for turn in range(self.max_turns):
            sampling = replace(self.sampling, max_tokens=min(self.sampling.max_tokens, left))
            try:
                call = await client.chat(messages, tools=specs, sampling=sampling)
            except ContextOverflowError:
                outcome.stop = "context"
                return
            left -= len(call.sampled.token_ids)
            messages.append(call.reply)
            if call.sampled.stop_reason is StopReason.LENGTH:
                outcome.stop = "token_budget"
                return
            if not call.reply.tool_calls and not call.parse_errors:
                outcome.answer, outcome.stop = call.reply.content or "", "answer"
                return
            last = turn == self.max_turns - 1 or left <= 0
            if not last or self._answers(call):
                messages += await self._observe(call, outcome)
            if outcome.stop == "answer":
                return
            if last:
                outcome.stop = "max_turns" if left > 0 else "token_budget"
                return

    def _answers(self, call: Call) -> bool:
        """Whether the turn calls a terminal tool: worth running although no turn may follow."""
        found = (self.tools.get(c.name) for c in call.reply.tool_calls)
        return any(tool is not None and tool.terminal for tool in found)

    async def _observe(self, call: Call, outcome: Outcome) -> list[Message]:
        """Run the turn's calls; one observation for each, and one for each that was unreadable."""
        results = await execute_tool_calls(call.reply.tool_calls, self.tools)
        outcome.tool_results += results
        for result in results:
            if result.error is None and self.tools[result.name].terminal:
                outcome.answer, outcome.stop = result.text, "answer"
        observed = [Message("tool", r.text, tool_call_id=r.call_id, name=r.name) for r in results]
        broken = [
            Message("tool", f"Error: {reason}", tool_call_id=call.id, name="unreadable")
            for reason in call.parse_errors
        ]
        return observed + broken
