"""What the runner needs of any agent: its name, its resources, and a way to play one rollout.

The built-in agents inherit from `Agent` through `loop.py`; `function.py`, `lit_agent.py` and
`external.py` are the kinds that a user writes. How an agent is played, timed and graded is
`rollouts/runner.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, Protocol, runtime_checkable

from tutelage.agents.session import RolloutSession
from tutelage.resources import NamedResources
from tutelage.types import Task

Isolation = Literal["none", "process"]
"""`none` plays in this process (synchronous agents in a thread), `process` in one of its own."""
Schedule = Literal["deterministic", "free"]
"""`deterministic` agents are bounded by turns and tokens and by no clock, so that what they earn is
a function of the seed; `free` ones have a deadline, in their own time."""


class AgentFailedError(Exception):
    """An agent of another process raised, ended badly, or said nothing that can be read.

    `trace` is the traceback there, where there is one.
    """

    def __init__(self, message: str, trace: str | None = None) -> None:
        super().__init__(message)
        self.trace = trace


@runtime_checkable
class Agent(Protocol):
    """An agent of any kind."""

    isolation: Isolation = "none"
    """Where it is played."""
    schedule: Schedule = "free"
    """What bounds it."""

    @property
    def name(self) -> str:
        """What it is called in records and messages."""
        return type(self).__name__

    def own_resources(self) -> Mapping[str, Any]:
        """Resources that it brings itself; the Trainer's of the same name win."""
        return {}

    def environment_refusal(self) -> str:
        """Return why it cannot drive an environment, with the way out; empty if it can."""
        return ""

    def check(self, names: Collection[str]) -> None:
        """Raise `ConfigError` when it needs a resource that is not in `names`."""

    async def play(self, task: Task, session: RolloutSession, resources: NamedResources) -> Any:
        """Play the rollout and return the reward: a number, a bool, a dict of named ones, a text
        to be graded, or None when rewards were emitted or a grader follows. Raising is an agent
        error."""
        ...
