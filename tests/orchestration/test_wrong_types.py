"""Values of wrong types in Python calls: each is refused by name, with what to give instead."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch

from tutelage.errors import ConfigError, DataError, RewardError, RunError, TutelageError
from tutelage.orchestration import (
    ExecutionLogger,
    ExecutionResult,
    Node,
    OrchestrationSystem,
    Plan,
    PlannerModel,
    WorkflowDataset,
    classic,
    compute_reward,
)
from tutelage.orchestration.plan.catalog import Catalog

PLAN = Plan("x", (Node("summarize_text"),))
RESULT = {"success": True, "outputs": {"0": "a"}, "total_cost": 0.1, "total_latency_ms": 10.0}
CHAIN = [[0, 1], [0, 0]]


def nothing(text: str) -> Any:
    return None


def execute(**given: Any) -> object:
    return OrchestrationSystem(lambda text: PLAN).execute("x", **given)


def test_settings_of_a_wrong_type_are_refused() -> None:
    for call, words in (
        (lambda: OrchestrationSystem(nothing).execute("x"), r"the plan must be a Plan\("),
        (lambda: execute(budget="much"), "budget must be .* got 'much'"),
    ):
        with pytest.raises(ConfigError, match=words):
            call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Node(None), "a node's tool must be the name"),  # type: ignore[arg-type]
        (lambda: Node("a", [1]), "arguments must be a mapping, got"),  # type: ignore[arg-type]
        (lambda: Node("a", {1: 2}), "to JSON: a key is not a string"),  # type: ignore[dict-item]
        (lambda: Node("a", {"x": [{1: 2}]}), "to JSON: a key is not a string"),
        (lambda: Node("a", {"x": [nan]}), "to JSON: Out of range float values"),
        (lambda: Node("a", {"x": {"y": -inf}}), "to JSON: Out of range float values"),
        (lambda: Node("a", after=0), "after must be a tuple"),  # type: ignore[arg-type]
        (lambda: Node("a", after=("0",)), "after must be a tuple of ints, got '0'"),  # type: ignore[arg-type]
        (lambda: Plan("x", None), "nodes must be a tuple"),  # type: ignore[arg-type]
        (lambda: Plan("x", ({"tool": "a"},)), "node must be a Node"),  # type: ignore[arg-type]
        (lambda: Plan(None, ()), "instruction must be a string"),  # type: ignore[arg-type]
        (lambda: PlannerModel.of([1], Catalog(())), "catalog is empty"),  # type: ignore[list-item]
        (lambda: PlannerModel.of([1], None), "each workflow must be a Workflow"),  # type: ignore[list-item,arg-type]
        (lambda: compute_reward(ExecutionResult("yes"), "seed"), "'success' is 'yes'"),  # type: ignore[arg-type]
        (lambda: compute_reward(ExecutionResult(True, ["a"]), "seed"), "'outputs' is \\['a'\\]"),  # type: ignore[arg-type]
        (lambda: compute_reward(ExecutionResult(True, {}, None), "seed"), "'total_cost' is None"),  # type: ignore[arg-type]
        (lambda: compute_reward({**RESULT, "outputs": 3}, "seed"), "'outputs' is 3; give a JSON"),
        (lambda: compute_reward({**RESULT, "total_cost": None}, "seed"), "'total_cost' is None"),
        (lambda: compute_reward({**RESULT, "execution_result": 3}), "result: the row is 3"),
    ],
)
def test_values_of_a_wrong_type_are_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises((DataError, RewardError, RunError, ConfigError), match=words):
        call()


@pytest.mark.parametrize(
    ("outputs", "more", "words"),
    [
        ({"model_selections": [0]}, {}, "must be a list of length 2"),
        ({"model_selections": [0, 0.5]}, {}, "unknown worker 0.5 in model_selections"),
        ({"model_selections": [0, None]}, {}, "unknown worker None in model_selections"),
        (
            {"model_selections": ["gpt-4", "nobody"]},
            {},
            "unknown worker 'nobody' in model_selections.*gpt-4",
        ),
        ({"model_selections": [0, 8]}, {}, "unknown worker 8 in model_selections"),
        ({"model_selections": "ab"}, {}, "model_selections must be a list"),
        ({"model_selections": None}, {}, "model_selections must be a list"),
        ({"task_types": 3}, {}, "task_types must be a list"),
        ({"subtasks": "ab"}, {}, "subtasks must be a list"),
    ],
)
def test_a_log_refuses_wrong_types(
    tmp_path: Path, outputs: Any, more: dict[str, Any], words: str
) -> None:
    log = ExecutionLogger(tmp_path, workers=classic())
    planned = {"model_selections": [2, 0], "workflow_graph": {"adjacency": CHAIN}, **outputs}
    with pytest.raises(DataError, match=words):
        log.log_execution(instruction="x", planner_outputs=planned, execution_result=RESULT, **more)
    assert not log.path.exists()


@pytest.fixture(scope="module")
def planner() -> PlannerModel:
    torch.manual_seed(0)
    return PlannerModel(width=8).eval()


@pytest.mark.parametrize("given", ["Say it", None, 3, [3], [None], {"a": 1}, [" "]])
def test_a_planner_takes_a_list_of_texts(planner: PlannerModel, given: Any) -> None:
    for call in (planner, planner.plan_all):
        with pytest.raises(DataError, match="instruction"):
            call(given)
    with pytest.raises(DataError, match="instruction 0 must be"):
        planner.plan(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("targets", "weight", "words"),
    [
        ({}, -1, "lambda_dag must be a finite number of at least 0"),
        ({}, "x", "lambda_dag must be .* got 'x'"),
        (None, 0.3, "the targets must be an object with task_types"),
        ({"task_types": [[-5]]}, 0.3, "'task_types' has -5"),
        ({"task_types": [[0.5]]}, 0.3, "'task_types' has 0.5"),
        ({"model_selections": [[0, 1]]}, 0.3, "subtasks in 'task_types' .* and 'model_selections'"),
        ({"adjacency": [[[float("nan")]]]}, 0.3, "adjacency row 0 .* entries of 0 or 1"),
        ({"adjacency": [[[5]]]}, 0.3, "adjacency row 0 .* entries of 0 or 1"),
        ({"adjacency": 3}, 0.3, "'adjacency' must be square matrices, got 3"),
    ],
)
def test_a_loss_refuses_wrong_types(
    planner: PlannerModel, targets: Any, weight: Any, words: str
) -> None:
    given: Any = targets if targets is None else {"task_types": [[3]], **targets}
    with pytest.raises(TutelageError, match=words):
        planner.compute_supervised_loss(planner(["Say it"]), given, lambda_dag=weight)
    with pytest.raises(ConfigError, match=r"outputs must be the output of planner\("):
        planner.compute_supervised_loss({}, {"task_types": [[3]]})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("column", "given", "words"),
    [
        ("instructions", None, "a column must be a list"),
        (
            "task_types",
            [None],
            "workflow 0: 'targets' has no 'task_types'|workflow 0: .*task_types",
        ),
        ("model_selections", [3], "workflow 0: targets.model_selections is 3; give a list"),
    ],
)
def test_a_dataset_refuses_wrong_types(column: str, given: Any, words: str) -> None:
    columns: dict[str, Any] = {
        "instructions": ["a b"],
        "subtask_sequences": [["s"]],
        "task_types": [["t"]],
        "dependencies": [[[]]],
        "model_selections": [[0]],
    }
    with pytest.raises(TutelageError, match=words):
        WorkflowDataset(**{**columns, column: given})
