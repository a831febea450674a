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
from functools import partial
from typing import IO, Any, cast

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
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
from tutelage.tools.execute import call_in_thread
from tutelage.tools.loading import is_file_reference, load_attribute
from tutelage.tools.mcp_results import result_text
from tutelage.tools.schema import (
    ArgumentError,
    Signature,
    schema_validator,
    summary,
    untitled,
)
from tutelage.tools.tool import Tool, ToolEnvironment, ToolError
from tutelage.types import JSON, Task

MAX_RESTARTS = 3
"""How often a server for a run that ended is started again."""
START_SECONDS = 30.0
"""How long a server may take to start and to name its tools."""
_TAIL = 500
"""Characters of a server's last words that an error shows."""
_LONGEST_PROBLEM = 300
"""Characters of what a validator says of a value; beyond them it is said without all of it."""
_ENDED = "the MCP server of this tool has ended"
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_-]")

_Target = str | Sequence[str] | MCPServer
"""A URL, the words of a command, or a server in here."""


def tools_of(reference: str) -> list[Tool]:
    """What `mcp:...` or `mcp/rollout:...` names. Raises `ConfigError` when it cannot be opened."""
    kind, _, text = reference.partition(":")
    if not (text := text.strip()):
        raise ConfigError("missing a command, a URL or FILE.py:name of an MCP server after 'mcp:'")
    if text.startswith(("http://", "https://")):
        target: _Target = text
    elif is_file_reference(text) and " " not in text:
        found = load_attribute(text, "MCP server")
        if not isinstance(found, MCPServer):
            raise ConfigError(
                f"MCP server {text!r} is a {type(found).__name__}, not an MCPServer object"
            )
        target = found
    else:
        try:
            target = shlex.split(text)
        except ValueError as error:
            raise ConfigError(f"cannot parse the command {text!r}: {error}") from None
    shared = _Server(target, MAX_RESTARTS)
    try:
        tools = _tools(shared.open(), _shown(target))
    except BaseException:
        shared.close_after_run()
        raise
    if kind == "mcp":
        atexit.register(shared.close_after_run)
        return [tool.bind(shared) for tool in tools]
    shared.close_after_run()  # it was opened to ask for its tools; each rollout opens its own
    environment = partial(ToolEnvironment, _shown(target), lambda task: _Server(target))
    return [replace(tool, environment=environment) for tool in tools]


class _Server(Environment):
    """A client of one server in a thread with an event loop of its own, so that tools are opened,
    called and closed from the event loop of any rollout. A server that ends is started again
    `restarts` times."""

    def __init__(self, target: _Target, restarts: int = 0) -> None:
        self._target, self._left = target, restarts
        self._lock, self._thread = threading.RLock(), ExitStack()
        self._portal: BlockingPortal | None = None
        self._client: Client | None = None
        self._task: Future[None] = Future()
        self._broken = False

    async def reset(self, task: Task, seed: int) -> Observation:
        """Connect, for one rollout."""
        try:
            await call_in_thread(self.open)
        except BaseException:
            await self.close()
            raise
        return Observation()

    async def close(self) -> None:
        """Leave the connection, which ends a server that was started for it."""
        await call_in_thread(self.close_after_run)

    def close_after_run(self) -> None:
        """Leave the connection and end the thread; `registry.close_tools` calls it, twice too."""
        atexit.unregister(self.close_after_run)
        with self._lock:
            self._left = 0
            self._leave()
            self._thread.close()

    def open(self) -> list[McpTool]:
        """Connect; returns the server's tools. Raises `ConfigError`."""
        ready: Future[list[McpTool]] = Future()
        with (
            self._lock,
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as words,
        ):
            if self._portal is None:
                self._portal = self._thread.enter_context(start_blocking_portal(name="mcp"))
            self._broken, self._stop = False, anyio.Event()
            self._task = self._portal.start_task_soon(self._live, ready, words)
            either: list[Future[Any]] = [ready, self._task]
            wait(either, START_SECONDS, FIRST_COMPLETED)
            if ready.done():
                return ready.result()
            reason = f"no answer within {START_SECONDS:g} seconds"
            if self._task.done() and (error := self._task.exception()):
                reason = _told(error)
            self._leave()
            words.seek(0)
            last = words.read()[-_TAIL:].strip()
        text = f"; its output: {last}" if last else ""
        raise ConfigError(f"cannot use the MCP server {_shown(self._target)!r}: {reason}{text}")

    async def _live(self, ready: Future[list[McpTool]], words: IO[str]) -> None:
        """Connect, and stay until `_leave`: a client must be left in the task that entered it."""
        direct_on_loopback(os.environ)
        transport: Any = self._target
        if not isinstance(self._target, str | MCPServer):
            # A child gets almost no variables unless they are passed on.
            command, *args = self._target
            server = StdioServerParameters(command=command, args=args, env=dict(os.environ))
            transport = stdio_client(server, errlog=cast("Any", words))
        async with Client(transport) as client:
            page = await client.list_tools()
            tools = [*page.tools]
            while page.next_cursor:
                page = await client.list_tools(cursor=page.next_cursor)
                tools += page.tools
            self._client = client
            ready.set_result(tools)
            await self._stop.wait()

    def _leave(self) -> None:
        client, self._client = self._client, None
        if self._portal is None or self._task.done():
            return
        if client is None:
            self._task.cancel()
        else:
            self._portal.call(self._stop.set)
        wait((self._task,))

    def _again(self) -> None:
        """Start a server that ended once more. Raises `ToolError` where that was too often."""
        with self._lock:
            if not (self._broken or self._task.done()):
                return  # another call did
            if not self._left:
                raise ToolError(_ENDED)
            self._left -= 1
            self._leave()
            self.open()

    async def call(self, name: str, arguments: JSON) -> CallToolResult:
        """Call a tool; cancelling cancels it there. Raises `ToolError` when the server is gone, a
        `late` one when it went in the call, which it may have done."""
        if self._broken or self._task.done() or self._client is None:
            await call_in_thread(self._again)
        client, portal = self._client, self._portal
        if client is None or portal is None:
            raise ToolError(_ENDED)
        work = portal.start_task_soon(client.call_tool, name, arguments)
        try:
            return await asyncio.wrap_future(work)
        except Exception as error:
            # Whatever else went wrong, the server did say it itself, or its result fits no schema.
            said = "structured content" in str(error)
            closed = not isinstance(error, MCPError) or error.code == CONNECTION_CLOSED
            self._broken = closed and not said
            failed = ToolError(f"the MCP server failed: {_told(error)}")
            failed.late = self._broken
            raise failed from error


def _shown(target: _Target) -> str:
    """A server in a message."""
    if isinstance(target, MCPServer):
        return target.name
    return target if isinstance(target, str) else shlex.join(target)


def _told(error: BaseException) -> str:
    """What went wrong, on one line: the first real error in a group, as task groups wrap theirs."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False)[0]
        path = ".".join(map(str, found["loc"]))
        return f"what it sent does not keep to the protocol, {path!r}: {found['msg']}"
    return str(error) or type(error).__name__


def _signature(written: Mapping[str, Any], owner: str = "the tool") -> Signature:
    """Arguments by a JSON schema that another program wrote. Raises `ConfigError` where nothing can
    be checked by it."""
    from jsonschema.exceptions import best_match

    checker = schema_validator(written, owner)
    plain = {key: value for key, value in written.items() if key != "$schema"}
    schema: JSON = untitled(plain)
    schema.setdefault("properties", {})

    def check(text: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(text)
        problems: list[str] = []
        for each in itertools.islice(checker.iter_errors(value), 5):
            error: Any = best_match([each])  # of several things that it may be, the closest
            path = ".".join(str(part) for part in error.absolute_path)
            words = str(error.message)  # which has the whole value
            if len(words) > _LONGEST_PROBLEM or error.validator in ("anyOf", "oneOf"):
                expected = f"{error.validator} {short(error.validator_value)}"
                words = f"{short(error.instance)} does not fit {expected}"
            problems.append(f"argument {path!r}: {words}" if path else words)
        if problems:
            raise ArgumentError("; ".join(problems) + f"; expected {summary(schema)}")
        return value

    return Signature(schema, check)


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

    async def run(server: _Server, /, **arguments: Any) -> str:
        result = await server.call(name, arguments)
        text = result_text(result, name, typed and not result.is_error)
        if result.is_error:
            raise ToolError(text or f"{name} failed")
        return text

    return run
