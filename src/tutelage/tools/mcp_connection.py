"""A connection to an MCP server, from opening to closing, in a task of its own.

The client of the `mcp` package must be left in the task that entered it, while tools are opened,
called and closed from wherever a rollout happens to be. `mcp.py` makes tools of what is found.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any, cast

from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.server.mcpserver import MCPServer
from mcp_types import CONNECTION_CLOSED, CallToolResult
from mcp_types import Tool as McpTool

from tutelage.environments import Environment, Observation
from tutelage.errors import ConfigError
from tutelage.tools.tool import ToolError
from tutelage.types import JSON, Task

START_SECONDS = 30.0
"""How long a server may take to start and to name its tools."""
_TAIL = 500
"""Characters of a server's last words that an error shows."""

Target = str | Sequence[str] | StdioServerParameters | MCPServer
"""A URL, a command (as one text or its words), parameters of a command, or a server in here."""


class Connection(Environment):
    """A client that lives in a task of its own: it must be left in the task that entered it."""

    def __init__(self, target: Target, env: Mapping[str, str] | None = None) -> None:
        self._target, self._env = target, env
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
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                    raise
                raise ConfigError(self._failure(error, words)) from error

    async def _live(self, ready: asyncio.Future[list[McpTool]], words: IO[str]) -> None:
        try:
            async with Client(_transport(self._target, self._env, words)) as client:
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
        """Call a tool. Raises `ToolError` when the server is gone."""
        client, task = self._client, self._task
        if client is None or task is None:
            raise ToolError("the MCP server ended")
        try:
            return await client.call_tool(name, arguments)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # Whatever else went wrong, the server did say it itself.
            self._broken = not isinstance(error, MCPError) or error.code == CONNECTION_CLOSED
            raise ToolError(f"the MCP server failed: {_plain(error)}") from error

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

    def _failure(self, error: BaseException, words: IO[str]) -> str:
        reason = str(error) or type(error).__name__
        if isinstance(error, TimeoutError):
            reason = f"it did not answer within {START_SECONDS:g} seconds"
        words.seek(0)
        last = words.read()[-_TAIL:].strip()
        said = f"; it said: {last}" if last else ""
        return f"the MCP server {shown(self._target)!r} cannot be used: {reason}{said}"


def _transport(target: Target, env: Mapping[str, str] | None, words: IO[str]) -> Any:
    if isinstance(target, MCPServer):
        return target
    if isinstance(target, str) and target.startswith(("http://", "https://")):
        return target
    if isinstance(target, StdioServerParameters):
        return stdio_client(target, errlog=cast("Any", words))
    command = shlex.split(target) if isinstance(target, str) else list(target)
    # A child gets almost no variables unless it is given them.
    given = StdioServerParameters(
        command=command[0], args=command[1:], env={**os.environ, **(env or {})}
    )
    return stdio_client(given, errlog=cast("Any", words))


def shown(target: Target) -> str:
    """A server in a message."""
    if isinstance(target, MCPServer):
        return target.name
    if isinstance(target, StdioServerParameters):
        return shlex.join([target.command, *target.args])
    return target if isinstance(target, str) else shlex.join(target)


def _plain(error: BaseException) -> BaseException:
    """The first real error in a group, as task groups wrap theirs."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if isinstance(error, asyncio.CancelledError):
        return ConnectionError("the connection was closed")
    return error
