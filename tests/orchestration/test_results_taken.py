"""Which of several earlier results an argument takes: the one that plans with arguments take."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.execution.pools.tools import described
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import Node, Plan
from tutelage.orchestration.planner.arguments import ArgumentScorer, fit_scorer
from tutelage.orchestration.planner.origins import Origins
from tutelage.tools import tool


@tool
def price_of(item: str) -> float:
    """The price of an item.

    Args:
        item: Name of the item.
    """
    return float(len(item))


@tool
def stock_of(item: str) -> dict[str, object]:
    """How many of an item there are.

    Args:
        item: Name of the item.
    """
    return {"left": len(item)}


@tool
def total(price: float, quantity: float, discount: float = 0.0) -> float:
    """What pieces cost.

    Args:
        price: Price of one piece.
        quantity: How many pieces.
        discount: Less in percent.
    """
    return price * quantity * (1 - discount / 100)


@tool
def compare(first: float, second: float) -> float:
    """How much two prices differ.

    Args:
        first: One price.
        second: Another price.
    """
    return first - second


SHOP = Catalog(
    described({"price_of": price_of, "stock_of": stock_of, "total": total, "compare": compare})
)


def compared(one: str, other: str, *, first: int = 0) -> Workflow:
    items = (Node("price_of", {"item": one}), Node("price_of", {"item": other}))
    taken = {"first": f"<node-{first}>", "second": f"<node-{1 - first}>"}
    asked = f"Compare the prices of '{one}' and '{other}'"
    return Workflow(Plan(asked, (*items, Node("compare", taken))))


def worth(item: str) -> Workflow:
    nodes = (Node("price_of", {"item": item}), Node("stock_of", {"item": item}))
    taken = {"price": "<node-0>", "quantity": "<node-1>.left"}
    return Workflow(Plan(f"What are all '{item}' worth?", (*nodes, Node("total", taken))))


def bare(plan: Plan) -> Plan:
    """The same tools, with what waits for what, and no arguments."""
    nodes = [replace(node, arguments={}, after=node.parents) for node in plan.nodes]
    return Plan(plan.instruction, tuple(nodes))


ITEMS = ("pen", "lamp", "stapler", "book", "desk", "chair", "cup")


@pytest.mark.parametrize("first", [0, 1])
def test_an_argument_takes_the_result_that_plans_take_of_equal_tools(first: int) -> None:
    pairs = itertools.pairwise(ITEMS)
    scorer = fit_scorer([compared(*each, first=first) for each in pairs], SHOP)
    asked = compared("vase", "rug", first=first).plan
    plan, missing = scorer.fill(bare(asked), SHOP)
    assert [node.arguments for node in plan.nodes] == [node.arguments for node in asked.nodes]
    assert not missing
    more = bare(asked).nodes[:2]
    late = Plan(asked.instruction, (*more, *more, Node("compare", after=(2, 3))))
    taken = {"first": f"<node-{2 + first}>", "second": f"<node-{3 - first}>"}
    assert scorer.fill(late, SHOP)[0].nodes[4].arguments == taken


def test_an_argument_takes_the_result_of_the_tool_that_plans_take_it_of() -> None:
    scorer = fit_scorer([worth(item) for item in ITEMS], SHOP)
    asked = worth("vase").plan
    plan, missing = scorer.fill(bare(asked), SHOP)
    assert plan.nodes[2].arguments == asked.nodes[2].arguments
    assert not missing
    turned = Plan(asked.instruction, tuple(bare(asked).nodes[k] for k in (1, 0, 2)))
    taken = {"price": "<node-1>", "quantity": "<node-0>.left"}
    assert scorer.fill(turned, SHOP)[0].nodes[2].arguments == taken


def test_an_argument_that_no_plan_takes_from_a_result_gets_none_that_is_taken() -> None:
    scorer = ArgumentScorer(origins=Origins.of([worth(item).plan for item in ITEMS]))
    plan, _ = scorer.fill(bare(worth("vase").plan), SHOP)
    assert plan.nodes[2].arguments == worth("vase").plan.nodes[2].arguments


def test_two_parts_of_one_result_are_two_values() -> None:
    def ordered(item: str) -> Plan:
        taken = {"price": "<node-0>.cost", "quantity": "<node-0>.left"}
        nodes = (Node("stock_of", {"item": item}), Node("total", taken))
        return Plan(f"What are all '{item}' worth?", nodes)

    scorer = fit_scorer([Workflow(ordered(item)) for item in ITEMS], SHOP)
    plan, missing = scorer.fill(bare(ordered("vase")), SHOP)
    assert plan.nodes[1].arguments == ordered("vase").nodes[1].arguments
    assert not missing


def test_results_that_no_plan_tells_apart_are_alike() -> None:
    origins = Origins.of([compared(*each).plan for each in itertools.pairwise(ITEMS)])
    asked = bare(compared("vase", "rug").plan).nodes
    first, second = origins.choices(asked[2], "first", asked[:2])
    assert first == -second > 2
    assert origins.choices(asked[2], "first", asked[:1]) == [0.0], "there is one only"
    others = (Node("stock_of"), Node("stock_of"))
    assert origins.choices(Node("compare", after=(0, 1)), "first", others) == [0.0, 0.0]
    once = Origins.of([compared("vase", "rug").plan])
    assert once.choices(asked[2], "first", asked[:2], "<node-0>") == [0.0, 0.0], "by itself"
    unseen = replace(asked[2], after=(1,))
    assert origins.choices(unseen, "first", asked[:2])[1] > 2, "of those that it waits for"
