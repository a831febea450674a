"""A plan: typed subtasks and their dependencies, as one small immutable value.

Edges are never stored twice. A node waits for the nodes whose outputs its arguments name
(`<node-0>`, several in one argument allowed) and for those listed in `after`, so a plan cannot say
one thing in its arguments and another in its graph. A `Plan` that exists is a DAG: cycles and
dangling references are refused when it is made. `catalog.py` says which tools exist.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from typing import Any, cast

from tutelage.errors import DataError, check_given, counted

PLANS = "the model that plans"
"""What it is called where it is spoken of."""
LONGEST = 1000
"""Words of a request that a trained planner reads: each is compared with all others, and requests
that it was trained on have some dozen."""
REFERENCE = re.compile(r"<node-(\d+)>")


def references(value: object) -> tuple[int, ...]:
    """Return the nodes that an argument names, ascending; looks into lists and mappings."""
    numbers: set[int] = set()

    def look(text: str) -> str:
        numbers.update(int(k) for k in REFERENCE.findall(text))
        return text

    with_texts(value, look)
    return tuple(sorted(numbers))


def _check_json(name: str, value: object) -> None:
    """Raise `DataError` for a value that JSON cannot hold; looks into lists and mappings."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case float() as number if not math.isfinite(number):
                raise DataError(
                    f"{name} has {number!r}, which is no number of JSON; give a finite one, or a "
                    f"text, such as {str(number)!r}, where the tool takes one"
                )
            case None | str() | int() | float():
                pass
            case Mapping() as inner:
                given = cast("Mapping[object, object]", inner)
                waiting.extend(given.values())
                for key in given:
                    check_given(
                        f"{name}: a key", key, str, f"a text, such as {str(key)!r:.40}", DataError
                    )
            case list() | tuple() as inner:
                waiting.extend(cast("Sequence[object]", inner))
            case other:
                raise DataError(
                    f"{name} has {other!r:.80} of the type {type(other).__name__}, which is no "
                    "JSON; give a text, a number, a list or a dict, such as str(...) of it"
                )


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


def renumbered(arguments: Mapping[str, object], place: Mapping[int, int]) -> dict[str, object]:
    """Arguments whose references follow nodes to other places."""

    def moved(text: str) -> str:
        return REFERENCE.sub(lambda m: f"<node-{place[int(m[1])]}>", text)

    return {name: with_texts(value, moved) for name, value in arguments.items()}


def numbered_calls(plan: Plan, known: dict[str, int]) -> list[int]:
    """The number of each node's call, its tool with its arguments, whatever their case and types;
    `known` has the numbers and gets new ones. A reference is the call of the node that it means, so
    nodes may stand in another order, but another result, part of it or words beside it are another
    call."""
    numbers: dict[int, int] = {}
    for place in chain.from_iterable(levels(plan)):
        node = plan.nodes[place]
        given = renumbered(node.arguments, numbers)
        told = sorted((name, str(value).lower()) for name, value in given.items())
        numbers[place] = known.setdefault(f"{node.tool} {told}", len(known))
    return [numbers[place] for place in range(len(numbers))]


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
        where = f"a node of {self.tool!r:.40}"
        check_given("a node's tool", self.tool, str, "the name of a tool", DataError)
        check_given(
            f"{where}: arguments", self.arguments, Mapping, "the arguments by name", DataError
        )
        for name, value in self.arguments.items():
            check_given(f"{where}: an argument's name", name, str, "a text", DataError)
            _check_json(f"{where}: the argument {name!r}", value)
        check_given(f"{where}: after", self.after, (tuple, list), "a tuple of numbers", DataError)
        for number in self.after:
            check_given(f"{where}: after", number, int, "the numbers of nodes", DataError)

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

    calls: tuple[PlannerCall, ...] = ()
    """What a model was asked until then."""


def check_length(instruction: str) -> None:
    """Raise `NoPlanError` for a request of more than `LONGEST` words."""
    words = len(re.findall(r"\w+", instruction))
    if words > LONGEST:
        raise NoPlanError(
            f"the request has {words:,} words, and a trained planner reads at most {LONGEST:,}: "
            "say what is to be done, and have the rest in a file that it names"
        )


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
        _check(self.dependencies)

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


def _check(dependencies: Sequence[Sequence[int]]) -> None:
    count = len(dependencies)
    for child, parents in enumerate(dependencies):
        if lost := [parent for parent in parents if not 0 <= parent < count]:
            raise DataError(
                f"node {child} depends on node {lost[0]!r}, and the plan has "
                f"{counted(count, 'node')}, numbered from 0; name a node that exists"
            )
    _order(dependencies)


def _order(dependencies: Sequence[Sequence[int]]) -> tuple[int, ...]:
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
    """Parent lists from an adjacency matrix. Raises `DataError` unless it is square, 0 or 1."""
    size = len(matrix)
    for i, row in enumerate(matrix):
        if len(row) != size:
            raise DataError(f"adjacency row {i} has the length {len(row)}; a square needs {size}")
        if strange := [entry for entry in row if entry not in (0, 1)]:
            raise DataError(f"adjacency row {i} holds {strange[0]!r}; entries are 0 or 1")
    return tuple(tuple(i for i in range(size) if matrix[i][j]) for j in range(size))


def is_valid_dag(workflow: object) -> bool:
    """Whether a workflow's graph is square, holds only 0 and 1, and has no cycle.

    An adjacency matrix (lists, an array, a tensor), an object that has it as `planner_outputs`,
    `workflow_graph` or `adjacency`, or a plan, which is always one. Raises `DataError` for anything
    else.
    """
    if isinstance(getattr(workflow, "plan", workflow), Plan):
        return True
    matrix: Any = workflow
    for key in ("planner_outputs", "workflow_graph", "adjacency"):
        if isinstance(matrix, Mapping) and key in matrix:
            matrix = cast("Mapping[str, Any]", matrix)[key]
    matrix = getattr(matrix, "tolist", lambda: matrix)()
    if not isinstance(matrix, (list, tuple)):
        raise DataError(f"{workflow!r:.80} is no workflow; give a Plan or an adjacency matrix")
    rows = cast("Sequence[Any]", matrix)
    if not all(isinstance(row, (list, tuple)) for row in rows):
        return False
    try:
        _check(dependencies_of(rows))
    except DataError:
        return False
    return True


def levels(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Nodes by their distance from the start; those of one level can run side by side."""
    dependencies = plan.dependencies
    depth: dict[int, int] = {}
    for node in _order(dependencies):
        depth[node] = 1 + max((depth[parent] for parent in dependencies[node]), default=-1)
    members: list[list[int]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for node in range(len(plan.nodes)):
        members[depth[node]].append(node)
    return tuple(map(tuple, members))


def critical_path(plan: Plan, seconds: Sequence[float]) -> tuple[float, tuple[int, ...]]:
    """The longest chain and its length when node i takes `seconds[i]`; (0.0, ()) when empty."""
    if len(seconds) != len(plan.nodes):
        nodes = counted(len(plan.nodes), "node")
        raise DataError(f"{counted(len(seconds), 'duration')} for {nodes}; give one a node")
    for node, duration in enumerate(seconds):
        if not math.isfinite(duration) or duration < 0:
            raise DataError(f"node {node} takes {duration!r} seconds; give a finite number >= 0")
    if not plan.nodes:
        return 0.0, ()
    dependencies = plan.dependencies
    ends: dict[int, float] = {}
    before: dict[int, int | None] = {}
    for node in _order(dependencies):
        parents = dependencies[node]
        last = max(parents, key=ends.__getitem__) if parents else None
        before[node] = last
        ends[node] = seconds[node] + (0.0 if last is None else ends[last])
    last = max(ends, key=ends.__getitem__)
    path: list[int] = []
    while last is not None:
        path.append(last)
        last = before[last]
    return ends[path[0]], tuple(reversed(path))


def to_text(plan: Plan, first: int = 0) -> str:
    """One line a node, by level: its number, its tool with its arguments, and what it waits for;
    without the nodes before `first`."""
    waits = [", ".join(map(str, parents)) for parents in plan.dependencies]
    lines: list[str] = []
    for number, level in enumerate(levels(plan)):
        shown = [k for k in level if k >= first]
        lines += [f"level {number}"] if shown else []
        for k in shown:
            lines.append(
                f"  [{k}] {_called(plan.nodes[k])}" + (f"  after {waits[k]}" if waits[k] else "")
            )
    return "\n".join(lines)


def _called(node: Node) -> str:
    """A tool with its arguments; without parentheses if it has none."""
    given = ", ".join(f"{name}={_short(repr(v))}" for name, v in node.arguments.items())
    return f"{node.tool}({given})" if given else node.tool


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def to_mermaid(plan: Plan) -> str:
    """Return a Mermaid flowchart; what Mermaid reads as syntax is written as entities."""
    lines = ["flowchart LR"]
    for index, node in enumerate(plan.nodes):
        label = "".join(c if c.isalnum() or c in " _-.,:" else f"#{ord(c)};" for c in node.tool)
        lines.append(f'    n{index}["{label}"]')
    lines.extend(f"    n{before} --> n{after}" for before, after in plan.edges)
    return "\n".join(lines)
