"""Classes with `@tool` methods as environments: a step executes the calls of a reply.

Such a class is instantiated for a rollout and its task: a sandbox, a shop, a connection. It may
have `reset(task, seed)` and `close()`, or be an async context manager. It may have `reward()`, the
return of the episode so far, and `done()`, which is True at its end; both may be async or
attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tutelage.environments.protocol import Environment, Observation, Step
from tutelage.tools.execute import call, execute_tool_calls
from tutelage.tools.tool import Tool, ToolClass
from tutelage.types import Message, Task


class ToolEnvironment(Environment):
    """Adapter from a class with `@tool` methods to an `Environment`."""

    def __init__(self, owner: ToolClass, tools: Sequence[Tool] = ()) -> None:
        self.owner, self.name = owner, owner.name
        self._tools, self._bound = tools, dict[str, Tool]()
        self._made: Any = None
        self._earned = 0.0
        self.state: Any = None
        """The object that the tools are bound to, set by `reset`."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Create and open the instance for a task, and return its first observation."""
        created = self.state = self._made = self.owner.make(task)
        first: Any = None
        if hasattr(created, "__aenter__"):
            self.state = await created.__aenter__()
        elif hasattr(created, "reset"):
            first = await call(created.reset, task, seed)
        self._bound = {tool.name: tool.bind(self.state) for tool in self._tools}
        specs = tuple(tool.spec for tool in self._tools)
        if isinstance(first, Observation):
            return replace(first, tools=first.tools or specs)
        messages = () if first is None else (Message("user", first),)
        return Observation(messages, tools=specs)

    async def step(self, action: Message) -> Step:
        """Execute the calls of a reply; a reply without calls or a terminal tool ends the
        episode."""
        results = await execute_tool_calls(action.tool_calls, self._bound)
        messages = tuple(
            Message("tool", r.text, (), r.call_id, r.name, {"error": r.error}) for r in results
        )
        terminal = [r for r in results if r.error is None and self._bound[r.name].terminal]
        info: dict[str, Any] = {"answer": terminal[-1].text} if terminal else {}
        done = await self._read_attribute("done")
        ended = not action.tool_calls or bool(terminal) or bool(done)
        total, reward = await self._read_attribute("reward"), None
        if total is not None:
            reward, self._earned = total - self._earned, total
        return Step(Observation(messages), reward, terminated=ended, info=info)

    async def _read_attribute(self, name: str) -> Any:
        """Return the value of an optional attribute or method of the instance, or None."""
        value: Any = getattr(self.state, name, None)
        return await call(value) if callable(value) else value

    async def close(self) -> None:
        """Close the environment's instance."""
        if hasattr(self._made, "__aexit__"):
            await self._made.__aexit__(None, None, None)
        elif hasattr(self._made, "close"):
            await call(self._made.close)
