"""The interface of any agent: its name, its resources, and a method to play one rollout.

The built-in agents inherit from `Agent` through `loop.py`; `function.py`, `lit_agent.py` and
`external.py` are the kinds that users write. `rollouts/runner.py` plays, times and grades agents.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, Protocol, runtime_checkable

from tutelage.agents.session import RolloutSession
from tutelage.resources import NamedResources
from tutelage.types import Task

Isolation = Literal["none", "process"]
"""`none` plays in this process (synchronous agents in a thread), `process` in a separate
process."""
Schedule = Literal["deterministic", "free"]
"""`deterministic` agents are limited by turns and tokens only, so that their rewards are a function
of the seed; `free` ones have a deadline in their own time."""


class AgentFailedError(Exception):
    """Failure of an agent in another process: an exception, a crash, or unreadable output.

    `trace` is its traceback, if there is one.
    """

    def __init__(self, message: str, trace: str | None = None) -> None:
        super().__init__(message)
        self.trace = trace


@runtime_checkable
class Agent(Protocol):
    """Interface of all agents."""

    isolation: Isolation = "none"
    """Process in which the agent plays."""
    schedule: Schedule = "free"
    """Kind of limit of a rollout."""

    @property
    def name(self) -> str:
        """Return the agent's name in records and messages."""
        return type(self).__name__

    def own_resources(self) -> Mapping[str, Any]:
        """Return the agent's resources. Trainer resources with the same name override them."""
        return {}

    def environment_refusal(self) -> str:
        """Return the reason why the agent cannot use an environment, or an empty text."""
        return ""

    def check(self, names: Collection[str]) -> None:
        """Raise `ConfigError` if the agent needs a resource that is not in `names`."""

    async def play(self, task: Task, session: RolloutSession, resources: NamedResources) -> Any:
        """Play the rollout and return its reward: a number, a bool, a dict of numbers, a text to
        grade, or None if rewards were emitted or a reward function computes them. Exceptions are
        agent errors."""
        ...
