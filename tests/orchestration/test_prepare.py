"""Logs to training data: only what succeeded, the cheapest, and cheaper workers that also did."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tutelage.errors import DataError
from tutelage.orchestration.data.formats import workflow_of
from tutelage.orchestration.data.prepare import prepare
from tutelage.orchestration.evaluation.rewards import ExecutionResult
from tutelage.orchestration.execution.budget import Budget
from tutelage.orchestration.execution.pools.tools import ToolPool, described
from tutelage.orchestration.execution.record import Execution
from tutelage.orchestration.execution.stored import ExecutionLogger
from tutelage.orchestration.execution.system import OrchestrationSystem
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import Node, Plan
from tutelage.tools.tool import ToolError, tool


def line(instruction: str, cost: float, *, success: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "instruction": instruction,
        "success": success,
        "cost": cost,
        "latency_ms": 100.0,
        "planner_outputs": {
            "task_types": ["a", "b"],
            "model_selections": [1, 1],
            "workflow_graph": {"adjacency": [[0, 1], [0, 0]]},
        },
        "workers": ["cheap", "good"],
        **more,
    }


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "executions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def test_failures_are_left_out_and_the_cheapest_success_is_kept(tmp_path: Path) -> None:
    made = prepare(
        [
            write(
                tmp_path,
                line("one", 0.3),
                line("one", 0.1),
                line("two", 0.1, success=False),
                line("three", 0.1, correct=False),
            )
        ]
    )
    assert [w.instruction for w in made.workflows] == ["one"]
    assert made.workflows[0].rewards["cost"] == -0.1
    assert (made.executions, made.failed, made.repeated) == (4, 2, 1)


def test_a_cheaper_worker_that_passed_becomes_the_label(tmp_path: Path) -> None:
    row = line(
        "one",
        0.3,
        tries=[
            {"node": 0, "passed": True, "cost": 0.2},
            {"node": 1, "passed": True, "cost": 0.1},
        ],
        alternatives=[
            {"node": 0, "worker": "cheap", "passed": True, "cost": 0.05},
            {"node": 1, "worker": "cheap", "passed": False, "cost": 0.01},
        ],
    )
    made = prepare([write(tmp_path, row)])
    assert made.workflows[0].workers == ("cheap", "good")
    assert made.cheaper == 1


def test_arguments_and_what_tools_say_of_themselves_are_kept(tmp_path: Path) -> None:
    """As `orchestrate run --logs` writes them."""

    def area(width: float, height: float) -> float:
        """The area of a wall."""
        return width * height

    tools = Catalog(described({"area": tool(area)}))
    nodes = (
        Node("area", {"width": 4, "height": 3}),
        Node("area", {"width": 1, "height": "<node-0>"}),
    )
    logger = ExecutionLogger(tmp_path, catalog=tools)
    result = ExecutionResult(success=True, total_cost=0.0, total_latency_ms=1.0, outputs={})
    plan = Plan("how large?", nodes)
    logger.log_execution(instruction="how large?", planner_outputs=plan, execution_result=result)
    made = prepare([tmp_path])
    assert [node.arguments for node in made.workflows[0].plan.nodes] == [n.arguments for n in nodes]
    assert made.catalog().tools == tools.tools
    assert workflow_of(made.workflows[0].to_row(tools), tools) == made.workflows[0]


def test_what_succeeded_by_a_further_plan_is_kept_without_what_failed(tmp_path: Path) -> None:
    @tool
    def say(text: str) -> str:
        """Say a text."""
        return text

    @tool
    def fail(text: str) -> str:
        """Fail."""
        raise ToolError("broken")

    class Planner:
        def plan(self, instruction: str) -> Plan:
            nodes = (Node("say", {"text": "a"}), Node("fail", {"text": "<node-0>"}))
            return Plan(instruction, (*nodes, Node("say", {"text": "<node-1>!"})))

        async def rest(self, execution: Execution, budget: Budget) -> Plan:
            more = (Node("say", {"text": "<node-0>b"}), Node("say", {"text": "<node-3>!"}))
            return replace(execution.plan, nodes=(*execution.plan.nodes, *more))

    system = OrchestrationSystem(
        Planner(),
        ToolPool({"say": say, "fail": fail}),
        execution_logger=ExecutionLogger(tmp_path),
    )
    done = system.execute("Say it")
    assert done.success
    assert done.abandoned == (1, 2)
    assert done.correct is None
    made = prepare([tmp_path])
    assert (made.executions, made.failed) == (1, 0)
    (workflow,) = made.workflows
    assert [node.arguments["text"] for node in workflow.plan.nodes] == [
        "a",
        "<node-0>b",
        "<node-1>!",
    ]
    assert workflow.tools == ("say", "say", "say")


def test_what_takes_a_result_that_failed_is_left_out_and_counted(tmp_path: Path) -> None:
    def ended(*states: str) -> list[dict[str, Any]]:
        return [{"node": k, "status": state} for k, state in enumerate(states)]

    outputs = {
        "task_types": ["a", "b"],
        "arguments": [{"t": "<node-1>"}, {}],
        "workflow_graph": {"adjacency": [[0, 0], [1, 0]]},
    }
    takes = line("one", 0.1, planner_outputs=outputs, nodes=ended("succeeded", "failed"))
    none = line("two", 0.1, nodes=ended("failed", "skipped"))
    better = [{"node": 0, "worker": "cheap", "passed": True, "cost": 0.0}]
    part = line("three", 0.1, nodes=ended("failed", "succeeded"), alternatives=better)
    made = prepare([write(tmp_path, takes, none, part)])
    assert (made.executions, made.failed, made.unusable) == (3, 0, 2)
    assert [workflow.tools for workflow in made.workflows] == [("b",)]
    assert made.cheaper == 0
    with pytest.raises(DataError, match="subtask 0 takes the result of subtask 1, which failed"):
        workflow_of(takes)


@pytest.mark.parametrize(
    "nodes", [["a", "b"], 2, '[{"node": 7}]', [{"node": [0], "status": "failed"}], {"0": "failed"}]
)
def test_what_others_write_of_nodes_stops_nothing(tmp_path: Path, nodes: Any) -> None:
    row = line("one", 0.1)
    assert prepare([write(tmp_path, {**row, "nodes": nodes})]).workflows == [workflow_of(row)]


def test_an_instruction_that_was_done_by_several_plans_is_counted(tmp_path: Path) -> None:
    def by(*texts: str, matrix: list[list[int]]) -> dict[str, Any]:
        outputs = {
            "task_types": ["say"] * len(texts),
            "arguments": [{"text": text} for text in texts],
            "workflow_graph": {"adjacency": matrix},
        }
        return line("one", 0.0, planner_outputs=outputs)

    chain, turned = [[0, 1], [0, 0]], [[0, 0], [1, 0]]
    same = [by("a", "<node-0>!", matrix=chain), by("<node-1>!", "a", matrix=turned)]
    assert prepare([write(tmp_path, *same)]).disagreed == 0
    other = by("a", "a!", matrix=chain)
    made = prepare([write(tmp_path, *same, other, other)])
    assert (made.disagreed, made.repeated, len(made.workflows)) == (1, 3, 1)


def test_a_cheaper_worker_stays_with_its_node_where_arguments_alone_order_them(
    tmp_path: Path,
) -> None:
    row = line(
        "one",
        0.3,
        alternatives=[{"node": 0, "worker": "cheap", "passed": True, "cost": 0.0}],
        tools=["a", "b"],
    )
    row["planner_outputs"] |= {
        "workflow_graph": {"adjacency": [[0, 0], [0, 0]]},
        "arguments": [{"q": "<node-1>"}, {}],
    }
    made = prepare([write(tmp_path, row)])
    assert made.workflows[0].tools == ("b", "a")
    assert made.workflows[0].workers == ("good", "cheap")


@pytest.mark.parametrize("given", [5, {"x": 1}, ["a"], [{}, {}]])
def test_arguments_that_nobody_could_read_are_not_logged(tmp_path: Path, given: Any) -> None:
    outputs = {"workflow_graph": {"adjacency": [[0]]}, "task_types": ["a"], "arguments": given}
    result = ExecutionResult(success=True, total_cost=0.0, total_latency_ms=1.0, outputs={})
    logger = ExecutionLogger(tmp_path)
    with pytest.raises(DataError, match="arguments"):
        logger.log_execution(instruction="x", planner_outputs=outputs, execution_result=result)


def test_logs_that_teach_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no execution log"):
        prepare([tmp_path])
    with pytest.raises(DataError, match="of 1 execution none succeeded"):
        prepare([write(tmp_path, line("one", 0.1, success=False))])
    bad = line("one", 0.1)
    bad["planner_outputs"]["workflow_graph"]["adjacency"] = [[0, 1], [1, 0]]
    with pytest.raises(DataError, match=r"row 0.*cycle"):
        prepare([write(tmp_path, bad)])
