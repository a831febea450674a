"""The protocol of environments: state that lives for one rollout, from `reset` to `close`.

The words are gymnasium's. One instance serves one rollout of one task; the seed is a function of
the run's seed and the rollout's place, so what an environment draws from it repeats. Who opens and
closes them is `tutelage.tools.environments`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tutelage.types import Message, Task


@dataclass(frozen=True, slots=True)
class Observation:
    """What an environment shows: messages that follow those of the task."""

    messages: tuple[Message, ...] = ()


class Environment(Protocol):
    """What a rollout acts in."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin a task. Raising is a failure of the rollout; `ToolError` says it on purpose."""
        ...

    async def close(self) -> None:
        """End it, whatever happened in between. What it raises is logged and changes nothing."""
        ...
