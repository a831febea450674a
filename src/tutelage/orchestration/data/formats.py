"""Files of workflows: what is read, and as what, decided by their content and not by their name.

Four kinds of row are known. `document`: the training set (`instruction`, `targets`, `rewards`).
`log`: one line of an execution log. `taskbench`: `tool_nodes` or `task_nodes` with links by tool
name. `nestful`: a list of calls whose arguments refer to each other as `$var1.field$`. Each becomes
a `Workflow` whose nodes stand in an order in which every parent comes first, so that a planner may
decode them from left to right. `rows.py` reads the JSON, `row_fields.py` has the rows; `prepare.py`
makes training sets of logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from tutelage.errors import DataError
from tutelage.orchestration.data.row_fields import NODE_KEYS, Kind, read_example
from tutelage.orchestration.data.rows import opened, read_rows
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool, tools_of
from tutelage.orchestration.plan.dag import Node, Plan


@dataclass(frozen=True, slots=True)
class Workflow:
    """One example: a plan whose edges all point forward, and what is known about its execution."""

    plan: Plan
    workers: tuple[int | str, ...] | None = None
    """The worker of each node, by index or by name; None where nobody chose."""
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    """`success`, `cost`, `latency` as the document writes them: costs are negative."""
    name: str = ""
    """The row's own identifier, empty without one."""

    @property
    def instruction(self) -> str:
        """What was asked for."""
        return self.plan.instruction

    @property
    def tools(self) -> tuple[str, ...]:
        """The type of each subtask, by the name of its tool."""
        return tuple(node.tool for node in self.plan.nodes)

    @property
    def shape(self) -> Literal["single", "chain", "dag"]:
        """One node; each node waiting for exactly the one before it; anything else."""
        parents = self.plan.dependencies
        if len(parents) == 1:
            return "single"
        straight = tuple((i - 1,) if i else () for i in range(len(parents)))
        return "chain" if parents == straight else "dag"


def sniff(row: Mapping[str, Any]) -> Kind:
    """Which kind of row this is. Raises `DataError` with what it lacks."""
    if "targets" in row:
        return "document"
    if "planner_outputs" in row:
        return "log"
    if any(key in row for key in NODE_KEYS):
        return "taskbench"
    calls = opened(row.get("output", row.get("calls")))
    if isinstance(calls, list):
        return "nestful"
    raise DataError(
        f"it is no workflow: it has {sorted(row)}; needed is 'targets' (a training set), "
        f"'planner_outputs' (an execution log), 'tool_nodes' or 'task_nodes' (TaskBench), or "
        f"'output' with a list of calls (NESTFUL)"
    )


def read_workflows(path: str | Path, catalog: Catalog | None = None) -> list[Workflow]:
    """All workflows of a file. With a catalog, a tool that it lacks is refused.

    Types given by number need the catalog: they are places in it. Raises `DataError` with the file,
    the row and the field.
    """
    found: list[Workflow] = []
    for index, row in enumerate(read_rows(path)):
        try:
            found.append(workflow_of(row, catalog))
        except DataError as error:
            called = f" ({row['id']!r})" if "id" in row else ""
            raise DataError(f"{str(path)!r}, row {index}{called}: {error}") from error
    return found


def workflow_of(row: Mapping[str, Any], catalog: Catalog | None = None) -> Workflow:
    """The workflow of one row of any kind. Raises `DataError` with the field."""
    made = sorted_workflow(*read_example(sniff(row), row, catalog))
    if not made.plan.nodes:
        raise DataError("the workflow has no subtask; an example needs at least one")
    if catalog is not None:
        for index, tool in enumerate(made.tools):
            try:
                catalog[tool]
            except DataError as error:
                raise DataError(f"subtask {index}: {error}") from error
    return made


def sorted_workflow(
    instruction: str,
    tools: Sequence[str],
    parents: Sequence[Iterable[int]],
    workers: Sequence[int | str] | None = None,
    descriptions: Sequence[str] = (),
    rewards: Mapping[str, float] | None = None,
    name: str = "",
) -> Workflow:
    """A workflow with its nodes brought into the order in which each parent stands before its
    children, the given order kept where it can be. Raises `DataError` for cycles and dangling
    parents.
    """
    if descriptions and len(descriptions) != len(tools):
        descriptions = ()
    given = Plan(
        instruction, tuple(Node(t, {}, _ints(p)) for t, p in zip(tools, parents, strict=True))
    )
    order = forward_order(given.dependencies)
    place = {node: i for i, node in enumerate(order)}
    nodes = tuple(
        Node(
            tools[node],
            after=tuple(sorted(place[p] for p in given.dependencies[node])),
            description=descriptions[node] if descriptions else "",
        )
        for node in order
    )
    chosen = None if workers is None else tuple(workers[node] for node in order)
    return Workflow(Plan(instruction, nodes), chosen, dict(rewards or {}), name)


def forward_order(dependencies: Sequence[Sequence[int]]) -> list[int]:
    """The order that always takes the first node whose parents are done."""
    waiting = list(range(len(dependencies)))
    done: set[int] = set()
    order: list[int] = []
    while waiting:
        node = next(n for n in waiting if done.issuperset(dependencies[n]))
        waiting.remove(node)
        done.add(node)
        order.append(node)
    return order


def _ints(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(sorted({int(v) for v in values}))


def catalog_of(workflows: Iterable[Workflow], rows: Iterable[Mapping[str, Any]] = ()) -> Catalog:
    """A catalog of the tools that workflows use, sorted; rows with `tools` describe them.

    A tool nobody describes gets the descriptions of the first subtasks that used it.
    """
    told: dict[str, CatalogTool] = {}
    for row in rows:
        listed = opened(row.get("tools"))
        if isinstance(listed, list) and all(
            isinstance(t, Mapping) for t in cast("list[Any]", listed)
        ):
            for tool in tools_of(cast("list[Any]", listed)):
                told.setdefault(tool.name, tool)
    texts: dict[str, list[str]] = {}
    for workflow in workflows:
        for node in workflow.plan.nodes:
            seen = texts.setdefault(node.tool, [])
            if node.description and len(seen) < _TEXTS:
                seen.append(node.description)
    return Catalog(
        tuple(
            told.get(name) or CatalogTool(name, " ".join(texts.get(name, ())))
            for name in sorted({*texts, *told})
        )
    )


_TEXTS = 3


def to_row(workflow: Workflow, catalog: Catalog) -> dict[str, Any]:
    """The workflow as one row of the document's training set; types are places in the catalog."""
    row: dict[str, Any] = {
        "instruction": workflow.instruction,
        "targets": {
            "task_types": [catalog.index(tool) for tool in workflow.tools],
            "dependencies": [list(parents) for parents in workflow.plan.dependencies],
        },
    }
    if workflow.workers is not None:
        row["targets"]["model_selections"] = list(workflow.workers)
    if workflow.rewards:
        row["rewards"] = dict(workflow.rewards)
    if workflow.name:
        row["id"] = workflow.name
    return row
