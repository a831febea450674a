"""Classes with `@tool` methods as environments, and the scope in which those of a rollout live.

Such a class is made for a rollout and its task: a sandbox, a shop, a connection. It is an
`Environment` itself (`reset`, `close`), or an async context manager; `ToolEnvironment` of `tool.py`
makes either an environment. `FILE.py:Class` in a list of tools names all its tools. Nothing is
opened until an agent runs: `rollout_environments` is the scope of a rollout. An agent enters it
around its loop and gets bound tools from `bind`; a caller that enters it further out, as a runner
does around agent and reward, makes the same environments live until the reward is known. Whatever
happens inside, all are closed, the last opened first.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

from tutelage.errors import ToolDefinitionError
from tutelage.tools.tool import Tool, ToolEnvironment, ToolError
from tutelage.types import Message, Task

OPEN_SECONDS = 120.0
"""How long an environment may take to open, and to close: nothing else bounds one that hangs."""

logger = logging.getLogger(__name__)
_current: ContextVar[_Environments | None] = ContextVar("tutelage_environments", default=None)


class _Environments:
    """The environments of one rollout, each opened when the first of its tools is bound."""

    def __init__(self, task: Task, seed: int, stack: AsyncExitStack) -> None:
        self.opened: dict[str, Any] = {}
        """What was opened, by name: what a reward sees as `context`."""
        self.observed: list[Message] = []
        """What they showed when they were opened, for the agent to see after its task."""
        self._task, self._seed, self._stack = task, seed, stack
        self._states: dict[Callable[[], ToolEnvironment], Any] = {}

    async def bind(self, tools: Mapping[str, Tool]) -> dict[str, Tool]:
        """The tools with their environments behind them. Opening may raise whatever it raises, and
        `ToolError` when it takes too long."""
        bound: dict[str, Tool] = {}
        for name, tool in tools.items():
            make = tool.environment
            if make is not None and make not in self._states:
                environment, limit = make(), asyncio.timeout(OPEN_SECONDS)
                try:
                    async with limit:
                        observation = await environment.reset(self._task, self._seed)
                except TimeoutError as error:
                    if not limit.expired():
                        raise
                    raise ToolError(
                        f"the environment {environment.name!r} did not open within "
                        f"{OPEN_SECONDS:g} seconds"
                    ) from error
                self.observed += observation.messages
                self._stack.push_async_callback(_close, environment)
                self._states[make] = self.opened[environment.name] = environment.state
            bound[name] = tool if make is None else tool.bind(self._states[make])
        return bound


async def _close(environment: ToolEnvironment) -> None:
    """Close an environment; that it fails to is no fault of the rollout, which is over."""
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            await environment.close()
    except Exception:
        logger.warning("the environment %r failed to close", environment.name, exc_info=True)


@asynccontextmanager
async def rollout_environments(task: Task, seed: int = 0) -> AsyncGenerator[_Environments]:
    """The scope of a rollout's environments; inside another such scope, that one. `seed` is what
    they draw from."""
    outer = _current.get()
    if outer is not None:
        yield outer
        return
    async with AsyncExitStack() as stack:
        environments = _Environments(task, seed, stack)
        token = _current.set(environments)
        try:
            yield environments
        finally:
            _current.reset(token)


def opened_environments() -> Mapping[str, Any]:
    """The environments of the rollout that this code is part of, by name."""
    environments = _current.get()
    return {} if environments is None else environments.opened


def environment_tools(cls: type) -> list[Tool]:
    """The tools of an environment class. Raises `ToolDefinitionError` when it has none.

    The class is called with the rollout's task if it takes an argument, else with none.
    """
    own = hasattr(cls, "reset") and not hasattr(cls, "__aenter__")
    for method in ("reset", "close") if own else ("__aenter__", "__aexit__"):
        if not hasattr(cls, method):
            raise ToolDefinitionError(
                f"{cls.__name__!r} is not an environment: it has no {method}; define reset and "
                "close, make it an async context manager, or use a function"
            )
    needed: list[str] = []
    with suppress(ValueError):
        needed = [
            p.name
            for p in inspect.signature(cls).parameters.values()
            if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
        ]
    if len(needed) > 1:
        raise ToolDefinitionError(
            f"the environment {cls.__name__!r} requires {', '.join(needed)}; only the task is "
            "passed to it"
        )
    make: Callable[[Task], Any] = cls if needed else lambda task: cls()
    environment = partial(ToolEnvironment, cls.__name__, make)
    tools = [value for _, value in inspect.getmembers_static(cls) if isinstance(value, Tool)]
    if not tools:
        raise ToolDefinitionError(
            f"the environment {cls.__name__!r} has no tools; decorate its methods with @tool"
        )
    # In the order of their definition, which the class keeps and `getmembers` does not.
    order = {id(value): place for place, value in enumerate(vars(cls).values())}
    tools.sort(key=lambda value: order.get(id(value), -1))
    return [replace(value, environment=environment) for value in tools]
