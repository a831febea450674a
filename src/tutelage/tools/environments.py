"""Tool environments: classes with `@tool` methods, and the scope that holds them for a rollout.

Such a class is instantiated for a rollout and its task: a sandbox, a shop, a connection. It is an
`Environment` itself (`reset`, `close`) or an async context manager; `ToolEnvironment` of `tool.py`
adapts both. `FILE.py:Class` in a list of tools stands for all its tools. Environments open when an
agent runs, in the scope of `rollout_environments`. An agent enters the scope around its loop and
gets bound tools from `bind`; if a caller has already entered it, as a runner does around agent and
reward, the same environments stay open until the reward is computed. On exit all are closed, the
last opened first.
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
"""Time limit in seconds for opening an environment, and for closing it."""

logger = logging.getLogger(__name__)
_current: ContextVar[_Environments | None] = ContextVar("tutelage_environments", default=None)


class _Environments:
    """A rollout's environments, each opened when its first tool is bound."""

    def __init__(self, task: Task, seed: int, stack: AsyncExitStack) -> None:
        self.opened: dict[str, Any] = {}
        """States of the opened environments by name; rewards receive them as `context`."""
        self.observed: list[Message] = []
        """Messages the environments returned when opened; the agent sees them after its task."""
        self._task, self._seed, self._stack = task, seed, stack
        self._states: dict[Callable[[], ToolEnvironment], Any] = {}

    async def bind(self, tools: Mapping[str, Tool]) -> dict[str, Tool]:
        """Open the environments of tools and return the bound tools by name.

        Errors of an environment's `reset` propagate; raises `ToolError` on a timeout."""
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
    """Close an environment and log any failure, so that the finished rollout is kept."""
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            await environment.close()
    except Exception:
        logger.warning("the environment %r failed to close", environment.name, exc_info=True)


@asynccontextmanager
async def rollout_environments(task: Task, seed: int = 0) -> AsyncGenerator[_Environments]:
    """Enter the scope of a rollout's environments, or reuse the enclosing scope if there is one.

    `seed` is passed to each environment's `reset`."""
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


def current_environments() -> Mapping[str, Any]:
    """Return the open environments of the current rollout by name."""
    environments = _current.get()
    return {} if environments is None else environments.opened


def environment_tools(cls: type) -> list[Tool]:
    """Return an environment class's tools. Raises `ToolDefinitionError` if it has none.

    The class is called with the rollout's task if it requires an argument, else without arguments.
    """
    has_reset = hasattr(cls, "reset") and not hasattr(cls, "__aenter__")
    for method in ("reset", "close") if has_reset else ("__aenter__", "__aexit__"):
        if not hasattr(cls, method):
            raise ToolDefinitionError(
                f"{cls.__name__!r} is not an environment: it has no {method}; define reset and "
                "close, make it an async context manager, or use a function"
            )
    required: list[str] = []
    with suppress(ValueError):
        required = [
            p.name
            for p in inspect.signature(cls).parameters.values()
            if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
        ]
    if len(required) > 1:
        raise ToolDefinitionError(
            f"the environment {cls.__name__!r} requires {', '.join(required)}; only the task is "
            "passed to it"
        )
    make: Callable[[Task], Any] = cls if required else lambda task: cls()
    environment = partial(ToolEnvironment, cls.__name__, make)
    tools = [value for _, value in inspect.getmembers_static(cls) if isinstance(value, Tool)]
    if not tools:
        raise ToolDefinitionError(
            f"the environment {cls.__name__!r} has no tools; decorate its methods with @tool"
        )
    # Sort by definition order: `getmembers` sorts by name.
    order = {id(value): place for place, value in enumerate(vars(cls).values())}
    tools.sort(key=lambda value: order.get(id(value), -1))
    return [replace(value, environment=environment) for value in tools]
