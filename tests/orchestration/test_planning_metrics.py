"""Scores of plans by hand, baselines, and comparisons."""

from __future__ import annotations

import pytest

from tutelage.orchestration.data.workflows import sorted_workflow
from tutelage.orchestration.evaluation.metrics import PlanScores, copied_plans
from tutelage.orchestration.plan.dag import Node, Plan
from tutelage.seeds import SeedTree

CHAIN = sorted_workflow("x", ["a", "b", "c"], [[], [0], [1]])
SINGLE = sorted_workflow("y", ["d"], [[]])


def test_scores_by_hand() -> None:
    plans = [Plan("x", (Node("a"), Node("b", after=(0,)), Node("d"))), Plan("y", (Node("d"),))]
    found = PlanScores.of(plans, [CHAIN, SINGLE], [True, False])
    assert found.node_f1 == pytest.approx([2 / 3, 1.0])
    assert found.edge_f1 == pytest.approx([2 / 3, 1.0])
    assert found.exact == [0.0, 1.0]
    assert found.exact_nodes == [0.0, 1.0]
    assert (found.validity, found.raw_validity) == (1.0, 0.5)
    summary = found.summary()
    assert (summary["node_f1"], summary["exact"]) == (pytest.approx(5 / 6), 0.5)


def test_repeated_tools_count_as_often_as_they_stand() -> None:
    twice = sorted_workflow("x", ["a", "a"], [[], [0]])
    once = Plan("x", (Node("a"),))
    found = PlanScores.of([once], [twice])
    assert found.node_f1 == pytest.approx([2 / 3])
    assert found.exact_nodes == [0.0]


def test_plans_are_copied_and_compared() -> None:
    test = [CHAIN, SINGLE]
    near = copied_plans([CHAIN, SINGLE, SINGLE], test, [0, 2])
    assert [node.tool for node in near[0].nodes] == ["a", "b", "c"]
    usual = PlanScores.of(copied_plans([SINGLE], test, [0, 0]), test)
    gains = PlanScores.of(near, test).gain(usual, SeedTree(0))
    assert gains["node_f1"].mean == pytest.approx(0.5)
    assert gains["node_f1"].wins == 1
