"""Catalogs of tools with their input and output types, and the check of a plan against a catalog.

A catalog is read from the TaskBench format
(`{"nodes": [{"id", "desc", "input-type", "output-type"}]}`, or with `parameters`), from a list of
`{name, description, inputs, outputs}`, or from function schemas. Names are unique. A plan that
passes `check_plan` calls only tools of the catalog. `dag.py` defines plans, `data/workflows.py`
reads workflows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import AliasChoices, BeforeValidator, Field, TypeAdapter

from tutelage.errors import DataError, pluralize
from tutelage.orchestration.data.rows import AsText, drop_nulls, read_as, read_json
from tutelage.orchestration.plan.dag import Plan
from tutelage.tools.loading import hint


def _parse_types(value: Any) -> tuple[str, ...]:
    """Parse the type names in a list of names, a list of parameters, or a JSON schema."""
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        value = list(cast("Mapping[str, Any]", fields.get("properties", fields)).values())
    if not isinstance(value, (list, tuple)):
        raise ValueError("pass a list of type names")
    entries = [
        cast("Mapping[str, Any]", entry).get("type", "any") if isinstance(entry, Mapping) else entry
        for entry in cast("Sequence[Any]", value)
    ]
    return tuple(str(entry) for entry in entries)


_Types = Annotated[tuple[str, ...], BeforeValidator(_parse_types)]


@dataclass(frozen=True, slots=True)
class CatalogTool:
    """Tool of a catalog, with name, description, input types and output types."""

    name: Annotated[str, Field(pattern=r"\S", validation_alias=AliasChoices("id", "name"))]
    description: Annotated[AsText, Field(validation_alias=AliasChoices("desc", "description"))] = ""
    inputs: Annotated[
        _Types, Field(validation_alias=AliasChoices("inputs", "input-type", "parameters"))
    ] = ()
    outputs: Annotated[_Types, Field(validation_alias=AliasChoices("outputs", "output-type"))] = ()
    kind: AsText = ""
    """Capability that its worker needs, such as `audio`; empty if unknown."""
    schema: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON schema of its arguments; empty if unknown."""

    def to_row(self) -> dict[str, Any]:
        """Return the tool as a row for `read_catalog`, without empty fields."""
        row = {name: getattr(self, name) for name in ("inputs", "outputs", "kind", "schema")}
        said = {name: value for name, value in row.items() if value}
        return {"name": self.name, "description": self.description, **said}


@dataclass(frozen=True)
class Catalog:
    """Ordered tools with unique names. Raises `DataError` if empty or if a name is repeated."""

    tools: tuple[CatalogTool, ...]
    _index: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.tools:
            raise DataError("the catalog is empty; add at least one tool")
        index: dict[str, int] = {}
        for place, tool in enumerate(self.tools):
            if index.setdefault(tool.name, place) != place:
                raise DataError(f"duplicate tool name {tool.name!r} in the catalog; rename one")
        object.__setattr__(self, "_index", index)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __len__(self) -> int:
        return len(self.tools)

    def __getitem__(self, name: str) -> CatalogTool:
        """Return a tool by name. Unknown names raise `DataError` with the most similar name."""
        return self.tools[self.index(name)]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools, in the order of their indices."""
        return tuple(self._index)

    def index(self, name: str) -> int:
        """Return the index of a tool. Raises `DataError` if the name is unknown."""
        if name not in self._index:
            has = pluralize(len(self.tools), "tool")
            raise DataError(f"unknown tool {name!r} in a catalog of {has}{hint(name, self._index)}")
        return self._index[name]


def check_plan(plan: Plan, catalog: Catalog) -> None:
    """Raise `DataError` if a node of the plan uses a tool that is not in the catalog."""
    for index, node in enumerate(plan.nodes):
        try:
            catalog[node.tool]
        except DataError as error:
            raise DataError(f"node {index}: {error}") from error


def read_catalog(path: str | Path) -> Catalog:
    """Read a catalog from a file. Raises `DataError` with the path, the tool and the field."""
    rows = read_json(path)
    if isinstance(rows, Mapping):
        document = cast("Mapping[str, Any]", rows)
        rows = document.get("nodes", document.get("tools"))
    if not isinstance(rows, list):
        raise DataError(
            f"{str(path)!r} is not a catalog: expected a list of tools, or an object with a list "
            "'nodes' or 'tools'"
        )
    try:
        return Catalog(parse_tools(cast("list[Any]", rows)))
    except DataError as error:
        raise DataError(f"{str(path)!r}: {error}") from error


def parse_tools(rows: Iterable[Any]) -> tuple[CatalogTool, ...]:
    """Parse tools from descriptions or function schemas. Raises `DataError` with the index of an
    invalid tool."""
    tools: list[CatalogTool] = []
    for index, row in enumerate(rows):
        function = row.get("function", row) if isinstance(row, dict) else row
        tools.append(read_as(_TOOL, drop_nulls(function), f"tool {index}"))
    return tuple(tools)


_TOOL = TypeAdapter(CatalogTool)
