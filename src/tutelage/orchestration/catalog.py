"""Which tools exist, what each takes and gives, and whether a plan keeps to them.

A catalog is read from the TaskBench form: `{"nodes": [{"id", "desc", "input-type",
"output-type"}]}`, or with `parameters` (each a name and a type) where a tool is an API. Names are
unique, so that a plan that passes `check_plan` cannot call a tool that was made up. `plan.py` has
the plans themselves.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tutelage.errors import DataError
from tutelage.orchestration.plan import Plan


@dataclass(frozen=True, slots=True)
class CatalogTool:
    """One tool: its name, what it does, and the types it takes and gives."""

    name: str
    description: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Catalog:
    """Tools by unique name, in the order given. Raises `DataError` when empty or ambiguous."""

    tools: tuple[CatalogTool, ...]
    _by_name: Mapping[str, CatalogTool] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.tools:
            raise DataError("the catalog is empty; a plan needs at least one tool")
        by_name: dict[str, CatalogTool] = {}
        for tool in self.tools:
            if tool.name in by_name:
                raise DataError(f"the catalog has two tools named {tool.name!r}; rename one")
            by_name[tool.name] = tool
        object.__setattr__(self, "_by_name", by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> CatalogTool:
        """The tool of that name. Raises `DataError` with the nearest name when there is none."""
        if name not in self._by_name:
            near = difflib.get_close_matches(name, self._by_name, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {len(self.tools)} tools"
            raise DataError(f"the catalog has no tool {name!r}; {hint}")
        return self._by_name[name]


def check_plan(plan: Plan, catalog: Catalog) -> None:
    """Raise `DataError`, naming the node, when a plan uses a tool that the catalog lacks."""
    for index, node in enumerate(plan.nodes):
        try:
            catalog[node.tool]
        except DataError as error:
            raise DataError(f"node {index}: {error}") from error


def read_catalog(path: str | Path) -> Catalog:
    """Read a tool description file of TaskBench. Raises `DataError` with file, row and field."""
    try:
        data: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{str(path)!r} is no readable JSON file: {error}") from error
    rows = cast("Mapping[str, Any]", data).get("nodes") if isinstance(data, dict) else None
    if not isinstance(rows, list):
        raise DataError(f"{str(path)!r} needs an object with a list under 'nodes'")
    tools: list[CatalogTool] = []
    for index, row in enumerate(cast("list[Any]", rows)):
        try:
            tools.append(_tool(row))
        except (KeyError, TypeError) as error:
            raise DataError(f"{str(path)!r}, tool {index}: bad or missing {error}") from error
    return Catalog(tuple(tools))


def _tool(given: object) -> CatalogTool:
    if not isinstance(given, dict):
        raise TypeError(f"row: {given!r} is no object")
    row = cast("Mapping[str, Any]", given)
    if "parameters" in row:
        inputs = [parameter["type"] for parameter in row["parameters"]]
    else:
        inputs = _types(row, "input-type")
    name = row["id"]
    if not isinstance(name, str) or not name:
        raise TypeError(f"'id': {name!r} is no tool name")
    return CatalogTool(
        name, str(row.get("desc", "")), tuple(inputs), tuple(_types(row, "output-type"))
    )


def _types(row: Mapping[str, Any], key: str) -> list[str]:
    types = row.get(key, [])
    if not isinstance(types, list):
        raise TypeError(f"{key!r}: {types!r} is no list of types")
    return [str(name) for name in cast("list[Any]", types)]
