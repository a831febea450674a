"""Scores of plans by hand, baselines, and comparisons."""

from __future__ import annotations

import pytest

from tutelage.orchestration.data.workflows import sorted_workflow
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
