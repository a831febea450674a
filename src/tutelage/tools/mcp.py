"""Tools of MCP servers, given as a command, a URL or a server object in this process.

On the command line, `--tools mcp:COMMAND`, `mcp:http://HOST/mcp` or `mcp:FILE.py:server` opens one
server for the whole run; `mcp/rollout:...` starts a separate server for every rollout. A server for
the run is used from its own thread, since a run has a new event loop for every step and a
connection must stay on one loop. A call that times out is also cancelled on the server. Answers and
failures become ordinary results and tool errors, in the fixed order of `execute.py`, so a run is
reproducible if the server's answers are.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import json
import os
import re
import shlex
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from dataclasses import replace
from typing import IO, Any, cast

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.server.mcpserver import MCPServer
from mcp_types import CONNECTION_CLOSED, CallToolResult
from mcp_types import Tool as McpTool
from pydantic import ValidationError

from tutelage.bounded import bypass_proxy_on_loopback
from tutelage.errors import ConfigError
from tutelage.tasks.readers import short_repr
from tutelage.tools.execute import call_in_thread
from tutelage.tools.loading import is_file_reference, load_attribute
from tutelage.tools.mcp_results import result_text
from tutelage.tools.schema import (
    ArgumentError,
    Signature,
    remove_titles,
    schema_validator,
    summary,
)
from tutelage.tools.tool import Tool, ToolClass, ToolError
from tutelage.types import JSON, Task

MAX_RESTARTS = 3
"""Maximum number of restarts of a run's server that has ended."""
START_SECONDS = 30.0
"""Seconds that a server may take to start and list its tools."""
_TAIL = 500
"""Characters from the end of a server's output that an error shows."""
_LONGEST_PROBLEM = 300
"""Maximum characters of a validator's message; longer ones are replaced by a summary."""
_ENDED = "the MCP server of this tool has ended"
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_-]")

_Target = str | Sequence[str] | MCPServer
"""A URL, the words of a command, or a server object."""


def mcp_tools(reference: str) -> list[Tool]:
    """Return the tools of the MCP server `mcp:...` or `mcp/rollout:...`. Raises `ConfigError`."""
    kind, _, text = reference.partition(":")
    if not (text := text.strip()):
        raise ConfigError("missing a command, a URL or FILE.py:name of an MCP server after 'mcp:'")
    if text.startswith(("http://", "https://")):
        target: _Target = text
    elif is_file_reference(text) and " " not in text:
        server = load_attribute(text, "MCP server")
        if not isinstance(server, MCPServer):
            raise ConfigError(
                f"MCP server {text!r} is a {type(server).__name__}, not an MCPServer object"
            )
        target = server
    else:
        try:
            target = shlex.split(text)
        except ValueError as error:
            raise ConfigError(f"cannot parse the command {text!r}: {error}") from None
    shared = _Server(target, MAX_RESTARTS)
    try:
        tools = _convert_tools(shared.open(), _label(target))
    except BaseException:
        shared.close_after_run()
        raise
    if kind == "mcp":
        atexit.register(shared.close_after_run)
        return [tool.bind(shared) for tool in tools]
    shared.close_after_run()  # opened only to list its tools; each rollout opens its own
    environment = ToolClass(_label(target), lambda task: _Server(target))
    return [replace(tool, environment=environment) for tool in tools]


class _Server:
    """Client of one MCP server, usable from any event loop.

    The client runs on an event loop in a separate thread, because a run has a new loop for every
    step and a connection must stay on one. A server that ends is restarted up to `restarts` times.
    """

    def __init__(self, target: _Target, restarts: int = 0) -> None:
        self._target, self._restarts_left = target, restarts
        self._lock, self._thread = threading.RLock(), ExitStack()
        self._portal: BlockingPortal | None = None
        self._client: Client | None = None
        self._task: Future[None] = Future()
        self._broken = False

    async def reset(self, task: Task, seed: int) -> None:
        """Connect to the server for one rollout. Raises `ConfigError`."""
        try:
            await call_in_thread(self.open)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Disconnect, and end a server that was started for this connection."""
        await call_in_thread(self.close_after_run)

    def close_after_run(self) -> None:
        """Disconnect and end the thread at the end of the run. Can be called repeatedly."""
        atexit.unregister(self.close_after_run)
        with self._lock:
            self._restarts_left = 0
            self._disconnect()
            self._thread.close()

    def open(self) -> list[McpTool]:
        """Connect to the server and return its tools. Raises `ConfigError`."""
        ready: Future[list[McpTool]] = Future()
        with (
            self._lock,
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output,
        ):
            if self._portal is None:
                self._portal = self._thread.enter_context(start_blocking_portal(name="mcp"))
            self._broken, self._stop = False, anyio.Event()
            self._task = self._portal.start_task_soon(self._run_client, ready, output)
            futures: list[Future[Any]] = [ready, self._task]
            wait(futures, START_SECONDS, FIRST_COMPLETED)
            if ready.done():
                return ready.result()
            reason = f"no answer within {START_SECONDS:g} seconds"
            if self._task.done() and (error := self._task.exception()):
                reason = _error_line(error)
            self._disconnect()
            output.seek(0)
            last = output.read()[-_TAIL:].strip()
        text = f"; its output: {last}" if last else ""
        raise ConfigError(f"cannot use the MCP server {_label(self._target)!r}: {reason}{text}")

    async def _run_client(self, ready: Future[list[McpTool]], output: IO[str]) -> None:
        """Run the client within a single task, until `_disconnect` is called."""
        bypass_proxy_on_loopback(os.environ)
        transport: Any = self._target
        if not isinstance(self._target, str | MCPServer):
            # The client passes few environment variables to a child by default.
            command, *args = self._target
            server = StdioServerParameters(command=command, args=args, env=dict(os.environ))
            transport = stdio_client(server, errlog=cast("Any", output))
        async with Client(transport) as client:
            page = await client.list_tools()
            tools = [*page.tools]
            while page.next_cursor:
                page = await client.list_tools(cursor=page.next_cursor)
                tools += page.tools
            self._client = client
            ready.set_result(tools)
            await self._stop.wait()

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if self._portal is None or self._task.done():
            return
        if client is None:
            self._task.cancel()
        else:
            self._portal.call(self._stop.set)
        wait((self._task,))

    def _restart(self) -> None:
        """Restart a server that has ended. Raises `ToolError` if no restarts are left."""
        with self._lock:
            if not (self._broken or self._task.done()):
                return  # another call has restarted it
            if not self._restarts_left:
                raise ToolError(_ENDED)
            self._restarts_left -= 1
            self._disconnect()
            self.open()

    async def call(self, name: str, arguments: JSON) -> CallToolResult:
        """Call a tool of the server. Cancelling this method also cancels the call on the server.

        Raises `ToolError` if the server has ended, with `late` set if that happened during the
        call.
        """
        if self._broken or self._task.done() or self._client is None:
            await call_in_thread(self._restart)
        client, portal = self._client, self._portal
        if client is None or portal is None:
            raise ToolError(_ENDED)
        work = portal.start_task_soon(client.call_tool, name, arguments)
        try:
            return await asyncio.wrap_future(work)
        except Exception as error:
            # The server is lost unless the error is its own or its result violates its schema.
            invalid_result = "structured content" in str(error)
            closed = not isinstance(error, MCPError) or error.code == CONNECTION_CLOSED
            self._broken = closed and not invalid_result
            failed = ToolError(f"the MCP server failed: {_error_line(error)}")
            failed.late = self._broken
            raise failed from error


def _label(target: _Target) -> str:
    """Return a server's display name for messages."""
    if isinstance(target, MCPServer):
        return target.name
    return target if isinstance(target, str) else shlex.join(target)


def _error_line(error: BaseException) -> str:
    """Describe an error, or the first error of an exception group, on one line."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if isinstance(error, ValidationError):
        details = error.errors(include_url=False)[0]
        path = ".".join(map(str, details["loc"]))
        return f"the message does not conform to the protocol, {path!r}: {details['msg']}"
    return str(error) or type(error).__name__


def _read_schema(raw_schema: Mapping[str, Any], owner: str = "the tool") -> Signature:
    """Create a signature from a server's JSON schema. Raises `ConfigError` if the schema is
    invalid."""
    from jsonschema.exceptions import best_match

    checker = schema_validator(raw_schema, owner)
    plain = {key: value for key, value in raw_schema.items() if key != "$schema"}
    schema: JSON = remove_titles(plain)
    schema.setdefault("properties", {})

    def check(text: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(text)
        problems: list[str] = []
        for each in itertools.islice(checker.iter_errors(value), 5):
            error: Any = best_match([each])  # the closest branch of a union
            path = ".".join(str(part) for part in error.absolute_path)
            message = str(error.message)  # includes the whole value
            if len(message) > _LONGEST_PROBLEM or error.validator in ("anyOf", "oneOf"):
                expected = f"{error.validator} {short_repr(error.validator_value)}"
                message = f"{short_repr(error.instance)} does not fit {expected}"
            problems.append(f"argument {path!r}: {message}" if path else message)
        if problems:
            raise ArgumentError("; ".join(problems) + f"; expected {summary(schema)}")
        return value

    return Signature(schema, check)


def _convert_tools(entries: Sequence[McpTool], server: str) -> list[Tool]:
    """Convert a server's tools to unbound `Tool`s. Raises `ConfigError`."""
    tools: dict[str, Tool] = {}
    for each in entries:
        name = _NOT_A_NAME.sub("_", each.name)[:64]
        if name in tools:
            raise ConfigError(
                f"the MCP server {server!r} has two tools with the same converted name {name!r}"
            )
        signature = _read_schema(each.input_schema, f"the MCP tool {each.name!r} of {server!r}")
        about = (each.description or "").strip()
        # Without annotations the protocol's default applies: the tool is destructive.
        hints, assumed = each.annotations, each.annotations is None
        safe = hints is not None and (hints.read_only_hint or hints.destructive_hint is False)
        method = _make_function(each.name, each.output_schema is not None)
        tools[name] = Tool(name, about, method, signature, destructive=not safe, assumed=assumed)
    return list(tools.values())


def _make_function(name: str, has_schema: bool) -> Callable[..., Coroutine[Any, Any, str]]:
    """Create the function of an MCP tool; its first argument is the server set by `Tool.bind`."""

    async def run(server: _Server, /, **arguments: Any) -> str:
        result = await server.call(name, arguments)
        text = result_text(result, name, has_schema and not result.is_error)
        if result.is_error:
            raise ToolError(text or f"{name} failed")
        return text

    return run
