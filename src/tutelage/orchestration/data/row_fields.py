"""The four kinds of row that files of workflows have, as pydantic reads them.

Each is a class: what a row must have, under which keys, and what its values may look like (a list
or a list written as text, a number or a name). What cannot be is refused by the name of its key.
Links by tool name and the references of NESTFUL's arguments are resolved here too, so that all
kinds come to the same `_Example`; `formats.py` says which kind a row is and makes a workflow of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, Self, cast

from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationInfo,
    model_validator,
)

from tutelage.errors import DataError
from tutelage.orchestration.data.rows import AsText, Number, Opened, Row, Whole, opened, read_as
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import dependencies_of, references

Kind = Literal["document", "log", "taskbench", "nestful"]

INSTRUCTION_KEYS = ("instruction", "user_request", "request", "query", "question", "input")
NODE_KEYS = ("tool_nodes", "task_nodes", "nodes")
LINK_KEYS = ("tool_links", "task_links", "links")
STEP_KEYS = ("tool_steps", "task_steps", "steps")
TOOL_KEYS = ("task", "tool", "name", "id")
RESULT_CALL = "var_result"
"""NESTFUL's last entry, which collects answers and calls nothing."""

_VARIABLE = re.compile(r"\$(var[\w-]*?)(?:\.[^$]*|\[[^$]*)?\$")


class _Example(NamedTuple):
    """What a row says of a workflow, its nodes in the row's order."""

    instruction: str
    tools: Sequence[str]
    parents: Sequence[Iterable[int]]
    workers: Sequence[int | str] | None = None
    descriptions: Sequence[str] = ()
    rewards: Mapping[str, float] = {}
    name: str = ""
    """The row's own identifier."""


def read_example(kind: Kind, row: Mapping[str, Any], catalog: Catalog | None) -> _Example:
    """The example of a row of that kind. Raises `DataError` with the field and its value."""
    return read_as(_ROWS[kind], row, context=catalog).example()


def _whole(value: Any) -> int | None:
    """A whole number, given as one or as a float without a fraction; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value % 1:
        return None
    return int(value)


def _name_or_number(noun: str, value: Any) -> int | str:
    number = _whole(value)
    if number is not None and number >= 0:
        return number
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError(f"{noun} is a name or a number from 0")


def _task_type(value: Any, info: ValidationInfo) -> str:
    """A name, or the place of one in the catalog, which is the context of reading."""
    found, catalog = _name_or_number("a task type", value), cast("Catalog | None", info.context)
    if isinstance(found, str):
        return found
    if catalog is not None and found >= len(catalog):
        raise ValueError(f"the catalog has {len(catalog)} tools, numbered from 0")
    return f"type {found}" if catalog is None else catalog.names[found]


def _texts(value: Any) -> tuple[str, ...]:
    """Texts; what is none becomes empty, and so does what is no list."""
    value = opened(value)
    if not isinstance(value, list):
        return ()
    return tuple(text if isinstance(text, str) else "" for text in cast("list[Any]", value))


def _node(value: Any) -> Any:
    """A node that is only a name, and one that has it under another key."""
    row: Mapping[str, Any] = value if isinstance(value, Mapping) else {"task": value}
    name = next((row[key] for key in TOOL_KEYS if isinstance(row.get(key), str)), None)
    return {**row, "task": name}


def _link(value: Any) -> Any:
    """A link that is a list of two."""
    pair = cast("list[Any]", value)
    both = isinstance(value, list) and len(pair) == 2
    return dict(zip(("source", "target"), pair, strict=True)) if both else value


_TaskTypes = Annotated[list[Annotated[str, PlainValidator(_task_type)]], Opened]
_Worker = Annotated[int | str, PlainValidator(partial(_name_or_number, "a worker"))]
_Workers = Annotated[list[_Worker], Opened]
_Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
_Matrix = Annotated[list[list[Any]], Opened, AfterValidator(dependencies_of)]
"""An adjacency matrix, read as the parents of each subtask."""


class _Asked(Row):
    """What every kind of row has."""

    instruction: Annotated[str, Field(pattern=r"\S")] = Field(
        validation_alias=AliasChoices(*INSTRUCTION_KEYS)
    )
    id: AsText = ""


class _Graph(Row):
    """Who waits for whom in a log."""

    adjacency: _Matrix


class _Plan(Row):
    """A plan as training sets and logs have it; its parents stand in one of three places."""

    task_types: _TaskTypes
    dependencies: Annotated[list[Annotated[list[Whole], Opened]], Opened] | None = None
    adjacency: _Matrix | None = None
    workflow_graph: Annotated[_Graph, Opened] | None = None
    model_selections: _Workers | None = None
    subtasks: _Texts = ()

    @property
    def parents(self) -> Sequence[Sequence[int]] | None:
        """The subtasks that each subtask waits for."""
        graph = None if self.workflow_graph is None else self.workflow_graph.adjacency
        given = graph if self.adjacency is None else self.adjacency
        return given if self.dependencies is None else self.dependencies

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        if self.parents is None:
            raise ValueError(
                "'dependencies' is missing; it lists the parents of each subtask, such as [[], [0]]"
            )
        count = len(self.task_types)
        for name, listed in (
            ("dependencies", self.parents),
            ("model_selections", self.model_selections),
        ):
            if listed is not None and len(listed) != count:
                raise ValueError(
                    f"{name!r} has {len(listed)} entries for {count} subtasks; give one each"
                )
        return self


class _Document(_Asked):
    """One row of the document's training set."""

    targets: Annotated[_Plan, Opened]
    rewards: Mapping[str, Number] = {}
    subtasks: _Texts = ()

    def example(self) -> _Example:
        plan = self.targets
        texts = plan.subtasks or self.subtasks
        return _Example(self.instruction, plan.task_types, plan.parents or (),
                       plan.model_selections, texts, self.rewards, self.id)  # fmt: skip


class _Log(_Asked):
    """One line of an execution log; its costs become rewards, which are negative."""

    planner_outputs: Annotated[_Plan, Opened]
    success: Any = None
    cost: Number | None = None
    latency_ms: Number | None = None
    workers: Annotated[Any, Opened] = None

    def example(self) -> _Example:
        rewards = {"success": float(bool(self.success))}
        if self.cost is not None:
            rewards["cost"] = -self.cost
        if self.latency_ms is not None:
            rewards["latency"] = -self.latency_ms / 1000.0
        plan = self.planner_outputs
        return _Example(self.instruction, plan.task_types, plan.parents or (), self._chosen(),
                       plan.subtasks, rewards, self.id)  # fmt: skip

    def _chosen(self) -> list[int | str] | None:
        """Workers that are given by number are places in the line's `workers`."""
        given, names = self.planner_outputs.model_selections, self.workers
        if given is None or not isinstance(names, list) or not names:
            return given
        known = [str(name) for name in cast("list[Any]", names)]
        lost = [worker for worker in given if isinstance(worker, int) and worker >= len(known)]
        if lost:
            raise DataError(
                f"'planner_outputs.model_selections' holds {lost[0]}, and the line's 'workers' are "
                f"{len(known)}"
            )
        return [worker if isinstance(worker, str) else known[worker] for worker in given]


class _ToolNode(Row):
    task: str
    arguments: Annotated[Any, Opened] = None


class _Link(Row):
    source: Any
    target: Any


class _TaskBench(_Asked):
    """One row of TaskBench, of either of its forms; edges are references and links."""

    nodes: Annotated[list[Annotated[_ToolNode, BeforeValidator(_node)]], Opened] = Field(
        validation_alias=AliasChoices(*NODE_KEYS)
    )
    links: Annotated[list[Annotated[_Link, BeforeValidator(_link)]], Opened] = Field(
        [], validation_alias=AliasChoices(*LINK_KEYS)
    )
    steps: _Texts = Field((), validation_alias=AliasChoices(*STEP_KEYS))

    def example(self) -> _Example:
        tools = [node.task for node in self.nodes]
        parents = [{*references(node.arguments)} - {i} for i, node in enumerate(self.nodes)]
        for source, target in link_indices(tools, [(k.source, k.target) for k in self.links]):
            parents[target].add(source)
        return _Example(self.instruction, tools, parents, None, self.steps, {}, self.id)


class _Call(Row):
    name: Annotated[str, Field(min_length=1)]
    arguments: Any = None
    label: AsText = ""


class _Nestful(_Asked):
    """One row of NESTFUL: calls whose arguments refer to each other."""

    output: Annotated[list[_Call], Opened] = Field(validation_alias=AliasChoices("output", "calls"))

    def example(self) -> _Example:
        calls = [
            ((call.label or f"var{place}").strip("$"), call)
            for place, call in enumerate(self.output, 1)
            if call.name != RESULT_CALL
        ]
        labels, tools = [label for label, _ in calls], [call.name for _, call in calls]
        parents = [
            [_labelled(label, node, labels, tools) for label in _variables(call.arguments)]
            for node, (_, call) in enumerate(calls)
        ]
        return _Example(self.instruction, tools, parents, name=self.id)


_ROWS: Mapping[Kind, TypeAdapter[Any]] = {
    "document": TypeAdapter(_Document),
    "log": TypeAdapter(_Log),
    "taskbench": TypeAdapter(_TaskBench),
    "nestful": TypeAdapter(_Nestful),
}


def link_indices(tools: Sequence[str], links: Sequence[tuple[Any, Any]]) -> list[tuple[int, int]]:
    """Links by tool name (or node number) as pairs of node numbers.

    A tool that stands twice makes a name ambiguous. Where the links walk the list from node to node
    they are taken by their place; otherwise a link joins the nearest pair that stands in its order
    and is not joined yet. Raises `DataError` for a name that no node has.
    """
    steps = list(pairwise(tools))
    if list(links) == steps:
        return [(i, i + 1) for i in range(len(steps))]
    places: dict[str, list[int]] = {}
    for index, tool in enumerate(tools):
        places.setdefault(tool, []).append(index)
    found: list[tuple[int, int]] = []
    for number, (source, target) in enumerate(links):
        ends: list[list[int]] = []
        for side, end in (("source", source), ("target", target)):
            index = _whole(end)
            where = [index] if index is not None and 0 <= index < len(tools) else places.get(end)
            if not where:
                raise DataError(
                    f"the {side} of link {number} is {end!r}, and no node of the workflow is that; "
                    f"its nodes are {list(tools)}"
                )
            ends.append(where)
        pairs = [(i, j) for i in ends[0] for j in ends[1] if i != j or source == target]
        free = [pair for pair in pairs if pair not in found] or pairs
        found.append(min(free, key=lambda p: (p[0] >= p[1], abs(p[0] - p[1]), p)))
    return found


def _labelled(label: str, node: int, labels: Sequence[str], tools: Sequence[str]) -> int:
    """The call that a label means at `node`: the last one before it, as a variable that is set
    twice would, and only without one the first that comes later.
    """
    before = [i for i in range(node) if labels[i] == label]
    after = [i for i in range(node, len(labels)) if labels[i] == label]
    if before or after:
        return before[-1] if before else after[0]
    raise DataError(
        f"subtask {node} ({tools[node]!r}) refers to {f'${label}$'!r}, and no call is labelled "
        f"{label!r}; the labels are {labels}"
    )


def _variables(value: Any) -> list[str]:
    """The labels that an argument of NESTFUL refers to, in order; looks into lists and mappings."""
    match value:
        case str():
            return _VARIABLE.findall(value)
        case Mapping():
            inner = cast("Mapping[str, Any]", value).values()
            return [label for part in inner for label in _variables(part)]
        case list() | tuple():
            return [label for part in cast("Sequence[Any]", value) for label in _variables(part)]
        case _:
            return []
