"""Scores of plans by hand, baselines, and comparisons."""

from __future__ import annotations

import pytest

from tutelage.orchestration.data.workflows import Workflow, sorted_workflow
from tutelage.orchestration.evaluation.metrics import PlanScores, baseline_plans, without_edges
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool
from tutelage.orchestration.plan.dag import Node, Plan
from tutelage.seeds import SeedTree

CATALOG = Catalog(tuple(CatalogTool(name) for name in "abcd"))
CHAIN = sorted_workflow("x", ["a", "b", "c"], [[], [0], [1]])
SINGLE = sorted_workflow("y", ["d"], [[]])


def test_scores_by_hand() -> None:
    plans = [Plan("x", (Node("a"), Node("b", after=(0,)), Node("d"))), Plan("y", (Node("d"),))]
    found = PlanScores.of(plans, [CHAIN, SINGLE], CATALOG, [True, False])
    assert found.node_f1 == pytest.approx([2 / 3, 1.0])
    assert found.edge_f1 == pytest.approx([2 / 3, 1.0])
    assert found.exact == [0.0, 1.0]
    assert found.exact_nodes == [0.0, 1.0]
    assert found.node_f1_micro == pytest.approx(2 * 3 / 8)
    assert found.edge_f1_micro == pytest.approx(2 * 1 / 3)
    assert (found.validity, found.raw_validity, found.hallucination) == (1.0, 0.5, 0.0)
    summary = found.summary()
    assert summary["node_f1/chain"] == pytest.approx(2 / 3)
    assert summary["exact/single"] == 1.0


def test_repeated_tools_count_as_often_as_they_stand() -> None:
    twice = sorted_workflow("x", ["a", "a"], [[], [0]])
    once = Plan("x", (Node("a"),))
    found = PlanScores.of([once], [twice], CATALOG)
    assert found.node_f1 == pytest.approx([2 / 3])
    assert found.exact_nodes == [0.0]


def test_made_up_tools_are_counted() -> None:
    assert PlanScores.of([Plan("x", (Node("z"),))], [SINGLE], CATALOG).hallucination == 1.0


def test_baselines_and_their_comparison() -> None:
    train = [CHAIN, SINGLE, SINGLE]
    plans = baseline_plans(train, [CHAIN, SINGLE], [0, 2])
    assert [node.tool for node in plans["nearest"][0].nodes] == ["a", "b", "c"]
    assert [node.tool for node in plans["majority"][0].nodes] == ["d"]
    assert without_edges(plans["nearest"][0]).edges == ()
    best = PlanScores.of(plans["nearest"], [CHAIN, SINGLE], CATALOG)
    usual = PlanScores.of(plans["majority"], [CHAIN, SINGLE], CATALOG)
    gains = best.gain(usual, SeedTree(0))
    assert gains["node_f1"].mean == pytest.approx(0.5)
    assert gains["node_f1"].wins == 1


def test_arguments_count_by_tool_name_and_value_and_references_by_their_tool() -> None:
    gold = (Node("read", {"path": "a.txt"}), Node("count", {"text": "<node-0>"}))
    wanted = Workflow(Plan("x", gold))
    catalog = Catalog((CatalogTool("read"), CatalogTool("count")))

    def score(*nodes: Node) -> float:
        return PlanScores.of([Plan("x", nodes)], [wanted], catalog).argument_f1[0]

    assert score(*gold) == 1.0
    assert score(Node("read", {"path": "A.TXT"}), Node("count", {"text": "<node-0>"})) == 1.0
    assert score(Node("read", {"path": "b.txt"}), Node("count", {"text": "<node-0>"})) == 0.5
    assert score(Node("read"), Node("count")) == 0.0
    bare = Workflow(Plan("x", (Node("read"),)))
    assert PlanScores.of([wanted.plan], [bare], catalog).argument_f1 == []


def test_arguments_that_take_each_others_results_are_wrong() -> None:
    def plan(first: str, second: str, *, turned: bool = False) -> Plan:
        reads = [Node("read", {"path": path}) for path in ("a.txt", "b.txt")]
        reads = reads[::-1] if turned else reads
        return Plan("x", (*reads, Node("join", {"first": first, "second": second})))

    catalog = Catalog((CatalogTool("read"), CatalogTool("join")))
    wanted = Workflow(plan("<node-0>", "<node-1>"))

    def score(made: Plan) -> float:
        return PlanScores.of([made], [wanted], catalog).argument_f1[0]

    assert score(plan("<node-0>", "<node-1>")) == 1.0
    assert score(plan("<node-1>", "<node-0>", turned=True)) == 1.0
    assert score(plan("<node-1>", "<node-0>")) == 0.5
    both = Workflow(plan("<node-0>, <node-1>", ""))
    swapped = plan("<node-1>, <node-0>", "")
    assert PlanScores.of([swapped], [both], catalog).argument_f1[0] == 0.75


def test_long_chains_of_one_tool_are_scored_at_once() -> None:
    def chain(first: str) -> Plan:
        more = (Node("a", {"t": f"<node-{k}> <node-{k}>"}) for k in range(40))
        return Plan("x", (Node("a", {"t": first}), *more))

    catalog = Catalog((CatalogTool("a"),))
    wanted = Workflow(chain("b"))
    assert PlanScores.of([chain("b")], [wanted], catalog).argument_f1 == [1.0]
    assert PlanScores.of([chain("c")], [wanted], catalog).argument_f1 == [0.0]
