"""Both reward presets against numbers worked out by hand, and scores of plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tutelage.errors import ConfigError
from tutelage.orchestration.data.workflows import sort_workflow
from tutelage.orchestration.evaluation.metrics import PlanScores, copy_plans
from tutelage.orchestration.evaluation.rewards import (
    ExecutionResult,
    References,
    RewardWeights,
    compute_reward,
    reward_parts,
)
from tutelage.orchestration.plan.dag import Node, Plan
from tutelage.seeds import SeedTree

EXAMPLE = ExecutionResult(True, {"0": "a", "1": "b", "2": "c"}, 0.045, 1200.0, 1.0)
REFERENCES = References(cost=0.09, latency=2.4)
WEIGHTS = RewardWeights(alpha=1.0, beta=0.4, gamma_latency=0.2, shaped_reward=0.1)


def test_the_documents_own_example_scores_below_failing_at_once() -> None:
    score = compute_reward(EXAMPLE)
    assert score == compute_reward(EXAMPLE, "seed")
    assert score == pytest.approx(-1.7045, abs=1e-12)
    assert score < compute_reward(ExecutionResult(False), "seed")


def test_an_empty_output_is_not_counted() -> None:
    fewer = replace(EXAMPLE, outputs={"0": "a", "1": "", "2": None})
    assert compute_reward(fewer, "seed") == pytest.approx(-1.9045, abs=1e-12)


@pytest.mark.parametrize(
    ("success", "expected"),
    [(True, 0.8), (False, -0.2)],  # 1 - 0.4 * 0.5 - 0.2 * 0.5 + 0.1
)
def test_normalized(success: bool, expected: float) -> None:
    result = replace(EXAMPLE, success=success)
    found = compute_reward(result, "normalized", weights=WEIGHTS, references=REFERENCES)
    assert found == pytest.approx(expected, abs=1e-12)


def test_terms_are_clipped_at_their_references() -> None:
    result = replace(EXAMPLE, total_cost=9.0, total_latency_ms=1e9)
    parts = reward_parts(result, preset="normalized", weights=WEIGHTS, references=REFERENCES)
    assert parts == {"success": 1.0, "cost": -0.4, "latency": -0.2, "shaped": 0.1}


def test_references_are_required_where_they_are_used() -> None:
    with pytest.raises(ConfigError, match="references"):
        compute_reward(EXAMPLE, "normalized")


def test_an_unknown_preset_names_the_choices() -> None:
    unknown: Any = "sead"
    with pytest.raises(ConfigError, match=r"'sead'.*normalized"):
        compute_reward(EXAMPLE, unknown)


# ------------------------------------------------------------ scores of plans


CHAIN = sort_workflow("x", ["a", "b", "c"], [[], [0], [1]])
SINGLE = sort_workflow("y", ["d"], [[]])


def test_scores_by_hand() -> None:
    plans = [Plan("x", (Node("a"), Node("b", after=(0,)), Node("d"))), Plan("y", (Node("d"),))]
    found = PlanScores.score(plans, [CHAIN, SINGLE], [True, False])
    assert found.node_f1 == pytest.approx([2 / 3, 1.0])
    assert found.edge_f1 == pytest.approx([2 / 3, 1.0])
    assert found.exact == [0.0, 1.0]
    assert found.exact_nodes == [0.0, 1.0]
    assert (found.validity, found.raw_validity) == (1.0, 0.5)
    summary = found.summary()
    assert (summary["node_f1"], summary["exact"]) == (pytest.approx(5 / 6), 0.5)


def test_repeated_tools_count_as_often_as_they_stand() -> None:
    twice = sort_workflow("x", ["a", "a"], [[], [0]])
    once = Plan("x", (Node("a"),))
    found = PlanScores.score([once], [twice])
    assert found.node_f1 == pytest.approx([2 / 3])
    assert found.exact_nodes == [0.0]


def test_plans_are_copied_and_compared() -> None:
    test = [CHAIN, SINGLE]
    near = copy_plans([CHAIN, SINGLE, SINGLE], test, [0, 2])
    assert [node.tool for node in near[0].nodes] == ["a", "b", "c"]
    usual = PlanScores.score(copy_plans([SINGLE], test, [0, 0]), test)
    gains = PlanScores.score(near, test).compare(usual, SeedTree(0))
    assert gains["node_f1"].mean == pytest.approx(0.5)
    assert gains["node_f1"].wins == 1
