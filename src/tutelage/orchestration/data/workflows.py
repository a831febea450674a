"""Workflows: plans with labels of their execution, their tool catalog, and readers of their files.

The nodes of a `Workflow` are in topological order, so that a planner can decode them from left to
right. A workflow file has rows of the specified training set (`instruction`, `targets`,
`rewards`) or lines of an execution log. `rows.py` reads the JSON, `synthetic.py` generates
workflows, `prepare.py` makes training sets from logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, AliasPath, Field, TypeAdapter, model_validator

from tutelage.errors import DataError, pluralize
from tutelage.orchestration.data.rows import (
    AsText,
    FileRecord,
    Number,
    Whole,
    objects,
    read_as,
    read_rows,
)
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool, check_plan
from tutelage.orchestration.plan.dag import Node, Plan, parent_lists

_TEXTS = 3
"""Maximum number of subtask descriptions that replace a missing tool description."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """Training example: a plan in topological order, optionally with workers and rewards."""

    plan: Plan
    workers: tuple[int | str, ...] | None = None
    """Worker of each node, by index or name; None if no workers were chosen."""
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    """`success`, `cost` and `latency`; cost and latency are negative, as in the specification."""
    name: str = ""
    """Identifier of the row; empty if it has none."""

    @property
    def instruction(self) -> str:
        """Instruction of the plan."""
        return self.plan.instruction

    @property
    def tools(self) -> tuple[str, ...]:
        """Tool name of each subtask."""
        return tuple(node.tool for node in self.plan.nodes)

    def to_row(self, catalog: Catalog) -> dict[str, Any]:
        """Convert the workflow to a row of a training set, with tools as catalog indices."""
        row: dict[str, Any] = {
            "instruction": self.instruction,
            "targets": {
                "task_types": [catalog.index(tool) for tool in self.tools],
                "dependencies": [list(parents) for parents in self.plan.dependencies],
            },
        }
        if self.workers is not None:
            row["targets"]["model_selections"] = list(self.workers)
        if self.rewards:
            row["rewards"] = dict(self.rewards)
        if self.name:
            row["id"] = self.name
        return row


def sort_workflow(
    instruction: str,
    tools: Sequence[str],
    parents: Sequence[Iterable[int]],
    workers: Sequence[int | str] | None = None,
    descriptions: Sequence[str] = (),
    rewards: Mapping[str, float] | None = None,
    name: str = "",
) -> Workflow:
    """Create a workflow with its nodes in topological order (among ready nodes, the lowest index is
    first). Raises `DataError` for cycles and unknown parents."""
    texts = descriptions if len(descriptions) == len(tools) else [""] * len(tools)
    after = [tuple(sorted({*before})) for before in parents]
    given = [Node(t, after=a, description=d) for t, a, d in zip(tools, after, texts, strict=True)]
    waiting = dict(enumerate(Plan(instruction, tuple(given)).dependencies))
    place: dict[int, int] = {}
    while waiting:
        node = next(n for n, before in waiting.items() if place.keys() >= {*before})
        del waiting[node]
        place[node] = len(place)
    nodes = tuple(
        replace(given[node], after=tuple(sorted(place[p] for p in after[node]))) for node in place
    )
    chosen = None if workers is None else tuple(workers[node] for node in place)
    return Workflow(Plan(instruction, nodes), chosen, dict(rewards or {}), name)


def build_catalog(workflows: Iterable[Workflow]) -> Catalog:
    """Create a catalog of the tools in the workflows, sorted by name. A tool is described by the
    first subtasks that use it."""
    texts: dict[str, list[str]] = {}
    for workflow in workflows:
        for node in workflow.plan.nodes:
            seen = texts.setdefault(node.tool, [])
            if node.description and len(seen) < _TEXTS:
                seen.append(node.description)
    return Catalog(tuple(CatalogTool(name, " ".join(texts[name])) for name in sorted(texts)))


# ------------------------------------------------------------------ files


_NameOrNumber = Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=r"\S")]
_Matrix = Annotated[list[list[Any]], AfterValidator(parent_lists)]
"""Adjacency matrix, converted to the parents of each subtask."""


class _PlanRecord(FileRecord):
    """Plan in a training set or log, with its graph in `dependencies` or `workflow_graph`."""

    task_types: list[_NameOrNumber]
    dependencies: list[list[Whole]] | None = None
    adjacency: Annotated[
        _Matrix | None, Field(validation_alias=AliasPath("workflow_graph", "adjacency"))
    ] = None
    model_selections: list[_NameOrNumber] | None = None
    subtasks: Sequence[str] = ()

    @property
    def parents(self) -> Sequence[Sequence[int]]:
        """Parents of each subtask."""
        found = self.adjacency if self.dependencies is None else self.dependencies
        if found is None:
            raise ValueError(
                "'dependencies' is missing; it lists the parents of each subtask, such as [[], [0]]"
            )
        return found

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        count = len(self.task_types)
        listings = {"model_selections": self.model_selections, "dependencies": self.parents}
        for name, listed in listings.items():
            if listed is not None and len(listed) != count:
                raise ValueError(f"{name!r} must have length {count}, got {len(listed)}")
        return self


class _Row(FileRecord):
    """Row of a training set (with `targets`), or line of an execution log."""

    instruction: Annotated[str, Field(pattern=r"\S")]
    id: AsText = ""
    targets: _PlanRecord | None = None
    rewards: Mapping[str, Number] = {}
    planner_outputs: _PlanRecord | None = None
    success: Any = None
    cost: Number | None = None
    latency_ms: Number | None = None
    workers: Sequence[str] = ()

    @model_validator(mode="before")
    @classmethod
    def _add_types(cls, row: Any) -> Any:
        """Copy the task types from `nodes` if they are missing in the planner outputs."""
        outputs = row.get("planner_outputs")
        if not isinstance(outputs, Mapping) or outputs.get("task_types") is not None:
            return row
        types = [node.get("type") for node in objects(row.get("nodes"))]
        if not types or None in types:
            raise ValueError(
                "'planner_outputs' has no 'task_types' and 'nodes' have no 'type'; log the Plan "
                "itself, log_execution(planner_outputs=plan), or add task_types, the tool names"
            )
        return {**row, "planner_outputs": {**outputs, "task_types": types}}


_ROW = TypeAdapter(_Row)


def read_workflows(path: str | Path, catalog: Catalog | None = None) -> list[Workflow]:
    """Read the workflows of a file. If a catalog is passed, it must contain their tools.

    Numeric task types are indices into the catalog. Raises `DataError` with the file, the row and
    the field.
    """
    workflows: list[Workflow] = []
    for index, row in enumerate(read_rows(path)):
        try:
            workflows.append(parse_workflow(row, catalog))
        except DataError as error:
            raise DataError(f"{str(path)!r}, row {index}: {error}") from error
    return workflows


def parse_workflow(row: Mapping[str, Any], catalog: Catalog | None = None) -> Workflow:
    """Parse a row of a training set or log. Cost and latency of a log become negative rewards.
    Raises `DataError` with the invalid field."""
    if not row.keys() & {"targets", "planner_outputs"}:
        raise DataError(
            "not a workflow: expected the field 'targets' (a training set) or 'planner_outputs' "
            f"(an execution log), got {sorted(row)}"
        )
    made = read_as(_ROW, row)
    plan, rewards = made.targets or made.planner_outputs, dict(made.rewards)
    if plan is None:
        raise DataError("the plan of the workflow is null")
    workers = plan.model_selections
    if made.targets is None:
        rewards = {"success": float(bool(made.success))}
        if made.cost is not None:
            rewards["cost"] = -made.cost
        if made.latency_ms is not None:
            rewards["latency"] = -made.latency_ms / 1000.0
        if workers is not None and made.workers:
            try:
                workers = [w if isinstance(w, str) else made.workers[w] for w in workers]
            except IndexError as error:
                message = f"'model_selections' {workers} has no match in {made.workers}"
                raise DataError(message) from error
    if not plan.task_types:
        raise DataError("the workflow has no subtasks; add at least one")
    tools: list[str] = []
    for index, named in enumerate(plan.task_types):
        tool = str(named) if isinstance(named, str) else f"type {named}"
        if isinstance(named, int) and catalog is not None:
            if named >= len(catalog):
                has = f"the catalog has {pluralize(len(catalog), 'tool')}, numbered from 0"
                raise DataError(f"task_types[{index}] is {named}, but {has}")
            tool = catalog.names[named]
        tools.append(tool)
    workflow = sort_workflow(
        made.instruction, tools, plan.parents, workers, plan.subtasks, rewards, made.id
    )
    if catalog is not None:
        check_plan(workflow.plan, catalog)
    return workflow
