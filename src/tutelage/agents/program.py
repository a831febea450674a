"""What the runner needs of any agent: its name, its resources, and a way to play one rollout.

`function.py`, `lit_agent.py` and `external.py` are the three kinds; `accepted.py` makes a program
of whatever a user hands to `Trainer.train`. How a program is played, timed and graded is
`rollouts/live.py`; the built-in agents (`tool_calling.py`) do not come this way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, Protocol, cast, runtime_checkable

from tutelage.agents.context import RolloutContext
from tutelage.tools.execute import call_in_thread

Isolation = Literal["none", "process"]
"""`none` plays in this process (synchronous agents in a thread), `process` in one of its own."""


@runtime_checkable
class Program(Protocol):
    """An agent of any kind."""

    @property
    def name(self) -> str:
        """What it is called in records and messages."""
        ...

    @property
    def isolation(self) -> Isolation:
        """Where it is played."""
        ...

    def own_resources(self) -> Mapping[str, Any]:
        """Resources that it brings itself; the Trainer's of the same name win."""
        ...

    def check(self, names: Collection[str]) -> None:
        """Raise `ConfigError` when it needs a resource that is not in `names`."""
        ...

    async def play(self, rollout: RolloutContext) -> Any:
        """Play the rollout and return the reward: a number, a bool, a dict of named ones, a text
        to be graded, or None when rewards were emitted. Raising is an agent error."""
        ...


async def call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Await an async function; run another one in a thread of its own, with this context."""
    if inspect.iscoroutinefunction(fn):
        return await fn(*args, **kwargs)
    value = await call_in_thread(lambda: fn(*args, **kwargs))
    # A function may hand back a coroutine without being declared async.
    return await cast("Any", value) if inspect.isawaitable(value) else value
