"""`@tool`: a Python function, with types and a docstring, as something that a model can call.

A `Tool` stays callable as the function it wraps, so that tests and other code use it directly. It
is a descriptor: on a method it binds to the instance, which is how a tool gets state of a rollout.
How its arguments are read is `schema.py`; how calls are run is `execute.py`.
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
from tutelage.tools.schema import Signature, signature_of
from tutelage.types import JSON, Task, ToolSpec

DEFAULT_TIMEOUT = 10.0
"""Seconds that one call may take."""
DEFAULT_MAX_CHARS = 4000
"""Characters of an observation; longer ones are cut in the middle."""
MIN_MAX_CHARS = 64
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


class ToolError(Exception):
    """Raised by a tool on purpose: its message, alone, is what the model observes."""

    late = False
    """Whether the work may be done anyway, as where the server that does it was lost."""


class ToolTimeoutError(ToolError):
    """Raised by a tool that waits no longer for its work. Counted as a timeout."""

    late = True


class ToolEnvironment(Environment):
    """An instance of a class with `@tool` methods, as an `Environment`; see `environments.py`."""

    def __init__(self, name: str, make: Callable[[Task], Any]) -> None:
        self.name, self._make = name, make
        self._made: Any = None
        self.state: Any = None
        """What the tools are bound to, once it was reset."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Make the instance for a task, and begin."""
        made = self.state = self._made = self._make(task)
        if not hasattr(made, "__aenter__"):
            return await made.reset(task, seed)
        self.state = await made.__aenter__()
        return Observation()

    async def close(self) -> None:
        """End it."""
        if hasattr(self._made, "__aexit__"):
            await self._made.__aexit__(None, None, None)
        else:
            await self._made.close()


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    """A function that a model can call, with what the model is told about it.

    `terminal` ends the episode: its result is the answer. `inline` runs a synchronous function on
    the event loop instead of in a thread, which is only right where its time is bounded and tiny.
    `destructive` says that it changes or deletes what was there, so that the execution of a plan
    asks before it runs; models are not told. `assumed` says that nobody said so: a server's tool
    without annotations.
    """

    name: str
    description: str
    fn: Callable[..., Any] = field(repr=False)
    signature: Signature = field(repr=False)
    timeout: float = DEFAULT_TIMEOUT
    """Seconds."""
    max_chars: int = DEFAULT_MAX_CHARS
    terminal: bool = False
    inline: bool = False
    destructive: bool = False
    assumed: bool = False
    environment: Callable[[], ToolEnvironment] | None = None
    """Makes what holds its state, one a rollout for all tools of the same maker; such a tool works
    once it is bound."""

    @property
    def parameters(self) -> JSON:
        """The JSON schema of the arguments."""
        return self.signature.schema

    @property
    def spec(self) -> ToolSpec:
        """What a model is told."""
        return ToolSpec(self.name, self.description, self.parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, unchecked."""
        return self.fn(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Tool:
        """The tool bound to `instance`, when it is an attribute of a class."""
        if instance is None or not hasattr(self.fn, "__get__"):
            return self
        return replace(self, fn=self.fn.__get__(instance, owner))

    def bind(self, instance: object) -> Tool:
        """The tool with `instance`, an environment's state, as its function's first argument."""
        return replace(self.__get__(instance), environment=None)


class ToolSettings(TypedDict, total=False):
    """What `@tool` takes beside a name; see the fields of `Tool`."""

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
    """Make a function or method a `Tool`: `@tool`, `@tool()` or `@tool("name", timeout=2.0)`.

    `timeout` is in seconds, `max_chars` bounds the observation. Raises `ToolDefinitionError` when
    the signature gives no JSON schema, or an option makes no sense.
    """
    frame = inspect.currentframe()
    # What the caller can see: where types defined inside a function are found.
    namespace = dict(frame.f_back.f_locals) if frame is not None and frame.f_back else {}

    def decorate(fn: Callable[..., Any]) -> Tool:
        plain = fn.__func__ if isinstance(fn, staticmethod) else fn
        given = name if isinstance(name, str) else getattr(plain, "__name__", "")
        if not _NAME.match(given):
            raise ToolDefinitionError(
                f"invalid tool name {given!r}: use 1-64 letters, digits, '_' or '-'; "
                "set one with @tool('name')"
            )
        description, signature = signature_of(plain, namespace)
        made = Tool(given, description, fn, signature, **settings)
        if not 0 < made.timeout < math.inf or made.max_chars < MIN_MAX_CHARS:
            raise ToolDefinitionError(
                f"tool {given!r}: timeout must be positive and max_chars at least {MIN_MAX_CHARS}, "
                f"not {made.timeout!r} and {made.max_chars!r}"
            )
        return made

    return decorate(name) if callable(name) else decorate
