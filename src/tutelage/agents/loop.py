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
from dataclasses import dataclass, replace
from typing import ClassVar

from tutelage.agents.agent import Agent
from tutelage.agents.session import RolloutSession
from tutelage.errors import ConfigError, ContextOverflowError
from tutelage.resources import NamedResources
from tutelage.environments.lifecycle import rollout_environments
from tutelage.tools.execute import execute_tool_calls
from tutelage.tools.tool import Tool
from tutelage.types import (
    Call,
    Constraint,
    Message,
    Sampling,
    StopReason,
    Task,
    ToolCall,
    ToolResult,
    ToolSpec,
)


@dataclass(frozen=True, slots=True)
class Turn:
    """What a sampled turn says: an answer; or else tool calls, and what could not be read.

    A turn that says neither has an error that tells the model so.
    """

    answer: str | None = None
    calls: tuple[ToolCall, ...] = ()
    errors: tuple[str, ...] = ()

    @classmethod
    def wrong(cls, reason: str) -> Turn:
        """A turn in which nothing can be done, and why."""
        return cls(errors=(reason,))


@dataclass(frozen=True, slots=True)
class LoopAgent(Agent, ABC):
    """An agent type: the settings of the loop, how it reads turns, and how it words observations.

    What it declares of itself is on the class. A user's type inherits from this one or from
    a built-in one and adds no field without a default.
    """

    schedule = "deterministic"
    own_tools: ClassVar[tuple[str, ...]] = ()
    """Its tools where none are named; empty takes those of the recipe."""
    own_stops: ClassVar[tuple[str, ...]] = ()
    """Texts at which sampling ends, beside those of `sampling`."""

    tools: Mapping[str, Tool]
    sampling: Sampling
    max_turns: int = 4
    token_budget: int = 1 << 30
    """Sampled tokens of a whole episode, at most."""
    system_prompt: str | None = None
    """None takes the type's own."""
    tool_choice: str = "auto"
    """With `required`, turns are constrained to tool calls until the first one: what follows it may
    be an answer."""

    @classmethod
    def refusal(cls, tools: Sequence[str]) -> tuple[str, str] | None:
        """Why it cannot use tools of these names, and the way out; None where it can."""
        return None

    def own_prompt(self) -> str:
        """Its system prompt where none is given; empty for none."""
        return ""

    def tool_specs(self) -> list[ToolSpec]:
        """The tools in the chat template: none where calls are written as text."""
        return []

    @abstractmethod
    def read(self, call: Call) -> Turn:
        """What a sampled turn says."""

    @abstractmethod
    def observe(self, call: Call, turn: Turn, results: Sequence[ToolResult]) -> list[Message]:
        """The messages that answer a turn: at least one."""

    async def play(self, task: Task, session: RolloutSession, resources: NamedResources) -> None:
        """Play one task, filling the session as it goes, so that a failure loses nothing."""
        if session.client is None:
            raise ConfigError("a built-in agent runs only in this process and needs a model")
        prompt = self.own_prompt() if self.system_prompt is None else self.system_prompt
        system = [Message("system", prompt)] if prompt else []
        stop = tuple(dict.fromkeys((*self.sampling.stop, *self.own_stops)))
        left, session.stop = self.token_budget, "max_turns"
        constraint = Constraint("required") if self.tool_choice == "required" else None
        async with rollout_environments(task) as environments:
            tools = await environments.bind(self.tools)
            messages = [*system, *task.messages(), *environments.observed]
            for number in range(self.max_turns):
                most = min(self.sampling.max_tokens, left)
                sampling = replace(self.sampling, max_tokens=most, stop=stop)
                try:
                    call = await session.client.chat(
                        messages,
                        tools=self.tool_specs(),
                        sampling=sampling,
                        constraint=constraint,
                    )
                except ContextOverflowError:
                    session.stop = "context"
                    return
                left -= len(call.sampled.token_ids)
                messages.append(call.reply)
                if call.sampled.stop_reason is StopReason.LENGTH:
                    session.stop = "token_budget"
                    return
                turn = self.read(call)
                if turn.answer is not None:
                    session.answer, session.stop = turn.answer, "answer"
                    return
                constraint = None if turn.calls else constraint
                last = number == self.max_turns - 1 or left <= 0
                # What no turn can observe is run only when it may be the answer.
                if not last or _answers(turn, tools):
                    messages += self.observe(call, turn, await _run(turn, tools, session))
                if session.answer is not None:
                    return
                if last:
                    session.stop = "max_turns" if left > 0 else "token_budget"
                    return


def _answers(turn: Turn, tools: Mapping[str, Tool]) -> bool:
    """Whether the turn calls a terminal tool."""
    items = (tools.get(call.name) for call in turn.calls)
    return any(tool is not None and tool.terminal for tool in items)


async def _run(turn: Turn, tools: Mapping[str, Tool], session: RolloutSession) -> list[ToolResult]:
    """Run the turn's calls, all at once; results in their order."""
    results = await execute_tool_calls(turn.calls, tools)
    session.tool_results += results
    for result in results:
        if result.error is None and tools[result.name].terminal:
            session.answer, session.stop = result.text, "answer"
    return results
