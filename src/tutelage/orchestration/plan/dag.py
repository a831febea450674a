"""A plan: typed subtasks and their dependencies, as one small immutable value.

Edges are never stored twice. A node waits for the nodes whose outputs its arguments name
(`<node-0>`, several in one argument allowed) and for those listed in `after`, so a plan cannot say
one thing in its arguments and another in its graph. A `Plan` that exists is a DAG: cycles and
dangling references are refused when it is made. `catalog.py` says which tools exist.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, cast

from tutelage.errors import DataError, check_given, counted

PLANS = "the model that plans"
"""What it is called where it is spoken of."""
REFERENCE = re.compile(r"<node-(\d+)>")


def references(value: object) -> tuple[int, ...]:
    """Return the nodes that an argument names, ascending; looks into lists and mappings."""
    text = json.dumps(with_texts(value, str), default=str)
    return tuple(sorted({int(number) for number in REFERENCE.findall(text)}))


def with_texts(value: object, change: Callable[[str], str]) -> object:
    """A value with its texts changed, in lists and mappings too."""
    match value:
        case str():
            return change(value)
        case Mapping():
            inner = cast("Mapping[str, object]", value)
            return {key: with_texts(each, change) for key, each in inner.items()}
        case list() | tuple():
            return [with_texts(each, change) for each in cast("Sequence[object]", value)]
        case _:
            return value


@dataclass(frozen=True, slots=True)
class Node:
    """One subtask: the tool that does it and the arguments it is given.

    Raises `DataError` for values of other types, and for arguments that JSON cannot hold.
    """

    tool: str
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])
    after: tuple[int, ...] = ()
    """Nodes to wait for although no argument names them."""
    description: str = ""

    def __post_init__(self) -> None:
        check_given("a node's tool", self.tool, str, "the name of a tool", DataError)
        where = f"a node of {self.tool!r:.40}"
        check_given(
            f"{where}: arguments", self.arguments, Mapping, "the arguments by name", DataError
        )
        check_given(f"{where}: after", self.after, (tuple, list), "a tuple of numbers", DataError)
        for number in self.after:
            check_given(f"{where}: after", number, int, "the numbers of nodes", DataError)
        plain = with_texts(self.arguments, str)
        try:
            same = not plain or json.loads(json.dumps(plain, allow_nan=False)) == plain
            reason = "a key is no text"
        except (TypeError, ValueError) as error:
            same, reason = False, str(error)
        if not same:
            raise DataError(
                f"{where}: the arguments {self.arguments!r:.200} are no JSON: {reason}; give "
                "texts, finite numbers, lists, and dicts with texts as keys, such as str(...) of it"
            )

    @property
    def parents(self) -> tuple[int, ...]:
        """Indices of the nodes that must end before this one starts, ascending."""
        return tuple(sorted({*references(self.arguments), *self.after}))


@dataclass(frozen=True, slots=True)
class PlannerCall:
    """A request to a model that plans: its messages as (role, text), and its reply
    without a thought."""

    messages: tuple[tuple[str, str], ...]
    reply: str
    cost: float = 0.0
    """USD."""
    tokens_in: int = 0
    """Of the prompt, and of the reply below; 0 where nobody told."""
    tokens_out: int = 0
    started: float = 0.0
    """When it was sent, in seconds since 1970."""
    seconds: float = 0.0
    bound: float = 0.0
    """USD that it could cost at most."""


class NoPlanError(DataError):
    """A planner has no plan for an instruction; the message gives the reason."""

    def __init__(self, message: str, calls: tuple[PlannerCall, ...] = ()) -> None:
        """`calls` is what a model was asked until then."""
        super().__init__(message)
        self.calls = calls


class LatePlanError(NoPlanError):
    """The deadline of an execution passed while its plan was made."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """An instruction and its subtasks. Raises `DataError` unless the subtasks form a DAG."""

    instruction: str
    nodes: tuple[Node, ...]
    calls: tuple[PlannerCall, ...] = field(default=(), compare=False)
    """What a model was asked for it; planners that ask none have none."""

    def __post_init__(self) -> None:
        check_given("a plan's instruction", self.instruction, str, "a text", DataError)
        check_given("a plan's nodes", self.nodes, (tuple, list), "a tuple of Node(...)", DataError)
        for node in self.nodes:
            check_given("a plan's node", node, Node, "a Node(tool, arguments)", DataError)
        check_dag(self.dependencies)

    @property
    def cost(self) -> float:
        """USD that planning took."""
        return math.fsum(call.cost for call in self.calls)

    @property
    def seconds(self) -> float:
        """What the requests to a model that plans took."""
        return math.fsum(call.seconds for call in self.calls)

    @property
    def dependencies(self) -> tuple[tuple[int, ...], ...]:
        """`dependencies[i]` lists the parents of node i."""
        return tuple(node.parents for node in self.nodes)

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs (i, j): i ends before j starts."""
        return tuple((i, j) for j, parents in enumerate(self.dependencies) for i in parents)


def check_dag(dependencies: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the nodes of a DAG in an order in which parents stand before their children. Raises
    `DataError` for cycles and for parents that do not exist."""
    count = len(dependencies)
    for child, parents in enumerate(dependencies):
        if lost := [parent for parent in parents if not 0 <= parent < count]:
            raise DataError(
                f"node {child} depends on node {lost[0]!r}, and the plan has "
                f"{counted(count, 'node')}, numbered from 0; name a node that exists"
            )
    try:
        return tuple(TopologicalSorter(dict(enumerate(dependencies))).static_order())
    except CycleError as error:
        cycle = _short(" -> ".join(str(node) for node in cast("list[int]", error.args[1])), 200)
        raise DataError(
            f"the dependencies form a cycle: {cycle!r}; remove one of these references"
        ) from error


def adjacency(plan: Plan) -> list[list[int]]:
    """The square matrix of execution logs: `[i][j]` is 1 when i comes before j."""
    edges, places = set(plan.edges), range(len(plan.nodes))
    return [[int((i, j) in edges) for j in places] for i in places]


def dependencies_of(matrix: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return parent lists from an adjacency matrix. Raises `DataError` unless it is square, 0 or
    1."""
    size = len(matrix)
    for i, row in enumerate(matrix):
        if len(row) != size or any(entry not in (0, 1) for entry in row):
            raise DataError(f"adjacency row {i} is {row!r:.80}; give {size} entries of 0 or 1")
    return tuple(tuple(i for i in range(size) if matrix[i][j]) for j in range(size))


def is_valid_dag(workflow: object) -> bool:
    """Return whether a workflow's graph is square, holds only 0 and 1, and has no cycle.

    An adjacency matrix (lists, an array, a tensor), an object that has it as `planner_outputs`,
    `workflow_graph` or `adjacency`, or a plan, which is always one. Raises `DataError` for anything
    else.
    """
    matrix: Any = getattr(workflow, "plan", workflow)
    if isinstance(matrix, Plan):
        return True
    for key in ("planner_outputs", "workflow_graph", "adjacency"):
        matrix = matrix.get(key, matrix) if isinstance(matrix, dict) else matrix
    matrix = getattr(matrix, "tolist", lambda: matrix)()
    if not isinstance(matrix, (list, tuple)):
        raise DataError(f"{workflow!r:.80} is no workflow; give a Plan or an adjacency matrix")
    try:
        check_dag(dependencies_of(cast("Sequence[Any]", matrix)))
    except (DataError, TypeError):
        return False
    return True


def levels(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Nodes by their distance from the start; those of one level can run side by side."""
    dependencies = plan.dependencies
    depth: dict[int, int] = {}
    for node in check_dag(dependencies):
        depth[node] = 1 + max((depth[parent] for parent in dependencies[node]), default=-1)
    count = 1 + max(depth.values(), default=-1)
    return tuple(tuple(node for node in sorted(depth) if depth[node] == k) for k in range(count))


def critical_path(plan: Plan, seconds: Sequence[float]) -> tuple[float, tuple[int, ...]]:
    """The longest chain and its length when node i takes `seconds[i]`; (0.0, ()) when empty."""
    nothing: tuple[float, tuple[int, ...]] = (0.0, ())
    ends: dict[int, tuple[float, tuple[int, ...]]] = {}
    for node in check_dag(plan.dependencies):
        parents = (ends[parent] for parent in plan.nodes[node].parents)
        before, path = max(parents, key=lambda end: end[0], default=nothing)
        ends[node] = (seconds[node] + before, (*path, node))
    return max(ends.values(), key=lambda end: end[0], default=nothing)


def to_text(plan: Plan, first: int = 0) -> str:
    """Return one line a node, by level: its number, its tool with its arguments, and what it waits
    for; without the nodes before `first`."""
    lines: list[str] = []
    for number, level in enumerate(levels(plan)):
        shown = [k for k in level if k >= first]
        lines += [f"level {number}"] if shown else []
        for k in shown:
            node, waits = plan.nodes[k], ", ".join(map(str, plan.nodes[k].parents))
            given = ", ".join(f"{name}={_short(repr(v))}" for name, v in node.arguments.items())
            called = f"{node.tool}({given})" if given else node.tool
            lines.append(f"  [{k}] {called}" + (f"  after {waits}" if waits else ""))
    return "\n".join(lines)


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
