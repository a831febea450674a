"""Workflows: plans with what is known of their execution, and the catalog that they make.

The nodes of a `Workflow` stand in an order in which every parent comes first, so that a planner may
decode them from left to right. `formats.py` reads files of them, `synthetic.py` makes them up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from tutelage.errors import DataError
from tutelage.orchestration.data.rows import parse_nested_json
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool, tools_of
from tutelage.orchestration.plan.dag import Node, Plan, references, renumbered

_TEXTS = 3
"""Descriptions of subtasks that replace a tool's own."""


class LostResultError(DataError):
    """An execution that succeeded, and what succeeded in it is no plan alone."""


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

    def without(self, lost: Collection[int], called: Sequence[int]) -> Workflow:
        """It without some nodes. Raises `LostResultError` where another takes the result of one,
        by the numbers that they are `called`, and where none is left."""
        kept = [k for k in range(len(self.plan.nodes)) if k not in lost]
        if lost and not kept:
            raise LostResultError("all subtasks failed")
        place = {k: number for number, k in enumerate(kept)}
        nodes: list[Node] = []
        for k in kept:
            node = self.plan.nodes[k]
            if gone := [p for p in references(node.arguments) if p in lost]:
                takes = f"subtask {called[k]} takes the result of subtask {called[gone[0]]}"
                raise LostResultError(f"{takes}, which failed")
            after = tuple(place[p] for p in node.after if p in place)
            moved = renumbered(node.arguments, place)
            nodes.append(replace(node, arguments=moved, after=after))
        chosen = self.workers and tuple(self.workers[k] for k in kept)
        return replace(self, plan=Plan(self.instruction, tuple(nodes)), workers=chosen)

    def to_row(self, catalog: Catalog) -> dict[str, Any]:
        """It as one row of the document's training set; types are places in the catalog."""
        row: dict[str, Any] = {
            "instruction": self.instruction,
            "targets": {
                "task_types": [catalog.index(tool) for tool in self.tools],
                "dependencies": [list(parents) for parents in self.plan.dependencies],
            },
        }
        if any(node.arguments for node in self.plan.nodes):
            row["targets"]["arguments"] = [dict(node.arguments) for node in self.plan.nodes]
        if self.workers is not None:
            row["targets"]["model_selections"] = list(self.workers)
        if self.rewards:
            row["rewards"] = dict(self.rewards)
        if self.name:
            row["id"] = self.name
        return row


def sorted_workflow(
    instruction: str,
    tools: Sequence[str],
    parents: Sequence[Iterable[int]],
    workers: Sequence[int | str] | None = None,
    descriptions: Sequence[str] = (),
    rewards: Mapping[str, float] | None = None,
    name: str = "",
    arguments: Sequence[Mapping[str, Any]] = (),
) -> Workflow:
    """A workflow with its nodes brought into the order in which each parent stands before its
    children, the given order kept where it can be; references in arguments follow. Raises
    `DataError` for cycles and dangling parents.
    """
    if descriptions and len(descriptions) != len(tools):
        descriptions = ()
    given_to = list(arguments) or [dict[str, Any]()] * len(tools)
    after = [tuple(sorted({*before})) for before in parents]
    texts = descriptions or [""] * len(tools)
    given = [Node(t, after=a, description=d) for t, a, d in zip(tools, after, texts, strict=True)]
    order = forward_order(Plan(instruction, tuple(given)).dependencies)
    place = {node: i for i, node in enumerate(order)}
    nodes = tuple(
        replace(
            given[node],
            arguments=renumbered(given_to[node], place),
            after=tuple(sorted(place[p] for p in after[node])),
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


def catalog_of(workflows: Iterable[Workflow], rows: Iterable[Mapping[str, Any]] = ()) -> Catalog:
    """A catalog of the tools that workflows use, sorted; rows with `tools` describe them.

    A tool nobody describes gets the descriptions of the first subtasks that used it.
    """
    told: dict[str, CatalogTool] = {}
    for row in rows:
        listed = parse_nested_json(row.get("tools"))
        tools = cast("list[Any]", listed) if isinstance(listed, list) else []
        if all(isinstance(tool, Mapping) for tool in tools):
            told = {tool.name: tool for tool in reversed(tools_of(tools))} | told
    texts: dict[str, list[str]] = {}
    for workflow in workflows:
        for node in workflow.plan.nodes:
            seen = texts.setdefault(node.tool, [])
            if node.description and len(seen) < _TEXTS:
                seen.append(node.description)
    names = sorted({*texts, *told})
    made = (told.get(name) or CatalogTool(name, " ".join(texts.get(name, ()))) for name in names)
    return Catalog(tuple(made))
