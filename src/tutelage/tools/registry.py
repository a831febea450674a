"""Names to tools: what `--tools calculator,my_tools.py:search` means.

Built-in tools have plain names; `mcp:COMMAND` means all tools of an MCP server (`mcp.py`);
anything else is `FILE.py:name` (see `loading.py`), or `FILE.py` for all that it defines. A plain
function found there becomes a tool as if it were decorated; a class is an environment and brings
all its tools. Some built-in tools are made from options (`options.py`), which is when they find out
whether they can work here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tutelage.errors import ConfigError, MissingExtraError
from tutelage.tools.builtin import ENVIRONMENTS, answer, calculator, lookup, sum_1_to_n
from tutelage.tools.environments import environment_tools
from tutelage.tools.loading import (
    hint,
    import_attribute,
    is_file_reference,
    load_attribute,
    load_file,
)
from tutelage.tools.options import ToolOptions
from tutelage.tools.tool import Tool, tool

BUILTIN_TOOLS: Mapping[str, Tool] = {t.name: t for t in (calculator, sum_1_to_n, lookup, answer)}
"""The tools that need neither a file nor an option, by name."""
CONFIGURED_TOOLS: Mapping[str, str] = {
    "python_executor": "tutelage.tools.python:python_executor",
    "search": "tutelage.tools.search:search_tool",
    "google_search": "tutelage.tools.search:google_search_tool",
}
"""Where the tools are made that need `ToolOptions`, by name."""

MCP_PREFIXES = ("mcp:", "mcp/rollout:")
"""What tools of an MCP server begin with; see `mcp.py`."""


def resolve_tools(names: Sequence[str], options: ToolOptions | None = None) -> dict[str, Tool]:
    """Tools by their own names, in the order of `names`.

    Raises `ConfigError` for an unknown name, a missing file or function, two tools of one name, or
    a tool that cannot work with these options, and `ToolDefinitionError` for a function that gives
    no schema.
    """
    tools: dict[str, Tool] = {}
    for reference in names:
        for found in _resolve(reference, options or ToolOptions()):
            if found.name in tools:
                raise ConfigError(
                    f"duplicate tool name {found.name!r}, again from {reference!r}; rename your "
                    "own with @tool('name'), or leave out one of the two"
                )
            tools[found.name] = found
    return tools


def close_tools(tools: Mapping[str, Tool]) -> None:
    """Close what tools hold open for a whole run, as the servers of `mcp:...` are."""
    for found in tools.values():
        close = getattr(getattr(found.fn, "__self__", None), "close_after_run", None)
        if close is not None:
            close()


def _resolve(reference: str, options: ToolOptions) -> list[Tool]:
    if reference.startswith(MCP_PREFIXES):
        try:
            from tutelage.tools.mcp import tools_of
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"{reference!r} needs a package that is not installed ({error}): install it with "
                "`pip install 'tutelage[mcp]'`"
            ) from error
        return tools_of(reference)
    if reference in BUILTIN_TOOLS:
        return [BUILTIN_TOOLS[reference]]
    if reference in ENVIRONMENTS:
        return environment_tools(ENVIRONMENTS[reference])
    if reference in CONFIGURED_TOOLS:
        return [import_attribute(CONFIGURED_TOOLS[reference])(options)]
    if not is_file_reference(reference):
        known = [*BUILTIN_TOOLS, *CONFIGURED_TOOLS, *ENVIRONMENTS]
        near = hint(reference, known, "did you mean {!r}? ")
        raise ConfigError(
            f"unknown tool {reference!r}; {near}built-in tools are "
            f"{', '.join(known)}; for your own use FILE.py:name, for an MCP server mcp:COMMAND"
        )
    if reference.endswith(".py"):
        module = load_file(reference, "tools")
        own = [
            value
            for value in vars(module).values()
            if isinstance(value, Tool) and value.fn.__module__ == module.__name__
        ]
        if not own:
            raise ConfigError(
                f"tools {reference!r}: no @tool in this file; to use a function: {reference}:NAME"
            )
        return own
    found = load_attribute(reference, "tool")
    if isinstance(found, Tool):
        return [found]
    if isinstance(found, type) and (hasattr(found, "__aenter__") or hasattr(found, "reset")):
        return environment_tools(found)
    if not callable(found) or isinstance(found, type):
        raise ConfigError(
            f"tool {reference!r} is a {type(found).__name__}, not a function, a @tool or an "
            "environment class"
        )
    return [tool(found)]
