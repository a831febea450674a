"""Plans: immutable DAGs of typed subtasks.

Edges are not stored separately. A node depends on the nodes that its arguments reference
(`<node-0>`, possibly several per argument) and on the nodes listed in `after`, so the arguments and
the graph cannot contradict each other. Every `Plan` object is a DAG: cycles and references to
missing nodes raise an error at construction. `catalog.py` defines the tools.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, cast

from pydantic import ConfigDict

from tutelage.errors import DataError, pluralize
from tutelage.orchestration.arguments import check_type

PLANS = "the planning model"
"""Name of the planner model in messages."""
REFERENCE = re.compile(r"<node-(\d+)>")


def find_references(value: object) -> tuple[int, ...]:
    """Return the sorted indices of the nodes that an argument references, at any depth."""
    text = json.dumps(map_strings(value, str), default=str)
    return tuple(sorted({int(number) for number in REFERENCE.findall(text)}))


def map_strings(value: object, function: Callable[[str], str]) -> object:
    """Apply a function to all strings of a value, also inside lists and mappings."""
    match value:
        case str():
            return function(value)
        case Mapping():
            inner = cast("Mapping[str, object]", value)
            return {key: map_strings(each, function) for key, each in inner.items()}
        case list() | tuple():
            return [map_strings(each, function) for each in cast("Sequence[object]", value)]
        case _:
            return value


@dataclass(frozen=True, slots=True)
class Node:
    """Subtask of a plan: a tool with its arguments.

    Raises `DataError` if a field has the wrong type or the arguments cannot be stored as JSON.
    """

    tool: str
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])
    after: tuple[int, ...] = ()
    """Nodes that must end first, besides the nodes referenced in arguments."""
    description: str = ""

    def __post_init__(self) -> None:
        check_type("a node's tool", self.tool, str, "the name of a tool", DataError)
        where = f"a node of {self.tool!r:.40}"
        check_type(f"{where}: arguments", self.arguments, Mapping, "a mapping", DataError)
        check_type(f"{where}: after", self.after, (tuple, list), "a tuple of ints", DataError)
        for number in self.after:
            check_type(f"{where}: after", number, int, "a tuple of ints", DataError)
        plain = map_strings(self.arguments, str)
        try:
            same = not plain or json.loads(json.dumps(plain, allow_nan=False)) == plain
            reason = "a key is not a string"
        except (TypeError, ValueError) as error:
            same, reason = False, str(error)
        if not same:
            raise DataError(
                f"{where}: cannot convert the arguments {self.arguments!r:.200} to JSON: {reason}; "
                "use strings, finite numbers, lists, and dicts with strings as keys"
            )

    @property
    def parents(self) -> tuple[int, ...]:
        """Indices of the nodes that must end before this node starts, ascending."""
        return tuple(sorted({*find_references(self.arguments), *self.after}))


@dataclass(frozen=True, slots=True)
class PlannerCall:
    """Request to a planner model: messages as (role, text), and reply without reasoning."""

    messages: tuple[tuple[str, str], ...]
    reply: str
    cost: float = 0.0
    """Cost in USD."""
    tokens_in: int = 0
    """Tokens in the prompt; `tokens_out` counts the reply. 0 if unknown."""
    tokens_out: int = 0
    started: float = 0.0
    """Time of sending, in seconds since 1970."""
    seconds: float = 0.0
    bound: float = 0.0
    """Maximum possible cost in USD."""


class NoPlanError(DataError):
    """Raised if the planner has no plan for an instruction. The message contains the reason."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Instruction and its subtasks. Raises `DataError` if the subtasks do not form a DAG."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    instruction: str
    nodes: tuple[Node, ...]
    calls: tuple[PlannerCall, ...] = field(default=(), compare=False)
    """Requests to the planner model; empty for other planners."""

    def __post_init__(self) -> None:
        check_type("a plan's instruction", self.instruction, str, "a string", DataError)
        check_type("a plan's nodes", self.nodes, (tuple, list), "a tuple of Node(...)", DataError)
        for node in self.nodes:
            check_type("a plan's node", node, Node, "a Node(tool, arguments)", DataError)
        check_dag(self.dependencies)

    @property
    def cost(self) -> float:
        """Cost of planning in USD."""
        return math.fsum(call.cost for call in self.calls)

    @property
    def seconds(self) -> float:
        """Total duration of the requests to the planner model, in seconds."""
        return math.fsum(call.seconds for call in self.calls)

    @property
    def dependencies(self) -> tuple[tuple[int, ...], ...]:
        """`dependencies[i]` lists the parents of node i."""
        return tuple(node.parents for node in self.nodes)

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs (i, j) of node indices. Node i must end before node j starts."""
        return tuple((i, j) for j, parents in enumerate(self.dependencies) for i in parents)


def check_dag(dependencies: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the nodes of a DAG in topological order. Raises `DataError` if the graph has a cycle
    or an unknown parent."""
    count = len(dependencies)
    for child, parents in enumerate(dependencies):
        if lost := [parent for parent in parents if not 0 <= parent < count]:
            raise DataError(
                f"node {child} depends on node {lost[0]!r}, and the plan has "
                f"{pluralize(count, 'node')}, numbered from 0; name a node that exists"
            )
    try:
        return tuple(TopologicalSorter(dict(enumerate(dependencies))).static_order())
    except CycleError as error:
        cycle = _shorten(" -> ".join(str(node) for node in cast("list[int]", error.args[1])), 200)
        raise DataError(
            f"the dependencies form a cycle: {cycle!r}; remove one of these references"
        ) from error


def adjacency(plan: Plan) -> list[list[int]]:
    """Return the adjacency matrix: `[i][j]` is 1 if j depends on i, otherwise 0."""
    edges, places = set(plan.edges), range(len(plan.nodes))
    return [[int((i, j) in edges) for j in places] for i in places]


def parent_lists(matrix: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Convert an adjacency matrix to the list of parents of each node. Raises `DataError` if the
    matrix is not square or has entries other than 0 and 1."""
    size = len(matrix)
    for i, row in enumerate(matrix):
        if len(row) != size or any(entry not in (0, 1) for entry in row):
            raise DataError(f"adjacency row {i} needs {size} entries of 0 or 1, got {row!r:.80}")
    return tuple(tuple(i for i in range(size) if matrix[i][j]) for j in range(size))


def is_valid_dag(workflow: object) -> bool:
    """Return True if the adjacency matrix of a workflow is square, binary and acyclic.

    The workflow is a `Plan` or an object with `plan` (always valid), an adjacency matrix (lists,
    array or tensor), or a dict with the matrix in `planner_outputs`, `workflow_graph` or
    `adjacency`. Raises `DataError` for other types.
    """
    matrix: Any = getattr(workflow, "plan", workflow)
    if isinstance(matrix, Plan):
        return True
    for key in ("planner_outputs", "workflow_graph", "adjacency"):
        matrix = matrix.get(key, matrix) if isinstance(matrix, dict) else matrix
    matrix = getattr(matrix, "tolist", lambda: matrix)()
    if not isinstance(matrix, (list, tuple)):
        raise DataError(f"expected a Plan or an adjacency matrix, got {workflow!r:.80}")
    try:
        check_dag(parent_lists(cast("Sequence[Any]", matrix)))
    except (DataError, TypeError):
        return False
    return True


def levels(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Group the nodes by depth. Nodes of the same level can run in parallel."""
    dependencies = plan.dependencies
    depth: dict[int, int] = {}
    for node in check_dag(dependencies):
        depth[node] = 1 + max((depth[parent] for parent in dependencies[node]), default=-1)
    count = 1 + max(depth.values(), default=-1)
    return tuple(tuple(node for node in sorted(depth) if depth[node] == k) for k in range(count))


def critical_path(plan: Plan, seconds: Sequence[float]) -> tuple[float, tuple[int, ...]]:
    """Return the duration and the nodes of the critical path if node i takes `seconds[i]`. The
    result for an empty plan is (0.0, ())."""
    nothing: tuple[float, tuple[int, ...]] = (0.0, ())
    ends: dict[int, tuple[float, tuple[int, ...]]] = {}
    for node in check_dag(plan.dependencies):
        parents = (ends[parent] for parent in plan.nodes[node].parents)
        before, path = max(parents, key=lambda end: end[0], default=nothing)
        ends[node] = (seconds[node] + before, (*path, node))
    return max(ends.values(), key=lambda end: end[0], default=nothing)


def to_text(plan: Plan, first: int = 0) -> str:
    """Format a plan as text, grouped by level, with the number, tool, arguments and parents of each
    node. Nodes before `first` are omitted."""
    lines: list[str] = []
    for number, level in enumerate(levels(plan)):
        shown = [k for k in level if k >= first]
        lines += [f"level {number}"] if shown else []
        for k in shown:
            node, waits = plan.nodes[k], ", ".join(map(str, plan.nodes[k].parents))
            given = ", ".join(f"{name}={_shorten(repr(v))}" for name, v in node.arguments.items())
            called = f"{node.tool}({given})" if given else node.tool
            lines.append(f"  [{k}] {called}" + (f"  after {waits}" if waits else ""))
    return "\n".join(lines)


def _shorten(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
