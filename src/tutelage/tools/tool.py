"""`@tool`: turn a Python function with type hints and a docstring into a tool for a model.

A `Tool` remains callable like the function it wraps, so that tests and other code can use it
directly. It is a descriptor: on a method it binds to the instance, which gives a tool the state of
a rollout. `schema.py` reads the arguments; `execute.py` runs the calls.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, overload

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
    """Raised by a tool to report a failure; the model sees only the message."""

    late = False
    """True if the work may have been done anyway, for example if the server was lost meanwhile."""


class ToolTimeoutError(ToolError):
    """Raised by a tool that ran out of time; the call counts as a timeout."""

    late = True


@dataclass(frozen=True, slots=True, eq=False)
class ToolClass:
    """A class with `@tool` methods, instantiated once per rollout to hold their state."""

    name: str
    make: Callable[[Task], Any]
    """Create the instance for a task."""


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
    environment: ToolClass | None = None
    """Creates the state, once per rollout for all tools of the class; such a tool must be bound
    before it is called."""

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
        """Bind the tool to `instance` if the tool is an attribute of a class."""
        if instance is None or not hasattr(self.fn, "__get__"):
            return self
        return replace(self, fn=self.fn.__get__(instance, owner))

    def bind(self, instance: object) -> Tool:
        """Return a copy bound to `instance`, the first argument of the tool's function."""
        return replace(self.__get__(instance), environment=None)


@overload
def tool(name: Callable[..., Any]) -> Tool: ...
@overload
def tool(name: str | None = None, **settings: Any) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    name: str | Callable[..., Any] | None = None, **settings: Any
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Turn a function or method into a `Tool`: `@tool`, `@tool()` or `@tool("name", timeout=2.0)`.

    `settings` are `timeout` (in seconds), `max_chars` (of the observation), `terminal`, `inline`
    and `destructive`, fields of `Tool`. Raises `ToolDefinitionError` if the
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


def environment_tools(cls: type, kwargs: Mapping[str, Any] | None = None) -> list[Tool]:
    """Return the tools of an environment class. Raises `ToolDefinitionError` if it has none.

    The class is called with `kwargs`, after the rollout's task if it requires another argument.
    """
    kwargs = kwargs or {}
    opened = "__aenter__" if hasattr(cls, "__aenter__") else "reset"
    closed = "__aexit__" if hasattr(cls, "__aenter__") else "close"
    for method, other in ((opened, closed), (closed, opened)):
        if hasattr(cls, other) and not hasattr(cls, method):
            raise ToolDefinitionError(
                f"{cls.__name__!r} is not an environment: it has no {method}; define reset and "
                "close, make it an async context manager, or use a function"
            )
    required: list[str] = []
    with suppress(ValueError):
        required = [
            p.name
            for p in inspect.signature(cls).parameters.values()
            if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in kwargs
        ]
    if len(required) > 1:
        raise ToolDefinitionError(
            f"the environment {cls.__name__!r} requires {', '.join(required)}; only the task is "
            "passed to it"
        )
    environment = ToolClass(
        cls.__name__, lambda task: cls(task, **kwargs) if required else cls(**kwargs)
    )
    tools = [value for _, value in inspect.getmembers_static(cls) if isinstance(value, Tool)]
    if not tools:
        raise ToolDefinitionError(
            f"the environment {cls.__name__!r} has no tools; decorate its methods with @tool"
        )
    # Sort by definition order: `getmembers` sorts by name.
    order = {id(value): place for place, value in enumerate(vars(cls).values())}
    tools.sort(key=lambda value: order.get(id(value), -1))
    return [replace(value, environment=environment) for value in tools]
