"""The loop of the built-in agents: call the model, run its tools, observe, repeat.

It ends with an answer (the model's, or a terminal tool's), at the turn limit, or when the token
budget or the context is used up. `tool_calling.py`, `react.py` and `code.py` each parse a call into
a `Turn` and format the observations. Every output of the model is executed or answered: a `Turn` is
an answer, or calls and errors, each of which gets an observation.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tutelage.agents.agent import Agent
from tutelage.agents.session import RolloutSession
from tutelage.environments import RolloutEnvironment, rollout_environments
from tutelage.errors import ConfigError, ContextOverflowError
from tutelage.resources import NamedResources
from tutelage.tools.execute import execute_tool_calls
from tutelage.tools.schema import Signature
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
    """Parsed content of a sampled turn: an answer, or tool calls and parse errors.

    A turn without any of them gets an error for the model.
    """

    answer: str | None = None
    calls: tuple[ToolCall, ...] = ()
    errors: tuple[str, ...] = ()

    @classmethod
    def from_error(cls, reason: str) -> Turn:
        """Create a turn with one error."""
        return cls(errors=(reason,))


@dataclass(frozen=True, slots=True)
class LoopAgent(Agent, ABC):
    """Base class of built-in agents: loop settings, parsing of turns, and observations.

    Class variables declare its needs. A user's type inherits from this one or from a built-in one
    and adds no field without a default.
    """

    schedule = "deterministic"
    own_tools: ClassVar[tuple[str, ...]] = ()
    """Default tools; empty uses those of the recipe."""
    own_stops: ClassVar[tuple[str, ...]] = ()
    """Stop strings in addition to those of `sampling`."""

    tools: Mapping[str, Tool]
    sampling: Sampling
    max_turns: int = 4
    token_budget: int = 1 << 30
    """Maximum sampled tokens of an episode."""
    system_prompt: str | None = None
    """System prompt; None uses the type's."""
    tool_choice: str = "auto"
    """With `required`, turns are constrained to tool calls until the first one; later turns may be
    an answer."""

    @classmethod
    def refusal(cls, tools: Sequence[str]) -> tuple[str, str] | None:
        """Return the reason why the agent cannot use the named tools, and a fix, or None."""
        return None

    def own_prompt(self) -> str:
        """Return the default system prompt, or an empty text."""
        return ""

    def tool_specs(self) -> list[ToolSpec]:
        """Return the tools for the chat template, or none if calls are written as text."""
        return []

    @abstractmethod
    def read(self, call: Call) -> Turn:
        """Parse a model call as a turn."""

    @abstractmethod
    def observe(self, call: Call, turn: Turn, results: Sequence[ToolResult]) -> list[Message]:
        """Return the messages that answer a turn, at least one."""

    async def play(self, task: Task, session: RolloutSession, resources: NamedResources) -> None:
        """Play a task, and record each turn in the session."""
        if session.client is None:
            raise ConfigError("a built-in agent runs only in this process and needs a model")
        environment, agent = session.environment, self
        if environment is not None and environment.observation.tools:
            offered = {spec.name: _wrap_spec(spec) for spec in environment.observation.tools}
            agent = replace(self, tools={**self.tools, **offered})
        prompt = agent.own_prompt() if self.system_prompt is None else self.system_prompt
        system = [Message("system", prompt)] if prompt else []
        stop = tuple(dict.fromkeys((*self.sampling.stop, *self.own_stops)))
        left, session.stop = self.token_budget, "max_turns"
        constraint = Constraint("required") if self.tool_choice == "required" else None
        async with rollout_environments(task) as environments:
            tools = await environments.bind(self.tools)
            if environment is None:
                messages = [*system, *task.messages(), *environments.observed]
            else:
                shown = environment.observation.begin_conversation(task)
                messages = [*system, *shown, *environments.observed]
            for number in range(self.max_turns):
                most = min(self.sampling.max_tokens, left)
                sampling = replace(self.sampling, max_tokens=most, stop=stop)
                choices = () if environment is None else environment.observation.actions
                try:
                    call = await session.client.chat(
                        messages,
                        tools=agent.tool_specs(),
                        sampling=sampling,
                        constraint=Constraint("none", choices=choices) if choices else constraint,
                    )
                except ContextOverflowError:
                    session.stop = "context"
                    return
                left -= len(call.sampled.token_ids)
                messages.append(call.reply)
                if call.sampled.stop_reason is StopReason.LENGTH:
                    session.stop = "token_budget"
                    return
                turn = Turn(call.reply.content or "") if choices else agent.read(call)
                if environment is None and turn.answer is not None:
                    session.answer, session.stop = turn.answer, "answer"
                    return
                constraint = None if turn.calls else constraint
                last = number == self.max_turns - 1 or left <= 0
                if environment is not None:
                    messages += await agent._apply_turn(environment, call, turn, tools, session)
                    if environment.ended:
                        session.stop = "terminated" if environment.terminated else "truncated"
                        return
                # What no turn can observe is run only when it may be the answer.
                elif not last or _calls_terminal_tool(turn, tools):
                    messages += self.observe(call, turn, await _run_calls(turn, tools, session))
                    if session.answer is not None:
                        return
                if last:
                    session.stop = "max_turns" if left > 0 else "token_budget"
                    return

    async def _apply_turn(
        self,
        environment: RolloutEnvironment,
        call: Call,
        turn: Turn,
        tools: Mapping[str, Tool],
        session: RolloutSession,
    ) -> list[Message]:
        """Apply a turn to the environment, and return the messages that answer it.

        Calls of the agent's own `tools` run here; all others of the turn are one step, and so is an
        answer. An unreadable turn is no step.
        """
        own = tuple(each for each in turn.calls if each.name in tools)
        calls = tuple(each for each in turn.calls if each.name not in tools)
        session.answer, shown = turn.answer, list[Message]()
        results = {r.call_id: r for r in await _run_calls(replace(turn, calls=own), tools, session)}
        if calls or session.answer is not None:
            text = (call.reply.content if session.answer is None else session.answer) or ""
            action = Message("assistant", text.removeprefix(call.thought).strip(), calls)
            step = await environment.step(action, call.id)
            answers = {m.tool_call_id: m for m in step.observation.messages if m.role == "tool"}
            shown = [m for m in step.observation.messages if m.role != "tool"]
            for each in calls:
                answer = answers.get(each.id, Message("tool", ""))
                error = answer.extra.get("error")
                result = ToolResult(each.id, each.name, each.arguments, answer.content or "", error)
                results[each.id] = result
                session.tool_results.append(result)
            if isinstance(said := step.info.get("answer"), str):
                session.answer = said
        if environment.ended or not (turn.calls or turn.errors):
            return shown
        observed = [results[each.id] for each in turn.calls]
        return [*self.observe(call, turn, observed), *shown]


def _wrap_spec(spec: ToolSpec) -> Tool:
    """Create a tool object for an environment's tool, whose calls are part of a step."""
    return Tool(spec.name, spec.description, _wrap_spec, Signature(spec.parameters, json.loads))


def _calls_terminal_tool(turn: Turn, tools: Mapping[str, Tool]) -> bool:
    """Return True if the turn calls a terminal tool."""
    items = (tools.get(call.name) for call in turn.calls)
    return any(tool is not None and tool.terminal for tool in items)


async def _run_calls(
    turn: Turn, tools: Mapping[str, Tool], session: RolloutSession
) -> list[ToolResult]:
    """Run the calls of a turn concurrently and return the results in their order."""
    results = await execute_tool_calls(turn.calls, tools)
    session.tool_results += results
    for result in results:
        if result.error is None and tools[result.name].terminal:
            session.answer, session.stop = result.text, "answer"
    return results
