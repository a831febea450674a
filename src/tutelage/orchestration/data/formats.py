"""Files of workflows: what is read, and as what, decided by their content and not by their name.

Four kinds of row are known. `document`: the training set (`instruction`, `targets`, `rewards`).
`log`: one line of an execution log. `taskbench`: `tool_nodes` or `task_nodes` with links by tool
name. `nestful`: a list of calls whose arguments refer to each other as `$var1.field$`. Each becomes
a `Workflow` whose nodes stand in an order in which every parent comes first, so that a planner may
decode them from left to right. `rows.py` reads the JSON, `row_fields.py` the fields; `prepare.py`
makes training sets of logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from tutelage.errors import DataError
from tutelage.orchestration.data.row_fields import (
    identifier_of,
    instruction_of,
    labelled,
    link_indices,
    links_of,
    list_of,
    mapping_of,
    parents_of,
    rewards_of,
    texts_of,
    tool_named,
    variables,
    worker_called,
    workers_of,
)
from tutelage.orchestration.data.rows import opened, read_rows
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool, tools_of
from tutelage.orchestration.plan.dag import Node, Plan, dependencies_of, references

Kind = Literal["document", "log", "taskbench", "nestful"]

NODE_KEYS = ("tool_nodes", "task_nodes", "nodes")
LINK_KEYS = ("tool_links", "task_links", "links")
STEP_KEYS = ("tool_steps", "task_steps", "steps")
TOOL_KEYS = ("task", "tool", "name", "id")
RESULT_CALL = "var_result"
"""NESTFUL's last entry, which collects answers and calls nothing."""


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
    made = _READERS[sniff(row)](row, catalog)
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
    *,
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


# ------------------------------------------------------------------ kinds of row


def _document(row: Mapping[str, Any], catalog: Catalog | None) -> Workflow:
    targets = mapping_of(row["targets"], "targets")
    if "task_types" not in targets:
        raise DataError("'targets.task_types' is missing; it lists the type of each subtask")
    types = list_of(targets["task_types"], "targets.task_types")
    tools = [tool_named(v, catalog, f"'targets.task_types[{i}]'") for i, v in enumerate(types)]
    count = len(tools)
    if targets.get("dependencies") is not None:
        parents = parents_of(targets["dependencies"], count, "targets.dependencies")
    elif targets.get("adjacency") is not None:
        parents = list(dependencies_of(list_of(targets["adjacency"], "targets.adjacency")))
    else:
        raise DataError(
            "'targets.dependencies' is missing; it lists the parents of each subtask, such as "
            "[[], [0]]"
        )
    return sorted_workflow(
        instruction_of(row),
        tools,
        parents,
        workers=workers_of(targets.get("model_selections"), count, "targets.model_selections"),
        descriptions=texts_of(targets.get("subtasks", row.get("subtasks"))),
        rewards=rewards_of(row.get("rewards")),
        name=identifier_of(row),
    )


def _log(row: Mapping[str, Any], catalog: Catalog | None) -> Workflow:
    outputs = mapping_of(row["planner_outputs"], "planner_outputs")
    types = outputs.get("task_types")
    if types is None:
        raise DataError(
            "'planner_outputs.task_types' is missing; without the subtasks' types a log line "
            "cannot be learned from"
        )
    listed = list_of(types, "planner_outputs.task_types")
    names = [
        tool_named(v, catalog, f"'planner_outputs.task_types[{i}]'") for i, v in enumerate(listed)
    ]
    graph = mapping_of(outputs.get("workflow_graph", {}), "planner_outputs.workflow_graph")
    matrix = list_of(graph.get("adjacency"), "planner_outputs.workflow_graph.adjacency")
    parents = dependencies_of(matrix)
    if len(parents) != len(names):
        raise DataError(f"the adjacency is for {len(parents)} subtasks, and there are {len(names)}")
    key = "planner_outputs.model_selections"
    workers = workers_of(outputs.get("model_selections"), len(names), key)
    known = opened(row.get("workers"))
    if workers is not None and isinstance(known, list) and known:
        workers = tuple(worker_called(worker, cast("list[Any]", known), key) for worker in workers)
    cost, latency = row.get("cost"), row.get("latency_ms")
    return sorted_workflow(
        instruction_of(row),
        names,
        parents,
        workers=workers,
        descriptions=texts_of(outputs.get("subtasks")),
        rewards=rewards_of(
            {
                "success": float(bool(row.get("success"))),
                **({} if cost is None else {"cost": -cost}),
                **({} if latency is None else {"latency": -latency / 1000.0}),
            }
        ),
        name=identifier_of(row),
    )


def _taskbench(row: Mapping[str, Any], catalog: Catalog | None) -> Workflow:
    key = next(key for key in NODE_KEYS if key in row)
    tools: list[str] = []
    parents: list[set[int]] = []
    for index, node in enumerate(list_of(row[key], key)):
        node = node if isinstance(node, Mapping) else {"task": node}
        entry = cast("Mapping[str, Any]", node)
        name = next((entry[k] for k in TOOL_KEYS if isinstance(entry.get(k), str)), None)
        if name is None:
            raise DataError(f"'{key}[{index}]' is {node!r}; it needs the tool's name under 'task'")
        tools.append(name)
        parents.append({p for p in references(opened(entry.get("arguments"))) if p != index})
    link_key = next((k for k in LINK_KEYS if k in row), LINK_KEYS[0])
    links = links_of(opened(row.get(link_key)) or [], link_key)
    for source, target in link_indices(tools, links, link_key):
        parents[target].add(source)
    return sorted_workflow(
        instruction_of(row),
        tools,
        parents,
        descriptions=texts_of(next((row[k] for k in STEP_KEYS if k in row), None)),
        name=identifier_of(row),
    )


def _nestful(row: Mapping[str, Any], catalog: Catalog | None) -> Workflow:
    calls = list_of(row.get("output", row.get("calls")), "output")
    tools: list[str] = []
    labels: list[str] = []
    named: list[list[str]] = []
    for index, call in enumerate(calls):
        entry = mapping_of(call, f"output[{index}]")
        name = entry.get("name")
        if not isinstance(name, str) or not name:
            raise DataError(f"'output[{index}].name' is {name!r}; it must name a tool")
        if name == RESULT_CALL:
            continue
        labels.append(str(entry.get("label") or f"var{index + 1}").strip("$"))
        named.append(variables(entry.get("arguments")))
        tools.append(name)
    parents = [
        [labelled(label, node, labels, tools) for label in named[node]]
        for node in range(len(tools))
    ]
    return sorted_workflow(instruction_of(row), tools, parents, name=identifier_of(row))


_READERS: Mapping[Kind, Callable[[Mapping[str, Any], Catalog | None], Workflow]] = {
    "document": _document,
    "log": _log,
    "taskbench": _taskbench,
    "nestful": _nestful,
}
