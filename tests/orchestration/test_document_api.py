"""The document's calls as it writes them: they work, or our errors say what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tutelage.errors import ConfigError, DataError, RewardError, RunError
from tutelage.orchestration import (
    ExecutionLogger,
    ExecutionResult,
    ModelSelector,
    Node,
    NoPlanError,
    OrchestrationSystem,
    Plan,
    PlannerModel,
    compute_gae,
    compute_reward,
    is_valid_dag,
)
from tutelage.orchestration.data.workflows import workflow_of
from tutelage.orchestration.execution.pools.tools import ToolPool
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool
from tutelage.orchestration.planner.confidence import Confidence
from tutelage.orchestration.planner.model import PlanPrediction
from tutelage.orchestration.planner.targets import WorkflowDataset
from tutelage.orchestration.routing.policy import (
    CONTEXT_FEATURES,
    WORKER_FEATURES,
    DecisionFeatures,
)
from tutelage.orchestration.routing.simulator import TRUTHS
from tutelage.tools import tool

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
    for targets, told in (
        ({"model_selections": [[0]]}, "no 'task_types'"),
        ({"task_types": [[3], [2]], "model_selections": [[99], [0]]}, "'model_selections' has 99"),
        ({"task_types": [[999], [2]]}, r"'task_types' has 999.*PlannerModel\.of"),
        ({"task_types": [["paint"], [2]]}, "'task_types' has 'paint'"),
        ({"task_types": [[1]]}, "1 plan for 2 instructions"),
        ({"task_types": [1, 2]}, "must be a list per plan"),
    ):
        with pytest.raises(DataError, match=told):
            loss_of(planner, 0.3, **targets)


def test_padded_arrays_are_scored_as_the_lists_they_stand_for(planner: PlannerModel) -> None:
    def total(tools: Any, workers: Any) -> float:
        found = loss_of(planner, 0.3, task_types=tools, model_selections=workers)
        return float(found["total_loss"].detach())

    end = len(planner.catalog)
    wanted = total([[0, 1], [1]], [[0, 1], [1]])
    padded = np.array([[0, 1], [1, -1]])
    rows = [np.array([0, 1]), np.array([1])]
    for tools, workers in (
        (torch.tensor(padded), torch.tensor(padded)),
        (torch.tensor([[0, 1, end], [1, end, -100]]), torch.tensor([[0, 1, -1], [1, -1, -1]])),
        (torch.tensor([[0, 1, -1, -1], [1, -1, -1, -1]]), torch.tensor(padded)),
        (padded, padded),
        (rows, [torch.tensor(row) for row in rows]),
    ):
        assert total(tools, workers) == wanted
    full = [[0, 1], [1, 0]]
    assert total(torch.tensor(full), torch.tensor(full)) == total(full, full)
    with pytest.raises(DataError, match="'task_types' has -1, which is not one of"):
        total(torch.tensor([[0, -1, 1], [1, 1, 1]]), padded)


def test_a_batch_of_other_tools_is_refused_with_the_way_out(planner: PlannerModel) -> None:
    workflows = (["Read it and say it", "Say it"], [[], []], [["read", "say"], ["say"]])
    dataset = WorkflowDataset(*workflows, [[[], [0]], [[]]], [[0, 1], [1]])
    batch = next(iter(DataLoader(dataset, batch_size=2)))
    del batch["instruction"]
    own = PlannerModel.of(dataset.workflows, dataset.vocabulary.catalog, SMALL).eval()
    assert float(loss_of(own, 0.3, **batch)["edge_loss"]) > 0
    two = {key: batch[key] for key in ("task_types", "model_selections")}
    for targets in (batch, two):
        with pytest.raises(DataError, match=r"\[3, 2\].*planner = PlannerModel\.of\(d"):
            loss_of(planner, 0.3, **targets)


def test_a_planner_without_arguments_knows_the_built_in_tools(planner: PlannerModel) -> None:
    assert "summarize_text" in planner.catalog.names
    assert planner.vocabulary.workers[0] == "gpt-4"
    outputs = planner(["Say it"])
    for key in ("subtask_embeddings", "task_types", "model_selections", "workflow_graph"):
        assert len(outputs[key]) == 1


def test_the_reward_of_what_was_executed_needs_nothing_else() -> None:
    plan = Plan("x", (Node("summarize_text"),))
    result = OrchestrationSystem().execute("x", plan=plan)
    assert compute_reward(result) == pytest.approx(result.earned("seed").value)
    assert compute_reward(result, "normalized") == pytest.approx(result.earned().value)
    assert compute_reward(RESULT) == pytest.approx(10 - 0.01 - 0.1 + 0.1)
    with pytest.raises(ConfigError, match="preset='seed'"):
        compute_reward(ExecutionResult(True), "normalized")
    for wrong in ({"cost": 1.0}, None, "done", {**RESULT, "total_cost": "much"}):
        with pytest.raises(RewardError, match="execution's result"):
            compute_reward(wrong, "seed")  # type: ignore[arg-type]


def test_rows_of_a_log_and_results_have_each_others_names() -> None:
    result = ExecutionResult(True, {"0": "a", "1": ""}, 0.045, 1200.0)
    assert (result.cost, result.latency_ms) == (0.045, 1200.0)
    fields = {"success": True, "outputs": {"0": "a", "1": ""}}
    whole = {**fields, "total_cost": 0.045, "total_latency_ms": 1200.0}
    for row in (whole, {"success": True, "cost": 0.045, "execution_result": whole}):
        assert compute_reward(row, "seed") == pytest.approx(compute_reward(result, "seed"))


def test_a_system_without_a_planner_asks_the_shipped_one() -> None:
    system = OrchestrationSystem()
    done = system.execute("Summarise the article and translate it to French")
    assert [node.tool for node in done.plan.nodes] == ["summarize_text", "translate_text"]
    other = OrchestrationSystem(catalog=Catalog((CatalogTool("summarise"),)))
    with pytest.raises(NoPlanError, match=r"supports only the built-in tools.*train planner"):
        other.execute("Summarise it")


@tool
def summarise(text: str) -> str:
    """Summarise a text."""
    return text


def test_a_system_of_tools_needs_a_language_model_or_a_plan() -> None:
    pool = ToolPool({"summarise": summarise})
    for catalog in (None, Catalog((CatalogTool("summarise"),))):
        system = OrchestrationSystem(pool=pool, catalog=catalog)
        with pytest.raises(ConfigError, match="custom tools need a language model as planner"):
            system.execute("Summarise it")
    plan = Plan("x", (Node("summarise", {"text": "it"}),))
    assert OrchestrationSystem(pool=pool).execute("x", plan=plan).answers == {0: "it"}


def test_the_reward_of_what_tools_did_needs_nothing_else() -> None:
    pool = ToolPool({"summarise": summarise})
    plan = Plan("x", (Node("summarise", {"text": "a"}),))
    result = OrchestrationSystem(pool=pool).execute("x", plan=plan)
    assert compute_reward(result, "normalized") == pytest.approx(result.earned().value)


class Unsure:
    """A trained planner of which only the confidence counts here."""

    confidence = object()

    def plan(self, instruction: str, min_confidence: float | None = None) -> Plan:
        plan = Plan(instruction, (Node("summarize_text"), Node("summarize_text", after=(0,))))
        return PlanPrediction(plan, None, True, 0.1, 0.4).sure(min_confidence)


def test_a_planner_that_is_unsure_declines_as_the_command_does() -> None:
    told = (
        r"not sure enough to plan: the confidence of the best guess \(summarize_text\) is 10 %, "
        r"below the threshold of 40 %; set --min-confidence \(min_confidence in Python\) to 0"
    )
    with pytest.raises(NoPlanError, match=told):
        OrchestrationSystem(Unsure()).execute("Buy bread")
    with pytest.raises(NoPlanError, match="threshold of 50 %"):
        OrchestrationSystem(Unsure(), min_confidence=0.5).execute("Buy bread")
    assert OrchestrationSystem(Unsure(), min_confidence=0).execute("Buy bread").plan.nodes
    plan = PlanPrediction(Plan("x", (Node("a"),)), None, True)
    assert plan.sure(1.0) is plan.plan, "it cannot tell"


def test_a_trained_planner_says_how_sure_it_must_be(planner: PlannerModel) -> None:
    assert planner.plan("Say it", 1.0).nodes, "without a confidence it takes its best guess"
    count = 14
    planner.confidence = Confidence((0.0,) * count, (1.0,) * count, (0.0,) * (count + 1), 0.6)
    try:
        with pytest.raises(NoPlanError, match=r"50 %, below the threshold of 60 %"):
            planner.plan("Say it")
        assert planner.plan("Say it", 0.4).nodes
    finally:
        planner.confidence = None


def test_a_log_takes_dicts(tmp_path: Path) -> None:
    log = ExecutionLogger(tmp_path)
    outputs = {"model_selections": [2, 0], "workflow_graph": {"adjacency": CHAIN}}
    row = log.log_execution(instruction="Say it", planner_outputs=outputs, execution_result=RESULT)
    assert row["success"] is True
    assert row["planner_outputs"]["model_selections"] == [2, 0]
    assert json.loads(log.path.read_text())["cost"] == 0.1
    with pytest.raises(RewardError, match="an execution's result has no 'success'"):
        log.log_execution(instruction="x", planner_outputs=outputs, execution_result={})


@pytest.mark.parametrize(
    ("outputs", "result", "more", "words"),
    [
        (
            {},
            {"total_latency_ms": -1.0},
            {},
            "'total_latency_ms' is -1.0; input should be greater than",
        ),
        ({}, {"total_cost": float("nan")}, {}, "'total_cost' is nan"),
        (
            {},
            {"verified_fraction": 2.0},
            {},
            "'verified_fraction' is 2.0; input should be less than",
        ),
        ({}, {"success": "no"}, {}, "'success' is 'no'; input should be a valid boolean"),
        ({}, {"outputs": {"0": float("inf")}}, {}, "cannot write the execution"),
        ({"workflow_graph": {"adjacency": [[0, 1], [1, 0]]}}, {}, {}, "without cycles"),
        ({"workflow_graph": {"adjacency": [[0, 0.5], [0, 0]]}}, {}, {}, "a square 0/1 matrix"),
        (
            {"model_selections": [2]},
            {},
            {},
            r"model_selections must be a list of length 2, got \[2\]",
        ),
        ({"task_types": ["a"]}, {}, {}, r"task_types must be a list of length 2, got \['a'\]"),
    ],
)
def test_a_log_that_cannot_be_is_refused(
    tmp_path: Path, outputs: Any, result: Any, more: Any, words: str
) -> None:
    log = ExecutionLogger(tmp_path)
    planned = {"model_selections": [2, 0], "workflow_graph": {"adjacency": CHAIN}, **outputs}
    fields: Any = {"instruction": "Say it", **more}
    with pytest.raises((DataError, RewardError, RunError), match=words):
        log.log_execution(planner_outputs=planned, execution_result={**RESULT, **result}, **fields)
    assert not log.path.exists()


def test_a_log_without_task_types_says_what_to_do() -> None:
    outputs = {"model_selections": [2, 0], "workflow_graph": {"adjacency": CHAIN}}
    row = {"instruction": "Say it", "success": True, "planner_outputs": outputs}
    with pytest.raises(DataError, match=r"no 'task_types'.*planner_outputs=plan"):
        workflow_of(row)
    nodes = [{"node": 0, "type": "read"}, {"node": 1, "type": "say"}]
    found = workflow_of({**row, "nodes": nodes})
    assert found.tools == ("read", "say")
    assert found.workers == (2, 0)


def test_advantages_of_lists_are_those_of_tensors() -> None:
    rewards, values = [0.0, 1.0, 2.0], [0.5, 0.25, 0.0]
    mine = compute_gae(rewards=rewards, values=values, gamma=0.99, lambda_gae=0.95)
    theirs = compute_gae(rewards=torch.tensor(rewards), values=torch.tensor(values))
    assert torch.equal(mine, theirs)
    assert compute_gae(rewards=[rewards] * 2, values=[values] * 2).shape == (2, 3)
    for rewards, values in (
        ([0.0, 1.0, 2.0], [0.0, 1.0]),
        ([0.0, float("nan")], [0.0, 0.0]),
        ([[0.0]], [[float("inf")]]),
    ):  # fmt: skip
        with pytest.raises(RewardError, match="must be finite and have the same shape"):
            compute_gae(rewards=rewards, values=values)


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


def test_the_loss_of_the_document_says_which_states_it_takes() -> None:
    rest: Any = {key: [0.0] for key in ("old_log_probs", "advantages", "returns")}
    for states in ([{"state": 1}], None):
        with pytest.raises(RewardError, match="states must be DecisionFeatures of decisions"):
            ModelSelector(0).compute_loss(states=states, actions=[0], **rest)  # pyright: ignore[reportArgumentType]
    features = DecisionFeatures(
        torch.zeros(1, 2, WORKER_FEATURES), torch.zeros(1, CONTEXT_FEATURES), torch.zeros(1, 4),
        torch.ones(1, 4, dtype=torch.bool), torch.zeros(1, TRUTHS),
    )  # fmt: skip
    found = ModelSelector(0).compute_loss(states=features, actions=[0], **rest)
    found["total_loss"].backward()
    assert float(found["policy_loss"]) == 0
