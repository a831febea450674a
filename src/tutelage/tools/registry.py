"""Names to tools: what `--tools calculator,my_tools.py:search` means.

Built-in tools have plain names; anything else is `FILE.py:name` (see `loading.py`). A plain
function found there becomes a tool as if it were decorated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tutelage.errors import ConfigError
from tutelage.tools.builtin import calculator, lookup, sum_1_to_n
from tutelage.tools.loading import is_file_reference, load_attribute, nearest
from tutelage.tools.tool import Tool, tool

BUILTIN_TOOLS: Mapping[str, Tool] = {t.name: t for t in (calculator, sum_1_to_n, lookup)}
"""The tools that need no file, by name."""


def resolve_tools(names: Sequence[str]) -> dict[str, Tool]:
    """Tools by their own names, in the order of `names`.

    Raises `ConfigError` for an unknown name, a missing file or function, or two tools of one name,
    and `ToolDefinitionError` for a function that gives no schema.
    """
    tools: dict[str, Tool] = {}
    for reference in names:
        found = _resolve(reference)
        if found.name in tools:
            raise ConfigError(
                f"two tools are named {found.name!r}, the second from {reference!r}; "
                "rename one with @tool('name')"
            )
        tools[found.name] = found
    return tools


def _resolve(reference: str) -> Tool:
    if reference in BUILTIN_TOOLS:
        return BUILTIN_TOOLS[reference]
    if not is_file_reference(reference):
        near = nearest(reference, BUILTIN_TOOLS)
        hint = f"did you mean {near!r}? " if near else ""
        raise ConfigError(
            f"unknown tool {reference!r}; {hint}built-in tools are "
            f"{', '.join(BUILTIN_TOOLS)}; your own are FILE.py:name"
        )
    found = load_attribute(reference, "tool")
    if isinstance(found, Tool):
        return found
    if not callable(found) or isinstance(found, type):
        raise ConfigError(
            f"tool {reference!r} is a {type(found).__name__}; point at a function or a @tool"
        )
    return tool(found)
