"""The audit: under the published weights failing immediately earns more than a success."""

from __future__ import annotations

from pathlib import Path

import pytest

from tutelage.errors import DataError, RewardError
from tutelage.orchestration.evaluation.audit import PRESETS, audit_logs, audit_results
from tutelage.orchestration.evaluation.rewards import ExecutionResult
from tutelage.orchestration.execution.stored import ExecutionLogger

# The example of the published log format: 10 - 0.1 * 0.045 - 0.01 * 1200 + 0.1 * 3.
PUBLISHED = ExecutionResult(True, {"0": "a", "1": "b", "2": "c"}, 0.045, 1200.0, 1.0)


def test_the_published_example_loses_to_failing_at_once() -> None:
    audit = audit_results([PUBLISHED], "seed")
    assert audit.mean == pytest.approx(-1.7045)
    assert audit.warning is not None
    assert "failing immediately earns more" in audit.warning
    audit = audit_results([PUBLISHED], "normalized")
    assert audit.mean > 0
    assert audit.warning is None


def test_logs_can_be_audited(tmp_path: Path) -> None:
    nodes = len(PUBLISHED.outputs)
    row = ExecutionLogger(tmp_path).log_execution(
        instruction="x",
        planner_outputs={"workflow_graph": {"adjacency": [[0] * nodes for _ in range(nodes)]}},
        execution_result=PUBLISHED,
    )
    assert ExecutionResult.read(row) == PUBLISHED
    audits, logged = audit_logs([tmp_path])
    assert (logged, tuple(each.preset for each in audits)) == (1, PRESETS)
    assert [each.warning is None for each in audits] == [False, True]
    with pytest.raises(RewardError, match="an execution's result has no 'success'"):
        ExecutionResult.read({"execution_result": {}})
    with pytest.raises(DataError, match="no executions to audit"):
        audit_results([], "seed")
