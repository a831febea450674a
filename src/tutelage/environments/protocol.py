"""The protocol of environments: multi-turn tasks that answer the agent.

The terms are gymnasium's. One instance serves one rollout of one task. The seed passed to `reset`
is a function of the run's seed and the rollout's place, so an environment that draws all random
numbers from it is reproducible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tutelage.types import Message, Task, ToolSpec


@dataclass(frozen=True, slots=True)
class Observation:
    """Messages, allowed actions and tools that an environment sends to the agent."""

    messages: tuple[Message, ...] = ()
    """Messages appended to the conversation."""
    actions: tuple[str, ...] = ()
    """The allowed replies of the next turn; empty allows any reply."""
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON values for the record, hidden from the agent."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the agent may call, set in the first observation."""
    continues_prompt: bool = False
    """True if the first message's text continues the last message of the task, as in TRL."""

    def begin_conversation(self, task: Task) -> list[Message]:
        """Return the task's messages followed by those of this first observation."""
        prompt = [*task.messages()] if task.has_input else []
        shown = [*self.messages]
        if self.continues_prompt and prompt and shown:
            last, first = prompt.pop(), shown.pop(0)
            shown.insert(0, replace(last, content=f"{last.content or ''}{first.content or ''}"))
        return [*prompt, *shown]


@dataclass(frozen=True, slots=True)
class Step:
    """The result of an action."""

    observation: Observation = field(default_factory=Observation)
    reward: float | None = None
    """Reward of this turn; None if the environment has no reward per turn."""
    terminated: bool = False
    """True if the task has ended."""
    truncated: bool = False
    """True if the episode was cut off before its end."""
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON values for the record. `success` decides whether the rollout succeeded."""


class Environment(Protocol):
    """A multi-turn task that responds to the agent's replies."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin a task and return its first observation. An exception fails the rollout."""
        ...

    async def step(self, action: Message) -> Step:
        """Apply one reply of the agent, with all its tool calls, and return the resulting step."""
        ...

    async def close(self) -> None:
        """Free the resources of the episode. Always called; exceptions are logged."""
        ...


@dataclass(frozen=True, slots=True)
class EnvironmentFactory:
    """Factory of the instances of one environment, with its tools, tasks and expert.

    The functions are taken from the attributes of the same names of the class, if present.
    """

    name: str
    make: Callable[[], Environment]
    """Function that returns a new instance, which serves one rollout."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools known before any instance exists."""
    deterministic: bool = True
    """False if equal tasks, seeds and actions may give different episodes."""
    tasks: Callable[[str, int, int], Sequence[Task]] | None = None
    """`tasks(split, n, seed)` returns n tasks of `train`, `val` or `test`; with None, tasks come
    from a file."""
    expert: Callable[[Task, Sequence[Message]], Message] | None = None
    """`expert(task, messages)` returns a reply worth imitating to a conversation, which is the
    task's messages and everything after them."""
