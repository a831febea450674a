"""The loop that the built-in agents share: call the model, run its tools, observe, repeat.

It ends with an answer (the model's own, or a terminal tool), at the turn limit, or when the token
budget or the context is used up. What a turn says and how results are shown differs from agent to
agent: `tool_calling.py`, `react.py` and `code.py` each read a call into a `Turn` and word the
observations. The promise they share is that whatever the model writes is obeyed or answered: a
`Turn` is an answer, or calls and errors, and each of those gets an observation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from tutelage.errors import ContextOverflowError
from tutelage.tools.environments import rollout_environments
from tutelage.tools.execute import execute_tool_calls
from tutelage.tools.tool import Tool
from tutelage.types import (
    Call,
    ChatClient,
    Message,
    Sampling,
    StopReason,
    Task,
    ToolCall,
    ToolResult,
    ToolSpec,
)


@dataclass(slots=True)
class Outcome:
    """How an episode went: the final text, why it ended, and every tool result."""

    answer: str | None = None
    stop: str = "max_turns"
    tool_results: list[ToolResult] = field(default_factory=list[ToolResult])


@dataclass(frozen=True, slots=True)
class Turn:
    """What a sampled turn says: an answer; or else tool calls, and what could not be read.

    A turn that says neither has an error that tells the model so.
    """

    answer: str | None = None
    calls: tuple[ToolCall, ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoopAgent(ABC):
    """An agent type: the settings of the loop, how it reads turns, and how it words observations.

    What it declares of itself is on the class. A type of the user's inherits from this one or from
    a built-in one and adds no field without a default.
    """

    own_tools: ClassVar[tuple[str, ...]] = ()
    """Its tools where none are named; empty takes those of the recipe."""

    tools: Mapping[str, Tool]
    sampling: Sampling
    max_turns: int = 4
    token_budget: int = 1 << 30
    """Sampled tokens of a whole episode, at most."""
    system_prompt: str | None = None

    @classmethod
    def refusal(cls, tools: Sequence[str]) -> tuple[str, str] | None:
        """Why it cannot use tools of these names, and the way out; None where it can."""
        return None

    async def run(self, task: Task, client: ChatClient, outcome: Outcome) -> None:
        """Play one task, filling `outcome` as it goes, so that a timeout loses nothing."""
        await play(self, task, client, outcome)

    def told(self) -> list[ToolSpec]:
        """The tools that the chat template is told of: none, where calls are written as text."""
        return []

    @abstractmethod
    def read(self, call: Call) -> Turn:
        """What a sampled turn says."""

    @abstractmethod
    def observe(self, call: Call, turn: Turn, results: Sequence[ToolResult]) -> list[Message]:
        """The messages that answer a turn: at least one."""


async def play(agent: LoopAgent, task: Task, client: ChatClient, outcome: Outcome) -> None:
    """Play one task, filling `outcome` as it goes, so that a timeout loses nothing."""
    messages = list(task.messages())
    if agent.system_prompt:
        messages.insert(0, Message("system", agent.system_prompt))
    async with rollout_environments(task) as environments:
        tools = await environments.bind(agent.tools)
        await _turns(agent, tools, messages, client, outcome)


async def _turns(
    agent: LoopAgent,
    tools: Mapping[str, Tool],
    messages: list[Message],
    client: ChatClient,
    outcome: Outcome,
) -> None:
    left = agent.token_budget
    for number in range(agent.max_turns):
        sampling = replace(agent.sampling, max_tokens=min(agent.sampling.max_tokens, left))
        try:
            call = await client.chat(messages, tools=agent.told(), sampling=sampling)
        except ContextOverflowError:
            outcome.stop = "context"
            return
        left -= len(call.sampled.token_ids)
        messages.append(call.reply)
        if call.sampled.stop_reason is StopReason.LENGTH:
            outcome.stop = "token_budget"
            return
        turn = agent.read(call)
        if turn.answer is not None:
            outcome.answer, outcome.stop = turn.answer, "answer"
            return
        last = number == agent.max_turns - 1 or left <= 0
        # What no turn can observe is run only when it may be the answer.
        if not last or _answers(turn, tools):
            messages += agent.observe(call, turn, await _run(turn, tools, outcome))
        if outcome.stop == "answer":
            return
        if last:
            outcome.stop = "max_turns" if left > 0 else "token_budget"
            return


def _answers(turn: Turn, tools: Mapping[str, Tool]) -> bool:
    """Whether the turn calls a terminal tool."""
    found = (tools.get(call.name) for call in turn.calls)
    return any(tool is not None and tool.terminal for tool in found)


async def _run(turn: Turn, tools: Mapping[str, Tool], outcome: Outcome) -> list[ToolResult]:
    """Run the turn's calls, all at once; results in their order."""
    results = await execute_tool_calls(turn.calls, tools)
    outcome.tool_results += results
    for result in results:
        if result.error is None and tools[result.name].terminal:
            outcome.answer, outcome.stop = result.text, "answer"
    return results
