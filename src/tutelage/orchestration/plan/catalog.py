"""Which tools exist, what each takes and gives, and whether a plan keeps to them.

A catalog is read from TaskBench's form (`{"nodes": [{"id", "desc", "input-type", "output-type"}]}`,
or with `parameters`), from a plain list of `{name, description, inputs, outputs}`, or from function
schemas. Names are unique, so that a plan that passes `check_plan` cannot call a tool that was made
up. `dag.py` has the plans themselves, `data/workflows.py` reads workflows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import AliasChoices, BeforeValidator, Field, TypeAdapter

from tutelage.errors import DataError, counted
from tutelage.orchestration.data.rows import AsText, read_as, read_json, without_nulls
from tutelage.orchestration.plan.dag import Plan
from tutelage.tools.loading import hint


def _types(found: Any) -> tuple[str, ...]:
    """Types as a file has them: names, parameters, or a JSON schema."""
    if isinstance(found, Mapping):
        fields = cast("Mapping[str, Any]", found)
        found = list(cast("Mapping[str, Any]", fields.get("properties", fields)).values())
    if not isinstance(found, (list, tuple)):
        raise ValueError("give a list of types")
    entries = [
        cast("Mapping[str, Any]", entry).get("type", "any") if isinstance(entry, Mapping) else entry
        for entry in cast("Sequence[Any]", found)
    ]
    return tuple(str(entry) for entry in entries)


_Types = Annotated[tuple[str, ...], BeforeValidator(_types)]


@dataclass(frozen=True, slots=True)
class CatalogTool:
    """One tool: its name, what it does, and the types it takes and gives."""

    name: Annotated[str, Field(pattern=r"\S", validation_alias=AliasChoices("id", "name"))]
    description: Annotated[AsText, Field(validation_alias=AliasChoices("desc", "description"))] = ""
    inputs: Annotated[
        _Types, Field(validation_alias=AliasChoices("inputs", "input-type", "parameters"))
    ] = ()
    outputs: Annotated[_Types, Field(validation_alias=AliasChoices("outputs", "output-type"))] = ()
    kind: AsText = ""
    """What its worker must be able to do, such as `audio`; empty where the file does not say."""
    schema: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The JSON schema of its arguments; empty where it is not known."""

    def to_row(self) -> dict[str, Any]:
        """It as `read_catalog` reads it, without what it does not say."""
        row = {name: getattr(self, name) for name in ("inputs", "outputs", "kind", "schema")}
        said = {name: value for name, value in row.items() if value}
        return {"name": self.name, "description": self.description, **said}


@dataclass(frozen=True)
class Catalog:
    """Tools by unique name, in the order given. Raises `DataError` when empty or ambiguous."""

    tools: tuple[CatalogTool, ...]
    _index: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.tools:
            raise DataError("the catalog is empty; a plan needs at least one tool")
        index: dict[str, int] = {}
        for place, tool in enumerate(self.tools):
            if index.setdefault(tool.name, place) != place:
                raise DataError(f"the catalog has two tools named {tool.name!r}; rename one")
        object.__setattr__(self, "_index", index)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __len__(self) -> int:
        return len(self.tools)

    def __getitem__(self, name: str) -> CatalogTool:
        """The tool of that name. Raises `DataError` with the nearest name when there is none."""
        return self.tools[self.index(name)]

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the order of the catalog: what an index into it means."""
        return tuple(self._index)

    def index(self, name: str) -> int:
        """Where the tool of that name stands. Raises `DataError` as a lookup does."""
        if name not in self._index:
            has = counted(len(self.tools), "tool")
            raise DataError(f"the catalog of {has} has no tool {name!r}{hint(name, self._index)}")
        return self._index[name]


def check_plan(plan: Plan, catalog: Catalog) -> None:
    """Raise `DataError`, naming the node, when a `Plan` uses a tool that the catalog lacks."""
    for index, node in enumerate(plan.nodes):
        try:
            catalog[node.tool]
        except DataError as error:
            raise DataError(f"node {index}: {error}") from error


def read_catalog(path: str | Path) -> Catalog:
    """Read a file of tools. Raises `DataError` with file, tool and field."""
    rows = read_json(path)
    if isinstance(rows, Mapping):
        document = cast("Mapping[str, Any]", rows)
        rows = document.get("nodes", document.get("tools"))
    if not isinstance(rows, list):
        raise DataError(
            f"{str(path)!r} is no catalog; it needs a list of tools, or an object with a list "
            f"under 'nodes' or 'tools'"
        )
    try:
        return Catalog(tools_of(cast("list[Any]", rows)))
    except DataError as error:
        raise DataError(f"{str(path)!r}: {error}") from error


def tools_of(rows: Iterable[Any]) -> tuple[CatalogTool, ...]:
    """Return the tools of a list of descriptions, or of functions' schemas. Raises `DataError` with
    the number of the tool."""
    tools: list[CatalogTool] = []
    for index, row in enumerate(rows):
        function = row.get("function", row) if isinstance(row, dict) else row
        tools.append(read_as(_TOOL, without_nulls(function), f"tool {index}"))
    return tuple(tools)


_TOOL = TypeAdapter(CatalogTool)
