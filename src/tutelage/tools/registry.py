"""Resolve tool names, as in `--tools calculator,my_tools.py:search`, to tools.

Built-in tools have plain names; `mcp:COMMAND` stands for all tools of an MCP server (`mcp.py`);
other names are `FILE.py:name` (see `loading.py`), or `FILE.py` for all tools that it defines. A
plain function becomes a tool as if it were decorated; a class is an environment and adds all its
tools. Some built-in tools are created from options (`options.py`), which fails if they cannot work
on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tutelage.errors import ConfigError, MissingExtraError
from tutelage.tools.builtin import ENVIRONMENTS, answer, calculator, lookup, sum_1_to_n
from tutelage.tools.loading import (
    hint,
    import_attribute,
    is_file_reference,
    load_attribute,
    load_file,
)
from tutelage.tools.options import ToolOptions
from tutelage.tools.tool import Tool, environment_tools, tool

BUILTIN_TOOLS: Mapping[str, Tool] = {t.name: t for t in (calculator, sum_1_to_n, lookup, answer)}
"""Built-in tools that need no options, by name."""
CONFIGURED_TOOLS: Mapping[str, str] = {
    "python_executor": "tutelage.tools.python:python_executor",
    "search": "tutelage.tools.search:search_tool",
    "google_search": "tutelage.tools.search:google_search_tool",
}
"""Factories of the built-in tools that need `ToolOptions`, as `module:function` by name."""

MCP_PREFIXES = ("mcp:", "mcp/rollout:")
"""Prefixes of references to MCP servers; see `mcp.py`."""


def resolve_tools(names: Sequence[str], options: ToolOptions | None = None) -> dict[str, Tool]:
    """Return the tools for references such as `calculator` or `FILE.py:search`, by tool name.

    Raises `ConfigError` for an unknown name, a missing file or function, a duplicate name, or a
    tool that cannot work with these options, and `ToolDefinitionError` for a function without a
    JSON schema.
    """
    tools: dict[str, Tool] = {}
    for reference in names:
        for new in _resolve(reference, options or ToolOptions()):
            if new.name in tools:
                raise ConfigError(
                    f"duplicate tool name {new.name!r}, also defined by {reference!r}; rename "
                    "your own with @tool('name'), or remove one of the two"
                )
            tools[new.name] = new
    return tools


def close_tools(tools: Mapping[str, Tool]) -> None:
    """Close the resources that tools hold for a whole run, such as MCP servers."""
    for each in tools.values():
        close = getattr(getattr(each.fn, "__self__", None), "close_after_run", None)
        if close is not None:
            close()


def _resolve(reference: str, options: ToolOptions) -> list[Tool]:
    if reference.startswith(MCP_PREFIXES):
        try:
            from tutelage.tools.mcp import mcp_tools
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"{reference!r} needs a package that is not installed ({error}): install it with "
                "`pip install 'tutelage[mcp]'`"
            ) from error
        return mcp_tools(reference)
    if reference in BUILTIN_TOOLS:
        return [BUILTIN_TOOLS[reference]]
    if reference in ENVIRONMENTS:
        return environment_tools(ENVIRONMENTS[reference])
    if reference in CONFIGURED_TOOLS:
        return [import_attribute(CONFIGURED_TOOLS[reference])(options)]
    if not is_file_reference(reference):
        names = [*BUILTIN_TOOLS, *CONFIGURED_TOOLS, *ENVIRONMENTS]
        near = hint(reference, names, "did you mean {!r}? ")
        raise ConfigError(
            f"unknown tool {reference!r}; {near}built-in tools are "
            f"{', '.join(names)}; use FILE.py:name for your own, mcp:COMMAND for an MCP server"
        )
    if reference.endswith(".py"):
        module = load_file(reference, "tools")
        defined = [
            value
            for value in vars(module).values()
            if isinstance(value, Tool) and value.fn.__module__ == module.__name__
        ]
        if not defined:
            raise ConfigError(
                f"tools {reference!r}: no @tool in this file; to use a function: {reference}:NAME"
            )
        return defined
    value = load_attribute(reference, "tool")
    if isinstance(value, Tool):
        return [value]
    if isinstance(value, type) and (hasattr(value, "__aenter__") or hasattr(value, "reset")):
        return environment_tools(value)
    if not callable(value) or isinstance(value, type):
        raise ConfigError(
            f"tool {reference!r} is a {type(value).__name__}, not a function, a @tool or an "
            "environment class"
        )
    return [tool(value)]
