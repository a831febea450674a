"""Pool of tools: Python functions and tools of MCP servers.

A subtask with the name of a tool is done by the tool, with the arguments of its node. Each call of
a tool with side effects needs the caller's permission for its final arguments; results of tools
cannot affect it. `plan/arguments.py` resolves the arguments, `tools/execute.py` runs the call with
its limits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from tutelage.errors import ConfigError
from tutelage.orchestration.arguments import check_type
from tutelage.orchestration.execution.permission import Doubt, Permission, Permit, Said
from tutelage.orchestration.execution.workers import (
    Subtask,
    Worker,
    WorkerAnswer,
    WorkerError,
    WorkerEstimate,
)
from tutelage.orchestration.plan.arguments import as_text, resolve_arguments
from tutelage.orchestration.plan.catalog import CatalogTool
from tutelage.tools.execute import call, run_tool
from tutelage.tools.schema import ArgumentError
from tutelage.tools.tool import Tool

LATE = "; what it changes may be done anyway"
"""Suffix of the error if a call with side effects was cut off: thread or server may continue."""


class ToolPool:
    """Worker pool that executes tools."""

    name = "tools"
    mock = False

    def __init__(self, tools: Mapping[str, Tool], permit: Permit | None = None) -> None:
        """Create a pool. Without `permit`, calls with side effects are refused. Raises
        `ConfigError` if a tool cannot run here."""
        for tool in tools.values():
            if tool.environment is not None:
                raise ConfigError(
                    f"the tool {tool.name!r} belongs to a class that is created per rollout; use "
                    "functions (FILE.py, FILE.py:name) or servers (mcp:COMMAND) in a plan"
                )
        self.tools, self._permit = dict(tools), permit or Permission()
        self.workers = tuple(Worker(name, (name,), tool=True) for name in tools)

    def get_guarded_args(self, worker: Worker, work: Subtask) -> str | None:
        """Return the arguments as JSON if the call requires permission, else None."""
        tool = self.tools[worker.name]
        if not tool.destructive:
            return None
        try:
            return self._format_arguments(tool, work)
        except ArgumentError:
            return None  # `execute` returns the error

    async def permit(self, worker: Worker, arguments: str, doubt: Doubt) -> Said:
        """Return the permission decision about a call with side effects; an empty string permits
        the call. Raises `ConfigError` if the callback returns a value of the wrong type."""
        permit: Callable[..., Any] = self._permit
        said = await call(permit, self.tools[worker.name], arguments, doubt)
        remedy = (
            "an empty string to permit the call, a string with the reason to refuse it, or the "
            "WorkerAnswer of a call that was already made"
        )
        check_type(f"`permit` for {worker.name!r}", said, (str, WorkerAnswer), remedy)
        return said

    async def execute(self, worker: Worker, work: Subtask) -> WorkerAnswer:
        """Run the tool with the arguments of the subtask."""
        tool, begun = self.tools[worker.name], time.perf_counter()
        try:
            arguments = self._format_arguments(tool, work)
        except ArgumentError as misfit:
            error = WorkerError("invalid_arguments", str(misfit))
            return WorkerAnswer(error=error, arguments=json.dumps(work.arguments, default=str))
        text, failure, late = await run_tool(tool, arguments)
        seconds = time.perf_counter() - begun
        # Escape lone surrogates, which cannot be printed or sent.
        text = text.encode("utf-8", "backslashreplace").decode()
        if failure is None:
            return WorkerAnswer(text, seconds=seconds, arguments=arguments)
        text = text.removeprefix("Error: ")  # the error kind already says this
        if failure == "timeout" and seconds >= tool.timeout:
            text += "; --try-timeout, or its own @tool(timeout=...), gives it longer"
        if late and tool.destructive:
            text += LATE
        error = WorkerError(failure, text)
        return WorkerAnswer(seconds=seconds, error=error, arguments=arguments)

    def estimate(self, worker: Worker, work: Subtask) -> WorkerEstimate:
        """Return an estimate of 0, because tool calls are free."""
        return WorkerEstimate(0.0, 0.0, 0.0)

    async def close(self) -> None:
        """Do nothing; the code that opened the tools must close them."""

    def _format_arguments(self, tool: Tool, work: Subtask) -> str:
        return as_text(resolve_arguments(work.arguments, work.inputs, tool))


def describe_tools(tools: Mapping[str, Tool]) -> tuple[CatalogTool, ...]:
    """Convert the tools to catalog entries for planners."""
    return tuple(
        CatalogTool(
            name,
            tool.description,
            tuple(
                str(e.get("type", "any")) for e in tool.parameters.get("properties", {}).values()
            ),
            kind="tool",
            schema=tool.parameters,
        )
        for name, tool in tools.items()
    )
