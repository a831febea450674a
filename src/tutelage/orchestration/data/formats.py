"""Files of workflows: what is read, and as what, decided by their content and not by their name.

Two kinds of row are known, each a class: what a row must have, under which keys, and what its
values may look like. `_Document` is one of the training set (`instruction`, `targets`, `rewards`),
`_Log` one line of an execution log. `rows.py` reads the JSON; `prepare.py` makes training sets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationInfo,
    model_validator,
)

from tutelage.errors import DataError, counted
from tutelage.orchestration.data.rows import (
    AsText,
    FileRecord,
    Number,
    Opened,
    Texts,
    Whole,
    objects,
    read_as,
    read_rows,
    spelled,
)
from tutelage.orchestration.data.workflows import (
    Workflow,
    forward_order,
    sorted_workflow,
)
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import dependencies_of, references

TRIED = ("node", "worker", "passed", "correct", "verdict", "cost", "latency")


def _name_or_number(noun: str, value: Any) -> int | str:
    if isinstance(value, str) and value.strip():
        return value
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    if numeric and cast("float", value) >= 0 and cast("float", value) % 1 == 0:
        return int(value)
    raise ValueError(f"{noun} is a name or a number from 0")


def _task_type(value: Any, info: ValidationInfo) -> str:
    """A name, or the place of one in the catalog, which is the context of reading."""
    found, catalog = _name_or_number("a task type", value), cast("Catalog | None", info.context)
    if isinstance(found, str):
        return found
    if catalog is not None and found >= len(catalog):
        has = counted(len(catalog), "tool")
        raise ValueError(f"the catalog has {has}, numbered from 0")
    return f"type {found}" if catalog is None else catalog.names[found]


_TaskTypes = Annotated[list[Annotated[str, PlainValidator(_task_type)]], Opened]
_Worker = Annotated[int | str, PlainValidator(partial(_name_or_number, "a worker"))]
_Workers = Annotated[list[_Worker], Opened]
_Matrix = Annotated[list[list[Any]], Opened, AfterValidator(dependencies_of)]
"""An adjacency matrix, read as the parents of each subtask."""


class _Asked(FileRecord):
    """What every kind of row has."""

    instruction: Annotated[str, Field(pattern=r"\S")]
    id: AsText = ""


class _Graph(FileRecord):
    """The dependencies in a log."""

    adjacency: _Matrix


class _PlanRecord(FileRecord):
    """A plan as training sets and logs have it; its parents stand in one of three places."""

    task_types: _TaskTypes
    dependencies: Annotated[list[Annotated[list[Whole], Opened]], Opened] | None = None
    adjacency: _Matrix | None = None
    workflow_graph: Annotated[_Graph, Opened] | None = None
    model_selections: _Workers | None = None
    subtasks: Texts = ()
    arguments: Annotated[Sequence[Annotated[Mapping[str, Any], Opened]], Opened] = ()

    @property
    def parents(self) -> Sequence[Sequence[int]] | None:
        """The subtasks that each subtask waits for, those that its arguments name among them."""
        graph = None if self.workflow_graph is None else self.workflow_graph.adjacency
        items = graph if self.adjacency is None else self.adjacency
        found = items if self.dependencies is None else self.dependencies
        if found is None or len(self.arguments) != len(found):
            return found
        named = zip(found, self.arguments, strict=True)
        return [sorted({*before, *references(used)}) for before, used in named]

    @model_validator(mode="before")
    @classmethod
    def _spelled(cls, row: Any) -> Any:
        return spelled(row, cls.model_fields, ("dependencies", "adjacency", "workflow_graph"))

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        if self.parents is None:
            raise ValueError(
                "'dependencies' is missing; it lists the parents of each subtask, such as [[], [0]]"
            )
        count = len(self.task_types)
        listings = {"dependencies": self.parents, "model_selections": self.model_selections}
        for name, listed in {**listings, "arguments": self.arguments or None}.items():
            if listed is not None and len(listed) != count:
                told = counted(count, "subtask")
                raise ValueError(f"{name!r} has the length {len(listed)} for {told}; give one each")
        return self


class _Document(_Asked):
    """One row of the document's training set."""

    targets: Annotated[_PlanRecord, Opened]
    rewards: Mapping[str, Number] = {}
    subtasks: Texts = ()

    def workflow(self) -> Workflow:
        plan = self.targets
        texts = plan.subtasks or self.subtasks
        return sorted_workflow(self.instruction, plan.task_types, plan.parents or (),
                               plan.model_selections, texts, self.rewards, self.id,
                               plan.arguments)  # fmt: skip


class _Try(FileRecord):
    """A worker that was asked to do a node, in the run itself or beside it."""

    _known = model_validator(mode="before")(partial(spelled, known=TRIED, what="a try", wide=False))
    node: int | None = None
    worker: int | str | None = None
    passed: Any = None
    correct: Any = None
    cost: float = 0.0


class _Log(_Asked):
    """One line of an execution log; its costs become rewards, which are negative."""

    planner_outputs: Annotated[_PlanRecord, Opened]
    success: Any = None
    cost: Number | None = None
    latency_ms: Number | None = None
    workers: Annotated[Any, Opened] = None
    nodes: Annotated[Sequence[Mapping[str, Any]], BeforeValidator(objects)] = ()
    tries: Sequence[_Try] = ()
    alternatives: Sequence[_Try] = ()

    @model_validator(mode="before")
    @classmethod
    def _typed(cls, row: Any) -> Any:
        """Takes the types of the subtasks from `nodes` where the planner's outputs have none."""
        known = ("success", "cost", "latency_ms", "workers", "nodes", "tries", "alternatives")
        fields, outputs = spelled(row, known, what="the line", wide=False), row["planner_outputs"]
        if not isinstance(outputs, Mapping) or outputs.get("task_types") is not None:
            return row
        types = [node.get("type") for node in objects(fields.get("nodes"))]
        if not types or None in types:
            raise ValueError(
                "'planner_outputs' has no 'task_types', nor 'nodes' a 'type': log the Plan itself, "
                "log_execution(planner_outputs=plan), or add task_types, the tools by name"
            )
        return {**fields, "planner_outputs": {**outputs, "task_types": types}}

    def workflow(self) -> Workflow:
        return self._whole().without(self._lost, self._order)

    def _whole(self) -> Workflow:
        rewards = {"success": float(bool(self.success))}
        if self.cost is not None:
            rewards["cost"] = -self.cost
        if self.latency_ms is not None:
            rewards["latency"] = -self.latency_ms / 1000.0
        plan = self.planner_outputs
        return sorted_workflow(self.instruction, plan.task_types, plan.parents or (),
                               self._chosen(), plan.subtasks, rewards, self.id,
                               plan.arguments)  # fmt: skip

    @property
    def _order(self) -> Sequence[int]:
        return forward_order(self.planner_outputs.parents or ())

    @property
    def _lost(self) -> set[int]:
        """Places of nodes that failed in what succeeded: a further plan took theirs."""
        told = ("failed", "skipped", "cancelled") if self.success else ()
        lost = [node.get("node") for node in self.nodes if node.get("status") in told]
        return {place for place, k in enumerate(self._order) if k in lost}

    def labelled(self) -> tuple[Workflow, int]:
        """The workflow, with cheaper workers in place of those that did it where the line knows
        them to have passed; and how many those are."""
        workflow, lost, order = self._whole(), self._lost, self._order
        if workflow.workers is None:
            return workflow.without(lost, order), 0
        prices = {step.node: step.cost for step in self.tries if step.passed}
        chosen, changed = list(workflow.workers), set[int]()
        for other in self.alternatives:
            if not other.passed or other.correct is False or other.worker is None:
                continue
            if other.node not in order:
                raise DataError(f"'alternatives' has node {other.node!r}, which the plan lacks")
            if other.cost < prices.get(other.node, math.inf):
                prices[other.node] = other.cost
                place = order.index(other.node)
                chosen[place] = other.worker
                changed.add(place)
        return replace(workflow, workers=tuple(chosen)).without(lost, order), len(changed - lost)

    def _chosen(self) -> list[int | str] | None:
        """Workers that are given by number are places in the line's `workers`."""
        items, names = self.planner_outputs.model_selections, self.workers
        if items is None or not isinstance(names, list) or not names:
            return items
        known = [str(name) for name in cast("list[Any]", names)]
        try:
            return [worker if isinstance(worker, str) else known[worker] for worker in items]
        except IndexError as error:
            raise DataError(
                f"'planner_outputs.model_selections' is {items}, and the line's 'workers' are "
                f"{len(known)}"
            ) from error


_KINDS: Mapping[str, TypeAdapter[Any]] = {
    "targets": TypeAdapter(_Document),
    "planner_outputs": TypeAdapter(_Log),
}
"""What reads a row, by the first of these keys that it has."""


def _kind(row: Mapping[str, Any]) -> TypeAdapter[Any]:
    """What reads this row. Raises `DataError` with what it lacks."""
    key = next((key for key in _KINDS if key in row), None)
    if key is None:
        raise DataError(
            f"it is no workflow: it has {sorted(row)}; needed is 'targets' (a training set) or "
            "'planner_outputs' (an execution log)"
        )
    return _KINDS[key]


def read_workflows(
    path: str | Path, catalog: Catalog | None = None, *, strict: bool = True
) -> list[Workflow]:
    """All workflows of a file. With a catalog, a tool that it lacks is refused if `strict`.

    Types given by number need the catalog: they are places in it. Raises `DataError` with the file,
    the row and the field.
    """
    workflows: list[Workflow] = []
    for index, row in enumerate(read_rows(path)):
        try:
            workflows.append(workflow_of(row, catalog, strict=strict))
        except DataError as error:
            called = f" ({row['id']!r})" if "id" in row else ""
            raise DataError(f"{str(path)!r}, row {index}{called}: {error}") from error
    return workflows


def workflow_of(
    row: Mapping[str, Any], catalog: Catalog | None = None, *, strict: bool = True
) -> Workflow:
    """The workflow of one row of any kind. Raises `DataError` with the field."""
    workflow = read_as(_kind(row), row, context=catalog).workflow()
    return _known(workflow, catalog if strict else None)


def labelled(row: Mapping[str, Any], catalog: Catalog | None = None) -> tuple[Workflow, int]:
    """The workflow of a line of a log, its workers the cheapest that are known to have done it, and
    how many of them took another's place."""
    workflow, changed = read_as(_KINDS["planner_outputs"], row, context=catalog).labelled()
    return _known(workflow, catalog), changed


def _known(workflow: Workflow, catalog: Catalog | None) -> Workflow:
    """The workflow. Raises `DataError` without subtasks, and for a tool that the catalog lacks."""
    if not workflow.plan.nodes:
        raise DataError("the workflow has no subtask; an example needs at least one")
    for index, tool in enumerate(workflow.tools if catalog is not None else ()):
        try:
            cast("Catalog", catalog)[tool]
        except DataError as error:
            raise DataError(f"subtask {index}: {error}") from error
    return workflow
