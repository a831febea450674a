"""Tools of MCP servers: a command, a URL or a server in this process, as tools of an agent.

On the command line: `--tools mcp:COMMAND`, `mcp:http://HOST/mcp` or `mcp:FILE.py:server` is opened
with the run and closed with it; `mcp/rollout:...` gives every rollout a server of its own. A server
for the run serves all rollouts from a thread of its own: a run has an event loop for every step, a
connection has one for life. A call that runs out of time is cancelled on the server too; what a
server answers or fails to answer becomes an ordinary result or tool error, in the fixed order of
`execute.py`, so a run with such tools repeats when the server's answers do.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import re
import shlex
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import IO, Any, cast

from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.server.mcpserver import MCPServer
from mcp_types import CONNECTION_CLOSED, CallToolResult
from mcp_types import Tool as McpTool
from pydantic import ValidationError

from tutelage.bounded import direct_on_loopback
from tutelage.environments import Environment, Observation
from tutelage.errors import ConfigError
from tutelage.tasks.readers import short
from tutelage.tools.loading import is_file_reference, load_attribute
from tutelage.tools.mcp_results import result_text
from tutelage.tools.schema import ArgumentError, Signature, schema_validator, summary
from tutelage.tools.tool import Tool, ToolEnvironment, ToolError
from tutelage.tools.unions import union_problems, would_do
from tutelage.types import JSON, Task

PREFIX, ROLLOUT_PREFIX = "mcp:", "mcp/rollout:"
MAX_RESTARTS = 3
"""How often a server for a run that ended is started again."""
START_SECONDS = 30.0
"""How long a server may take to start and to name its tools."""
_TAIL = 500
"""Characters of a server's last words that an error shows."""
_LONGEST_PROBLEM = 300
"""Characters of what a validator says of a value; beyond them it is said without all of it."""
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_-]")

_Target = str | Sequence[str] | MCPServer
"""A URL, the words of a command, or a server in here."""


def tools_of(reference: str) -> list[Tool]:
    """What `mcp:...` or `mcp/rollout:...` names. Raises `ConfigError` when it cannot be opened."""
    prefix = ROLLOUT_PREFIX if reference.startswith(ROLLOUT_PREFIX) else PREFIX
    target = _read_target(reference.removeprefix(prefix))
    shared = _SharedServer(target)
    try:
        tools = _tools(shared.found, _shown(target))
    except ConfigError:
        shared.close_after_run()
        raise
    if prefix == PREFIX:
        return [tool.bind(shared) for tool in tools]
    shared.close_after_run()  # it was opened to ask for its tools; each rollout opens its own
    environment = partial(ToolEnvironment, _shown(target), lambda task: _Connection(target))
    return [replace(tool, environment=environment) for tool in tools]


def _read_target(text: str) -> _Target:
    """A URL, `FILE.py:name` of a server object, or a command, from one text."""
    text = text.strip()
    if not text:
        raise ConfigError("missing a command, a URL or FILE.py:name of an MCP server after 'mcp:'")
    if text.startswith(("http://", "https://")):
        return text
    if is_file_reference(text) and " " not in text:
        found = load_attribute(text, "MCP server")
        if not isinstance(found, MCPServer):
            raise ConfigError(
                f"MCP server {text!r} is a {type(found).__name__}, not an MCPServer object"
            )
        return found
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"cannot parse the command {text!r}: {error}") from None


class _SharedServer:
    """One server for many rollouts, in any event loop, until it is closed; started again when it
    ends. Raises `ConfigError` when it cannot be started."""

    def __init__(self, target: _Target) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mcp", daemon=True)
        self._thread.start()
        self._starting = asyncio.Lock()
        self._restarts = 0
        self._connection = _Connection(target)
        try:
            opening = asyncio.run_coroutine_threadsafe(self._connection.open(), self._loop)
            self.found = opening.result()
        except BaseException:
            self.close_after_run()
            raise
        atexit.register(self.close_after_run)

    def close_after_run(self) -> None:
        """Close the connection and end the thread; `registry.close_tools` calls it, twice too."""
        atexit.unregister(self.close_after_run)
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
                self._connection = _Connection(self._target)
                await self._connection.open()
        return await self._connection.call(name, arguments)


# ---------------------------------------------------------------- a connection


class _Connection(Environment):
    """A client that lives in a task of its own: it must be left in the task that entered it, while
    tools are opened, called and closed from the event loop of any rollout."""

    def __init__(self, target: _Target) -> None:
        self._target = target
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._stop = asyncio.Event()
        self._broken = False

    @property
    def ended(self) -> bool:
        """Whether the server, or the connection to it, is gone."""
        return self._broken or self._task is None or self._task.done()

    async def reset(self, task: Task, seed: int) -> Observation:
        """Connect, for one rollout."""
        await self.open()
        return Observation()

    async def open(self) -> list[McpTool]:
        """Connect; returns the server's tools. Raises `ConfigError`."""
        ready: asyncio.Future[list[McpTool]] = asyncio.get_running_loop().create_future()
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as words:
            self._task = asyncio.create_task(self._live(ready, words))
            try:
                async with asyncio.timeout(START_SECONDS):
                    return await asyncio.shield(ready)
            except (Exception, asyncio.CancelledError) as error:
                await self.close()
                if ready.done():
                    ready.exception()  # looked at, so that asyncio does not complain
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                    raise
                reason = _told(error)
                if isinstance(error, TimeoutError):
                    reason = f"no answer within {START_SECONDS:g} seconds"
                words.seek(0)
                last = words.read()[-_TAIL:].strip()
                text = f"; its output: {last}" if last else ""
                raise ConfigError(
                    f"cannot use the MCP server {_shown(self._target)!r}: {reason}{text}"
                ) from error

    async def _live(self, ready: asyncio.Future[list[McpTool]], words: IO[str]) -> None:
        try:
            direct_on_loopback(os.environ)
            transport: Any = self._target
            if not isinstance(self._target, str | MCPServer):
                # A child gets almost no variables unless they are passed on.
                command, *args = self._target
                server = StdioServerParameters(command=command, args=args, env=dict(os.environ))
                transport = stdio_client(server, errlog=cast("Any", words))
            async with Client(transport) as client:
                tools: list[McpTool] = []
                cursor: str | None = None
                while True:
                    page = await client.list_tools(cursor=cursor)
                    tools += page.tools
                    cursor = page.next_cursor
                    if not cursor:
                        break
                self._client = client
                ready.set_result(tools)
                await self._stop.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(_plain(error))
            elif isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self._client = None

    async def call(self, name: str, arguments: JSON) -> CallToolResult:
        """Call a tool. Raises `ToolError` when the server is gone, a `late` one when it went in the
        call, which it may have done."""
        client, task = self._client, self._task
        if client is None or task is None:
            raise ToolError("the MCP server ended")
        try:
            return await client.call_tool(name, arguments)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # Whatever else went wrong, the server did say it itself, or its result fits no schema.
            said = "structured content" in str(error)
            closed = not isinstance(error, MCPError) or error.code == CONNECTION_CLOSED
            self._broken = closed and not said
            failed = ToolError(f"the MCP server failed: {_told(_plain(error))}")
            failed.late = self._broken
            raise failed from error

    async def close(self) -> None:
        """Leave the connection, which ends a server that was started for it."""
        self._stop.set()
        if self._task is None:
            return
        if self._client is None:
            self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()  # looked at, so that asyncio does not complain


def _shown(target: _Target) -> str:
    """A server in a message."""
    if isinstance(target, MCPServer):
        return target.name
    return target if isinstance(target, str) else shlex.join(target)


def _plain(error: BaseException) -> BaseException:
    """The first real error in a group, as task groups wrap theirs."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if isinstance(error, asyncio.CancelledError):
        return ConnectionError("the connection was closed")
    return error


def _told(error: BaseException) -> str:
    """What went wrong, on one line."""
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False)[0]
        path = ".".join(map(str, found["loc"]))
        return f"what it sent does not keep to the protocol, {path!r}: {found['msg']}"
    return str(error) or type(error).__name__


# ---------------------------------------------------------------- tools


def _signature(written: Mapping[str, Any], owner: str = "the tool") -> Signature:
    """Arguments by a JSON schema that another program wrote. Raises `ConfigError` where nothing can
    be checked by it."""
    checker, schema = schema_validator(written, owner), _untitled(written)

    def check(text: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(text)
        errors = checker.iter_errors(value)
        problems = [phrase for error in errors for phrase in _problems(error, schema)]
        if problems:
            raise ArgumentError("; ".join(problems[:5]) + f"; expected {summary(schema)}")
        return value

    return Signature(schema, check)


def _problems(error: Any, schema: JSON) -> list[str]:
    path = ".".join(str(part) for part in error.absolute_path)
    if error.validator in ("anyOf", "oneOf"):
        given = error.instance, error.schema, schema, path
        bounds = [each for each in error.context or () if each.validator != "type"]
        told = [phrase for each in bounds for phrase in _problems(each, schema)]
        if told := union_problems(*given) or told or would_do(*given):
            return told
    words = str(error.message)  # which has the whole value
    if len(words) > _LONGEST_PROBLEM:
        told = f"{error.validator} {short(error.validator_value)}"
        words = f"{short(error.instance)} does not fit {told}"
    return [f"argument {path!r}: {words}" if path else words]


def _tools(found: Sequence[McpTool], server: str) -> list[Tool]:
    """The tools of a server, to be bound to what calls it."""
    tools: dict[str, Tool] = {}
    for each in found:
        name = _NOT_A_NAME.sub("_", each.name)[:64]
        if name in tools:
            raise ConfigError(
                f"the MCP server {server!r} has two tools that the model would see as {name!r}"
            )
        signature = _signature(each.input_schema, f"the MCP tool {each.name!r} of {server!r}")
        about = (each.description or "").strip()
        # Without annotations the protocol's default holds: the tool is destructive.
        hints, silent = each.annotations, each.annotations is None
        safe = hints is not None and (hints.read_only_hint or hints.destructive_hint is False)
        method = _method(each.name, each.output_schema is not None)
        tools[name] = Tool(name, about, method, signature, destructive=not safe, assumed=silent)
    return list(tools.values())


def _method(name: str, typed: bool) -> Callable[..., Coroutine[Any, Any, str]]:
    """The tool as a method: `Tool.bind` gives its first argument."""

    async def run(server: _SharedServer | _Connection, /, **arguments: Any) -> str:
        result = await server.call(name, arguments)
        text = result_text(result, name, typed and not result.is_error)
        if result.is_error:
            raise ToolError(text or f"{name} failed")
        return text

    return run


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
