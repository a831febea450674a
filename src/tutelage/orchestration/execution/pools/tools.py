"""Tools that run: Python functions and tools of MCP servers as workers, beside models for the rest.

A subtask of a tool's name is done by that tool, with the arguments of its node. One that changes
something is run when the caller permits it, each time with the arguments that it would
get; what a tool returned has no say in that. `plan/arguments.py` makes the arguments,
`tools/execute.py` bounds and runs the call.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from tutelage.errors import ConfigError, TutelageError, check_given
from tutelage.orchestration.execution.permission import Doubt, Permission, Permit, Said
from tutelage.orchestration.execution.workers import (
    Subtask,
    Worker,
    WorkerAnswer,
    WorkerError,
    WorkerEstimate,
    WorkerPool,
)
from tutelage.orchestration.plan.arguments import as_text, tool_arguments
from tutelage.orchestration.plan.catalog import CatalogTool
from tutelage.tools.execute import call, run_tool
from tutelage.tools.schema import ArgumentError
from tutelage.tools.tool import Tool

LONGEST = 1_000_000
"""Characters of a result: more is an error, since a part of it would be taken for all of it."""
LATE = "; what it changes may be done anyway"
"""What is said of a call with side effects that was cut off: its thread or its server may go on."""


class ToolPool:
    """Tools by their names, and a pool of models for what is no tool; see `WorkerPool`."""

    name = "tools"
    mock = False

    def __init__(
        self,
        tools: Mapping[str, Tool],
        models: WorkerPool | None = None,
        permit: Permit | None = None,
    ) -> None:
        """Without `permit` no call with side effects is made. Raises `ConfigError` for what cannot
        run here, or shares a name."""
        permit = Permission() if permit is None else permit
        check_given("tools", tools, Mapping, "the tools by their names, {tool.name: tool}")
        for tool in tools.values():
            check_given(
                "a tool", tool, Tool, "a function with @tool, or what resolve_tools(...) returns"
            )
        check_given("permit", permit, "__call__", "a function of a tool, its arguments and a doubt")
        if models is not None:
            check_given("models", models, "workers mock execute", "a pool, such as OpenAIPool(...)")
        self.tools, self.models, self._permit = dict(tools), models, permit
        if models is not None and models.mock:
            raise ConfigError(
                "tools run for real, and these workers are simulated or replayed; "
                "give real ones (--pool openai --workers FILE), or none"
            )
        for tool in tools.values():
            if tool.environment is not None:
                raise ConfigError(
                    f"the tool {tool.name!r} belongs to a class that is made for a rollout; a plan "
                    "takes functions (FILE.py, FILE.py:name) and servers (mcp:COMMAND)"
                )
        others = () if models is None else models.workers
        if taken := [worker.name for worker in others if worker.name in tools]:
            raise ConfigError(f"a tool and a worker are both named {taken[0]!r}; rename one")
        self.workers = (*(Worker(name, (name,), tool=True) for name in tools), *others)

    def with_side_effects(self, worker: Worker, work: Subtask) -> str | None:
        """The arguments of a call that needs permission, as JSON; None for one that needs none."""
        tool = self.tools.get(worker.name)
        if tool is None or not tool.destructive:
            return None
        try:
            return self._arguments(tool, work)
        except ArgumentError:
            return None  # it cannot run, which it says itself

    async def permit(self, worker: Worker, arguments: str, doubt: Doubt) -> Said:
        """Why a call with side effects may not be done, empty where it may. Raises `ConfigError`
        for an answer that is no text, and for an error."""
        asked: Callable[..., Any] = self._permit
        try:
            said = await call(asked, self.tools[worker.name], arguments, doubt)
        except TutelageError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{worker.name!r} did not run: `permit` raised {type(error).__name__}: {error}; "
                "it is given a Tool (its name is tool.name), its arguments as a JSON text "
                "(json.loads(arguments) has them) and a doubt, and returns a text (`async def`, "
                "where it awaits something)"
            ) from error
        if not isinstance(said, (str, WorkerAnswer)):
            raise ConfigError(
                f"{worker.name!r} did not run: `permit` returned {said!r:.80}; it returns an empty "
                "text to permit a call, or a text with the reason for refusing it, or the "
                "WorkerAnswer of a call that was done already"
            )
        return said

    async def execute(self, worker: Worker, work: Subtask) -> WorkerAnswer:
        """Run the tool, or ask the model."""
        tool = self.tools.get(worker.name)
        if tool is None:
            assert self.models is not None
            return await self.models.execute(worker, work)
        begun = time.perf_counter()
        try:
            arguments = self._arguments(tool, work)
        except ArgumentError as error:
            told = WorkerError("invalid_arguments", str(error))
            return WorkerAnswer(error=told, arguments=json.dumps(work.arguments, default=str))
        text, failure, nothing, plain, late = await run_tool(tool, arguments)
        if failure == "timeout" and time.perf_counter() - begun >= tool.timeout:
            text += "; --try-timeout, or its own @tool(timeout=...), gives it longer"
        if late and tool.destructive:
            text += LATE
        # Lone surrogates can be neither printed nor sent.
        text = text.encode("utf-8", "backslashreplace").decode()
        if failure is None and len(text) > LONGEST:
            failure, text = (
                "bad_result",
                (
                    f"it returned {len(text):,} characters, and a result may have {LONGEST:,}; "
                    "have it return less, or write a file"
                ),
            )
        told = text.removeprefix("Error: ")[:LONGEST]  # its kind says so
        error = None if failure is None else WorkerError(failure, told)
        seconds = time.perf_counter() - begun
        output = text if error is None else ""
        return WorkerAnswer(
            output, seconds=seconds, error=error, arguments=arguments, nothing=nothing, plain=plain
        )

    def estimate(self, worker: Worker, work: Subtask) -> WorkerEstimate:
        """Tools cost nothing."""
        if worker.tool or self.models is None:
            return WorkerEstimate(0.0, 0.0, 0.0)
        return self.models.estimate(worker, work)

    async def close(self) -> None:
        """Close the connections to models; tools are closed by who opened them."""
        if self.models is not None:
            await self.models.close()

    def _arguments(self, tool: Tool, work: Subtask) -> str:
        return as_text(tool_arguments(work.arguments, work.inputs, tool, work.plain))


def described(tools: Mapping[str, Tool]) -> tuple[CatalogTool, ...]:
    """The tools as a catalog has them, so that planners can choose among them."""
    return tuple(
        CatalogTool(
            name, tool.description, tuple(_kinds(tool)), kind="tool", schema=tool.parameters
        )
        for name, tool in tools.items()
    )


def _kinds(tool: Tool) -> list[str]:
    fields: Mapping[str, Any] = tool.parameters.get("properties", {})
    return [str(field.get("type", "any")) for field in fields.values()]
