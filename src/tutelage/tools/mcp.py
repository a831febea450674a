"""Tools of MCP servers: a command, a URL or a server in this process, as tools of an agent.

`mcp_tools` opens a server for a piece of code, such as one rollout, and closes it at its end.
`SharedServer` serves all rollouts of a run from a thread of its own: a run has an event loop for
every step, a connection has one for life. A call that runs out of time is cancelled on the server
too; what a server answers or fails to answer becomes an ordinary result or tool error, in the fixed
order of `execute.py`, so a run with such tools repeats when the server's answers do.

On the command line: `--tools mcp:COMMAND`, `mcp:http://HOST/mcp` or `mcp:FILE.py:server` is opened
with the run and closed with it; `mcp/rollout:...` gives every rollout a server of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import re
import shlex
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from jsonschema import Draft202012Validator
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult
from mcp_types import Tool as McpTool
from referencing import Registry

from tutelage.errors import ConfigError
from tutelage.tools.loading import is_file_reference, load_attribute
from tutelage.tools.mcp_connection import Connection, Target, shown
from tutelage.tools.schema import ArgumentError, check_json
from tutelage.tools.tool import (
    DEFAULT_MAX_CHARS,
    DEFAULT_TIMEOUT,
    Tool,
    ToolEnvironment,
    ToolError,
)
from tutelage.types import JSON

PREFIX, ROLLOUT_PREFIX = "mcp:", "mcp/rollout:"
MAX_RESTARTS = 3
"""How often a shared server that ended is started again in one run."""
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_-]")

_SERVER = "mcp_server"
"""Attribute of a tool's function that says which `SharedServer` it calls."""


@asynccontextmanager
async def mcp_tools(
    server: Target,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    max_chars: int = DEFAULT_MAX_CHARS,
    env: Mapping[str, str] | None = None,
) -> AsyncGenerator[dict[str, Tool]]:
    """The tools of a server by name, while the block runs; then the server is closed.

    `timeout` is seconds for one call. `env` are further variables for a command, which otherwise
    has those of this process. Raises `ConfigError` when the server cannot be reached.
    """
    connection = Connection(server, env)
    try:
        yield _tools(await connection.open(), connection.call, timeout, max_chars)
    finally:
        await connection.close()


def close_tools(tools: Mapping[str, Tool]) -> None:
    """Close the servers that serve a whole run."""
    for tool in tools.values():
        server = getattr(tool.fn, _SERVER, None)
        if isinstance(server, SharedServer):
            server.close()


def tools_of(reference: str) -> list[Tool]:
    """What `mcp:...` or `mcp/rollout:...` names. Raises `ConfigError` when it cannot be opened."""
    prefix = ROLLOUT_PREFIX if reference.startswith(ROLLOUT_PREFIX) else PREFIX
    target = _read_target(reference.removeprefix(prefix))
    shared = SharedServer(target)
    if prefix == PREFIX:
        return list(shared.tools.values())
    shared.close()  # it was opened to ask for its tools; each rollout opens its own
    environment = partial(ToolEnvironment, shown(target), lambda task: Connection(target))
    return [
        replace(tool, fn=_method(name), environment=environment)
        for name, tool in zip(shared.names, shared.tools.values(), strict=True)
    ]


def _read_target(text: str) -> Target:
    """A URL, `FILE.py:name` of a server object, or a command, from one text."""
    text = text.strip()
    if not text:
        raise ConfigError("an MCP server needs a command, a URL or FILE.py:name after 'mcp:'")
    if text.startswith(("http://", "https://")):
        return text
    if is_file_reference(text) and " " not in text:
        found = load_attribute(text, "MCP server")
        if not isinstance(found, MCPServer):
            raise ConfigError(
                f"MCP server {text!r} is a {type(found).__name__}; point at an MCPServer object"
            )
        return found
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"the command {text!r} cannot be read: {error}") from None


class SharedServer:
    """One server for many rollouts, in any event loop, until `close`; started again when it ends.

    Raises `ConfigError` when it cannot be started.
    """

    def __init__(
        self,
        target: Target,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        max_chars: int = DEFAULT_MAX_CHARS,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._target, self._env = target, env
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mcp", daemon=True)
        self._thread.start()
        self._starting = asyncio.Lock()
        self._restarts = 0
        self._connection = Connection(target, env)
        try:
            found = asyncio.run_coroutine_threadsafe(self._connection.open(), self._loop).result()
        except BaseException:
            self.close()
            raise
        self.names = [each.name for each in found]
        """What the server calls its tools."""
        self.tools = _tools(found, self.call, timeout, max_chars)
        """By the names that a model sees, in the same order."""
        for tool in self.tools.values():
            vars(tool.fn)[_SERVER] = self
        atexit.register(self.close)

    def close(self) -> None:
        """Close the connection and end the thread. May be called twice."""
        atexit.unregister(self.close)
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._connection.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def call(self, name: str, arguments: JSON) -> CallToolResult:
        """Call a tool of the server; cancelling cancels it there."""
        if self._loop.is_closed():
            raise ToolError("the MCP server of this tool is closed")
        work = asyncio.run_coroutine_threadsafe(self._call(name, arguments), self._loop)
        return await asyncio.wrap_future(work)

    async def _call(self, name: str, arguments: JSON) -> CallToolResult:
        async with self._starting:
            if self._connection.ended:
                if self._restarts >= MAX_RESTARTS:
                    raise ToolError(f"the MCP server ended {MAX_RESTARTS + 1} times")
                self._restarts += 1
                await self._connection.close()
                self._connection = Connection(self._target, self._env)
                await self._connection.open()
        return await self._connection.call(name, arguments)


# ---------------------------------------------------------------- tools


@dataclass(frozen=True, slots=True, eq=False)
class _JsonSignature:
    """Arguments by a JSON schema that somebody else wrote; see `schema.Signature`."""

    schema: JSON

    def read(self, arguments: str) -> dict[str, Any]:
        """JSON text to keyword arguments. Raises `ArgumentError`."""
        text = arguments.strip() or "{}"
        check_json(text)
        value: dict[str, Any] = json.loads(text)
        # An empty registry: a schema must not make this program fetch what it refers to.
        checker = Draft202012Validator(self.schema, registry=cast("Any", Registry()))
        problems = [_problem(error) for error in cast("Any", checker).iter_errors(value)]
        if problems:
            names = ", ".join(cast("JSON", self.schema.get("properties", {})))
            raise ArgumentError("; ".join(problems[:5]) + f"; expected {{{names}}}")
        return value


def _problem(error: Any) -> str:
    path = ".".join(str(part) for part in error.absolute_path)
    return f"argument {path!r}: {error.message}" if path else str(error.message)


def _tools(
    found: Sequence[McpTool],
    call: Callable[[str, JSON], Coroutine[Any, Any, CallToolResult]],
    timeout: float,
    max_chars: int,
) -> dict[str, Tool]:
    tools: dict[str, Tool] = {}
    for each in found:
        name = _NOT_A_NAME.sub("_", each.name)[:64]
        if name in tools:
            raise ConfigError(f"the MCP server has two tools that are both {name!r} to a model")
        tools[name] = Tool(
            name=name,
            description=(each.description or "").strip(),
            fn=_function(each.name, call),
            signature=_JsonSignature(_untitled(each.input_schema)),
            timeout=timeout,
            max_chars=max_chars,
        )
    return tools


def _function(
    name: str, call: Callable[[str, JSON], Coroutine[Any, Any, CallToolResult]]
) -> Callable[..., Coroutine[Any, Any, str]]:
    async def run(**arguments: Any) -> str:
        result = await call(name, arguments)
        text = _text(result)
        if result.is_error:
            raise ToolError(text or f"{name} failed")
        return text

    return run


def _method(name: str) -> Callable[..., Coroutine[Any, Any, str]]:
    """The same, as a method of a connection: what `Tool.bind` gives its first argument."""

    async def run(connection: Connection, **arguments: Any) -> str:
        return await _function(name, connection.call)(**arguments)

    return run


def _text(result: CallToolResult) -> str:
    """What the model observes: the texts, and a word for what is no text."""
    parts = [_block(block) for block in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def _block(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    resource = getattr(block, "resource", None)
    if resource is not None and getattr(resource, "text", None) is not None:
        return str(resource.text)
    kind = getattr(block, "mime_type", None) or getattr(resource, "mime_type", None) or ""
    return f"[{block.type} {kind}]".replace(" ]", "]")


def _untitled(schema: Mapping[str, Any]) -> JSON:
    """Without titles, which only lengthen the prompt, and with `properties` in any case."""
    out: JSON = {key: value for key, value in schema.items() if key not in ("title", "$schema")}
    properties = cast("Mapping[str, Any]", out.get("properties") or {})
    out["properties"] = {
        name: {k: v for k, v in cast("JSON", inner).items() if k != "title"}
        if isinstance(inner, dict)
        else inner
        for name, inner in properties.items()
    }
    return out
