"""MCP servers that misbehave, for the tests: `python mcp_servers.py`, on standard input."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("odd", log_level="ERROR")


@server.tool(structured_output=False)
def pid() -> str:
    """Which process this is."""
    return str(os.getpid())


@server.tool(structured_output=False)
async def wait(path: str) -> str:
    """Wait for ever; a cancelled call leaves a file."""
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        Path(path).write_text("cancelled")
        raise
    return "never"


@server.tool(structured_output=False)
async def slow(seconds: float, text: str) -> str:
    """Answer after a while."""
    await asyncio.sleep(seconds)
    return text


@server.tool()
def point(x: int, y: int) -> dict[str, int]:
    """A structured result."""
    return {"x": x, "y": y}


@server.tool()
def titles(count: int) -> list[str]:
    """A list of texts."""
    return [f"part {number}" for number in range(count)]


@server.tool()
def wrapping() -> dict[str, list[str]]:
    """An object that looks like what lists are wrapped in."""
    return {"result": ["a"]}


@server.tool()
def phone(name: str) -> str | None:
    """A telephone number, if there is one."""
    return None


@server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
def look() -> str:
    """Read something."""
    return "read"


@server.tool(annotations=ToolAnnotations(destructive_hint=False), structured_output=False)
def add() -> str:
    """Add something."""
    return "added"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True), structured_output=False)
def wipe() -> str:
    """Wipe something."""
    return "wiped"


@server.tool(name="dotted.name", structured_output=False)
def dotted() -> str:
    """A name that no model may say."""
    return "dotted"


@server.tool(structured_output=False)
def long() -> str:
    """More than anyone wants to read."""
    return "x" * 100_000


if __name__ == "__main__":
    if "--fail" in sys.argv:
        sys.exit("no licence found")
    server.run()
