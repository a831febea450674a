"""The protocol of environments: multi-turn tasks that answer the agent.

The words are gymnasium's. One instance serves one rollout of one task. The seed given to `reset` is
a function of the run's seed and the rollout's place, so an environment that takes its random
numbers from it repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tutelage.types import Message, Task, ToolSpec


@dataclass(frozen=True, slots=True)
class Observation:
    """What an environment shows the agent."""

    messages: tuple[Message, ...] = ()
    """Messages appended to the conversation."""
    actions: tuple[str, ...] = ()
    """The replies that the next turn may be; empty leaves the reply free."""
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON values for the record; the agent does not see them."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the agent may call, as the first observation names them."""
    continues_prompt: bool = False
    """True if the first message's text continues the last message of the task, as TRL has it."""

    def begin_conversation(self, task: Task) -> list[Message]:
        """Return the task's messages, and those of this first observation."""
        prompt = [*task.messages()] if task.has_input else []
        shown = [*self.messages]
        if self.continues_prompt and prompt and shown:
            last, first = prompt.pop(), shown.pop(0)
            shown.insert(0, replace(last, content=f"{last.content or ''}{first.content or ''}"))
        return [*prompt, *shown]


@dataclass(frozen=True, slots=True)
class Step:
    """What an action led to."""

    observation: Observation = field(default_factory=Observation)
    reward: float | None = None
    """Reward of this turn; None where the environment has none per turn."""
    terminated: bool = False
    """True if the task has ended."""
    truncated: bool = False
    """True if the episode was cut off before its end."""
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON values for the record. `success` decides whether the rollout succeeded."""


class Environment(Protocol):
    """A multi-turn task that answers the agent."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin a task. An exception fails the rollout."""
        ...

    async def step(self, action: Message) -> Step:
        """Apply one reply of the agent, with all its tool calls, and return what follows."""
        ...

    async def close(self) -> None:
        """Free what the episode holds. Always called; what it raises is logged."""
        ...


@dataclass(frozen=True, slots=True)
class EnvironmentFactory:
    """Makes the instances of one environment and names what it offers beside them.

    The functions are taken from the class of the same names where it has them."""

    name: str
    make: Callable[[], Environment]
    """Return a new instance, which serves one rollout."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools known before any instance exists."""
    deterministic: bool = True
    """False where equal tasks, seeds and actions may give different episodes."""
    tasks: Callable[[str, int, int], Sequence[Task]] | None = None
    """`tasks(split, n, seed)` returns n tasks of `train`, `val` or `test`; None needs a file."""
    expert: Callable[[Task, Sequence[Message]], Message] | None = None
    """`expert(task, messages)` returns the reply to a conversation (of the task's messages and
    all that followed) that is worth imitating."""
