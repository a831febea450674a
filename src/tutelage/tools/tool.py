"""`@tool`: turn a Python function with type hints and a docstring into a tool for a model.

A `Tool` remains callable like the function it wraps, so that tests and other code can use it
directly. It is a descriptor: on a method it binds to the instance, which gives a tool the state of
a rollout. `schema.py` reads the arguments; `execute.py` runs the calls.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, Unpack, overload

from tutelage.environments import Environment, Observation
from tutelage.errors import ToolDefinitionError
from tutelage.tools.schema import Signature, read_signature
from tutelage.types import JSON, Task, ToolSpec

DEFAULT_TIMEOUT = 10.0
"""Time limit of one call in seconds."""
DEFAULT_MAX_CHARS = 4000
"""Maximum characters of an observation; longer ones are cut in the middle."""
MIN_MAX_CHARS = 64
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


class ToolError(Exception):
    """Raised by a tool on purpose, to show the model only the message."""

    late = False
    """Whether the work may have been done anyway, for example if the server was lost meanwhile."""


class ToolTimeoutError(ToolError):
    """Raised by a tool that ran out of time, and counted as a timeout."""

    late = True


class ToolEnvironment(Environment):
    """Adapter from a class with `@tool` methods to an `Environment`."""

    def __init__(self, name: str, make: Callable[[Task], Any]) -> None:
        self.name, self._make = name, make
        self._made: Any = None
        self.state: Any = None
        """The object that the tools are bound to, set by `reset`."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Create and open the instance for a task, and return its first observation."""
        created = self.state = self._made = self._make(task)
        if not hasattr(created, "__aenter__"):
            return await created.reset(task, seed)
        self.state = await created.__aenter__()
        return Observation()

    async def close(self) -> None:
        """Close the environment's instance."""
        if hasattr(self._made, "__aexit__"):
            await self._made.__aexit__(None, None, None)
        else:
            await self._made.close()


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    """A function that a model can call, with the name, description and schema for the model.

    `terminal` ends the episode, with the result as the answer. `inline` runs a synchronous function
    on the event loop instead of in a thread; use it for short functions only. `destructive` marks a
    tool that changes or deletes data, so that plan execution asks for permission first; it is not
    part of the prompt. `assumed` marks `destructive` as a default: an MCP tool without annotations.
    """

    name: str
    description: str
    fn: Callable[..., Any] = field(repr=False)
    signature: Signature = field(repr=False)
    timeout: float = DEFAULT_TIMEOUT
    """Time limit of a call in seconds."""
    max_chars: int = DEFAULT_MAX_CHARS
    terminal: bool = False
    inline: bool = False
    destructive: bool = False
    assumed: bool = False
    environment: Callable[[], ToolEnvironment] | None = None
    """Creates the state, once per rollout for all tools with the same factory; such a tool must be
    bound before it is called."""

    @property
    def parameters(self) -> JSON:
        """Return the JSON schema of the tool's arguments."""
        return self.signature.schema

    @property
    def spec(self) -> ToolSpec:
        """Return the tool's name, description and parameters for the prompt."""
        return ToolSpec(self.name, self.description, self.parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the tool's function without checking the arguments."""
        return self.fn(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Tool:
        """Bind the tool to `instance`, if it is an attribute of a class."""
        if instance is None or not hasattr(self.fn, "__get__"):
            return self
        return replace(self, fn=self.fn.__get__(instance, owner))

    def bind(self, instance: object) -> Tool:
        """Bind the tool to an instance, which its function gets as first argument."""
        return replace(self.__get__(instance), environment=None)


class ToolSettings(TypedDict, total=False):
    """Keyword arguments of `@tool`, documented at the fields of `Tool`."""

    timeout: float
    max_chars: int
    terminal: bool
    inline: bool
    destructive: bool


@overload
def tool(name: Callable[..., Any]) -> Tool: ...
@overload
def tool(
    name: str | None = None, **settings: Unpack[ToolSettings]
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    name: str | Callable[..., Any] | None = None, **settings: Unpack[ToolSettings]
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Turn a function or method into a `Tool`: `@tool`, `@tool()` or `@tool("name", timeout=2.0)`.

    `timeout` is in seconds; `max_chars` limits the observation. Raises `ToolDefinitionError` if the
    signature has no JSON schema or an option is invalid.
    """
    frame = inspect.currentframe()
    # The caller's local names, to resolve types defined inside a function.
    namespace = dict(frame.f_back.f_locals) if frame is not None and frame.f_back else {}

    def decorate(fn: Callable[..., Any]) -> Tool:
        plain = fn.__func__ if isinstance(fn, staticmethod) else fn
        label = name if isinstance(name, str) else getattr(plain, "__name__", "")
        if not _NAME.match(label):
            raise ToolDefinitionError(
                f"invalid tool name {label!r}: use 1-64 letters, digits, '_' or '-'; "
                "set one with @tool('name')"
            )
        description, signature = read_signature(plain, namespace)
        created = Tool(label, description, fn, signature, **settings)
        if not 0 < created.timeout < math.inf or created.max_chars < MIN_MAX_CHARS:
            raise ToolDefinitionError(
                f"tool {label!r}: timeout must be positive and max_chars at least {MIN_MAX_CHARS}, "
                f"not {created.timeout!r} and {created.max_chars!r}"
            )
        return created

    return decorate(name) if callable(name) else decorate
