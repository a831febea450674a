"""Logs to training data: only what succeeded, the cheapest, and cheaper workers that also did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tutelage.errors import DataError
from tutelage.orchestration.data.prepare import prepare
from tutelage.orchestration.data.workflows import workflow_of
from tutelage.orchestration.evaluation.rewards import ExecutionResult
from tutelage.orchestration.execution.stored import ExecutionLogger


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
    made, counts = prepare(
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
    assert [w.instruction for w in made] == ["one"]
    assert made[0].rewards["cost"] == -0.1
    assert counts == {"executions": 4, "failed": 2, "examples": 1}


def test_what_succeeded_by_a_further_plan_is_left_out_and_counted(tmp_path: Path) -> None:
    ended = [{"node": 0, "status": "failed"}, {"node": 1, "status": "succeeded"}]
    made, counts = prepare([write(tmp_path, line("one", 0.1), line("two", 0.1, nodes=ended))])
    assert (counts["executions"], counts["failed"]) == (2, 1)
    assert [workflow.instruction for workflow in made] == ["one"]


@pytest.mark.parametrize(
    "nodes", [["a", "b"], 2, '[{"node": 7}]', [{"node": [0]}], {"0": "failed"}]
)
def test_what_others_write_of_nodes_stops_nothing(tmp_path: Path, nodes: Any) -> None:
    row = line("one", 0.1)
    assert prepare([write(tmp_path, {**row, "nodes": nodes})])[0] == [workflow_of(row)]


@pytest.mark.parametrize("given", [5, {"x": 1}, [{}, {}]])
def test_arguments_that_nobody_could_read_are_not_logged(tmp_path: Path, given: Any) -> None:
    outputs = {"workflow_graph": {"adjacency": [[0]]}, "task_types": ["a"], "arguments": given}
    result = ExecutionResult(success=True, total_cost=0.0, total_latency_ms=1.0, outputs={})
    logger = ExecutionLogger(tmp_path)
    with pytest.raises(DataError, match="arguments"):
        logger.log_execution(instruction="x", planner_outputs=outputs, execution_result=result)


def test_logs_that_teach_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no execution log"):
        prepare([tmp_path])
    with pytest.raises(DataError, match="0 of 1 execution succeeded"):
        prepare([write(tmp_path, line("one", 0.1, success=False))])
    bad = line("one", 0.1)
    bad["planner_outputs"]["workflow_graph"]["adjacency"] = [[0, 1], [1, 0]]
    with pytest.raises(DataError, match=r"row 0.*cycle"):
        prepare([write(tmp_path, bad)])
