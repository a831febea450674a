"""The document's calls as it writes them: they work, or our errors say what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tutelage.errors import ConfigError, DataError, RewardError, TutelageError
from tutelage.orchestration import (
    ExecutionLogger,
    ExecutionResult,
    Node,
    OrchestrationSystem,
    Plan,
    PlannerModel,
    WorkflowDataset,
    classic,
    compute_gae,
    compute_reward,
    is_valid_dag,
)
from tutelage.orchestration.data.workflows import parse_workflow
from tutelage.orchestration.plan.catalog import Catalog

SMALL = 8
RESULT = {"success": True, "outputs": {"0": "a"}, "total_cost": 0.1, "total_latency_ms": 10.0}
CHAIN = [[0, 1], [0, 0]]


@pytest.fixture(scope="module")
def planner() -> PlannerModel:
    torch.manual_seed(0)
    return PlannerModel(width=SMALL).eval()


def loss_of(planner: PlannerModel, lambda_dag: float, **targets: Any) -> dict[str, torch.Tensor]:
    outputs = planner(["Read it and say it", "Say it"])
    return planner.compute_supervised_loss(outputs, targets=targets, lambda_dag=lambda_dag)


def test_the_two_targets_of_the_document_have_a_dag_gradient(planner: PlannerModel) -> None:
    targets = {"task_types": [[3, 5, 7], [2]], "model_selections": [[2, 0, 1], [0]]}
    found = loss_of(planner, 0.3, **targets)
    assert float(found["dag_loss"]) > 0
    assert float(found["edge_loss"]) == 0
    assert float(found["total_loss"]) == pytest.approx(
        float(found["ce_loss"]) + 0.3 * float(found["dag_loss"])
    )
    planner.zero_grad()
    found["dag_loss"].backward()
    grown = [p.grad.abs().sum() for p in planner.parameters() if p.grad is not None]
    assert float(torch.stack(grown).sum()) > 0
    heavier = loss_of(planner, 3.0, **targets)
    assert float(heavier["total_loss"]) > float(found["total_loss"])


def test_targets_are_numbers_or_names_of_what_the_planner_knows(planner: PlannerModel) -> None:
    catalog = planner.catalog.names
    names = loss_of(
        planner, 0.3, task_types=[[catalog[3]], [catalog[2]]],
        model_selections=[["gpt-4"], ["llama-3-8b"]],
    )  # fmt: skip
    numbers = loss_of(planner, 0.3, task_types=[[3], [2]], model_selections=[[0], [2]])
    assert torch.equal(names["total_loss"], numbers["total_loss"])


def test_a_planner_without_arguments_knows_the_built_in_tools(planner: PlannerModel) -> None:
    assert "summarize_text" in planner.catalog.names
    assert planner.vocabulary.workers[0] == "gpt-4"
    outputs = planner(["Say it"])
    for key in ("subtask_embeddings", "task_types", "model_selections", "workflow_graph"):
        assert len(outputs[key]) == 1


def test_the_reward_of_what_was_executed_needs_nothing_else() -> None:
    plan = Plan("x", (Node("summarize_text"),))
    result = OrchestrationSystem().execute("x", plan=plan)
    assert compute_reward(result) == pytest.approx(result.compute_reward("seed").value)
    assert compute_reward(result, "normalized") == pytest.approx(result.compute_reward().value)
    assert compute_reward(RESULT) == pytest.approx(10 - 0.01 - 0.1 + 0.1)
    with pytest.raises(ConfigError, match="preset='seed'"):
        compute_reward(ExecutionResult(True), "normalized")


def test_a_log_takes_dicts(tmp_path: Path) -> None:
    log = ExecutionLogger(tmp_path)
    outputs = {"model_selections": [2, 0], "workflow_graph": {"adjacency": CHAIN}}
    row = log.log_execution(instruction="Say it", planner_outputs=outputs, execution_result=RESULT)
    assert row["success"] is True
    assert row["planner_outputs"]["model_selections"] == [2, 0]
    assert json.loads(log.path.read_text())["cost"] == 0.1


def test_a_log_without_task_types_says_what_to_do() -> None:
    outputs = {"model_selections": [2, 0], "workflow_graph": {"adjacency": CHAIN}}
    row = {"instruction": "Say it", "success": True, "planner_outputs": outputs}
    with pytest.raises(DataError, match=r"no 'task_types'.*planner_outputs=plan"):
        parse_workflow(row)
    nodes = [{"node": 0, "type": "read"}, {"node": 1, "type": "say"}]
    found = parse_workflow({**row, "nodes": nodes})
    assert found.tools == ("read", "say")
    assert found.workers == (2, 0)


def test_advantages_of_lists_are_those_of_tensors() -> None:
    rewards, values = [0.0, 1.0, 2.0], [0.5, 0.25, 0.0]
    mine = compute_gae(rewards=rewards, values=values, gamma=0.99, lambda_gae=0.95)
    theirs = compute_gae(rewards=torch.tensor(rewards), values=torch.tensor(values))
    assert torch.equal(mine, theirs)
    assert compute_gae(rewards=[rewards] * 2, values=[values] * 2).shape == (2, 3)
    with pytest.raises(RewardError, match="must be finite and have the same shape"):
        compute_gae(rewards=rewards, values=[0.0, float("nan"), 0.0])


def test_the_validity_of_plans_matrices_and_logs() -> None:
    for valid in (
        Plan("x", (Node("a"), Node("b", after=(0,)))), CHAIN, torch.tensor(CHAIN), np.array(CHAIN),
        {"adjacency": CHAIN}, {"planner_outputs": {"workflow_graph": {"adjacency": CHAIN}}}, [],
    ):  # fmt: skip
        assert is_valid_dag(valid)
    for wrong in ([[0, 1], [1, 0]], [[1]], [[0, 1]], [[0, 2], [0, 0]], [1, 2]):
        assert not is_valid_dag(wrong)
    for nothing in ("plan", 3, None, {"graph": CHAIN}):
        with pytest.raises(DataError, match="expected a Plan or an adjacency matrix"):
            is_valid_dag(nothing)


def dataset(**change: Any) -> WorkflowDataset:
    columns: dict[str, Any] = {
        "instructions": ["a b"],
        "subtask_sequences": [["s"]],
        "task_types": [["t"]],
        "dependencies": [[[]]],
        "model_selections": [[0]],
    }
    return WorkflowDataset(**{**columns, **change})


def test_values_that_cannot_be_are_refused_by_name(planner: PlannerModel, tmp_path: Path) -> None:
    log = ExecutionLogger(tmp_path, workers=classic())
    plan = Plan("x", (Node("summarize_text"),))
    one: Any = {"task_types": [[3], [2]]}

    def logged(result: Any = RESULT, **outputs: Any) -> object:
        outputs = {"model_selections": [2, 0], "workflow_graph": {"adjacency": CHAIN}, **outputs}
        return log.log_execution(instruction="x", planner_outputs=outputs, execution_result=result)

    wrong: Any = None
    for call, words in (
        (lambda: Node("a", [1]), "arguments must be a mapping, got"),  # type: ignore[arg-type]
        (lambda: Node("a", {"x": [float("nan")]}), "to JSON: Out of range float values"),
        (lambda: Node("rd", {"path": Path("a")}), "node of 'rd': .* to JSON: .*Path"),
        (lambda: Plan("x", wrong), "nodes must be a tuple"),
        (lambda: PlannerModel.of([wrong], Catalog(())), "catalog is empty"),
        (lambda: PlannerModel.of([], planner.catalog), "no workflows"),
        (lambda: planner.plan(" "), "instruction 0 must be"),
        (lambda: planner.plan_all("Say it"), "instruction"),
        (lambda: OrchestrationSystem(lambda text: wrong).execute("x"), r"must be a Plan\("),
        (lambda: OrchestrationSystem().execute("x", plan=plan, budget="1"), "budget .* got '1'"),  # type: ignore[arg-type]
        (lambda: compute_reward({**RESULT, "total_cost": None}, "seed"), "'total_cost' is None"),
        (lambda: compute_reward({"cost": 1.0}, "seed"), "execution's result"),
        (lambda: compute_reward(ExecutionResult(True, {}, -1.0), "seed"), "'total_cost' is -1.0"),
        (lambda: loss_of(planner, -1, **one), "lambda_dag must be a finite number of at least 0"),
        (lambda: loss_of(planner, 0.3, model_selections=[[0]]), "no 'task_types'"),
        (lambda: loss_of(planner, 0.3, task_types=[[999], [2]]), r"has 999.*PlannerModel\.of"),
        (lambda: loss_of(planner, 0.3, **one, adjacency=3), "'adjacency' must be square matrices"),
        (lambda: logged({}), "an execution's result has no 'success'"),
        (lambda: logged({**RESULT, "total_cost": float("nan")}), "'total_cost' is nan"),
        (lambda: logged(workflow_graph={"adjacency": [[0, 1], [1, 0]]}), "without cycles"),
        (lambda: logged(model_selections=[0, 8]), "unknown worker 8 in model_selections"),
        (lambda: logged(task_types=["a"]), r"task_types must be a list of length 2, got \['a'\]"),
        (lambda: dataset(instructions=None), "a column must be a list"),
        (lambda: dataset(model_selections=[3]), "workflow 0: .*model_selections is 3; give a list"),
        (lambda: dataset(dependencies=[[[0]]]), "cycle"),
    ):
        with pytest.raises(TutelageError, match=words):
            call()
    assert not log.path.exists()
