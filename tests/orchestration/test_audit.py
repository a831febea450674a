"""The audit: the published numbers, what the terms weigh, and who comes out on top."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from tutelage.errors import DataError
from tutelage.orchestration.evaluation.audit import (
    audit_logs,
    audit_results,
    judged_results,
    published_example,
)
from tutelage.orchestration.evaluation.rewards import (
    ExecutionResult,
    Preset,
    RewardWeights,
    compute_reward,
)
from tutelage.orchestration.execution.stored import ExecutionLogger


def test_the_published_example_loses_to_failing_at_once() -> None:
    """10 - 0.1 * 0.045 - 0.01 * 1200 + 0.1 * 3."""
    example = published_example()
    assert compute_reward(example, "seed") == pytest.approx(-1.7045)
    audit = audit_results([example], "seed")
    assert audit.fail_at_once == 0.0 > audit.mean == pytest.approx(-1.7045)
    assert audit.losing == 1.0
    assert audit.warning is not None
    assert "failing at once earns more" in audit.warning


@pytest.mark.parametrize("preset", ["seed_seconds", "normalized", "gated"])
def test_the_other_presets_prefer_the_example_to_failing(preset: Any) -> None:
    audit = audit_results([published_example()], preset)
    assert audit.fail_at_once < audit.mean
    assert audit.losing == 0.0
    assert audit.warning is None


def test_shares_of_variance_by_hand() -> None:
    """Success varies by 100/4 = 25, latency in ms by (0.01 * 1000)^2 / 4 = 25, others not."""
    results = [ExecutionResult(True, {}, 0.0, 1000.0), ExecutionResult(False, {}, 0.0, 0.0)]
    audit = audit_results(results, "seed")
    assert audit.variance == {"success": 0.5, "cost": 0.0, "latency": 0.5, "shaped": 0.0}
    assert audit.succeeded == 1


def test_weights_are_the_callers() -> None:
    weights = RewardWeights(gamma_latency=0.0)
    assert audit_results([published_example()], "seed", weights=weights).warning is None


def test_logs_can_be_audited(tmp_path: Path) -> None:
    done = published_example()
    nodes = len(done.outputs)
    row = ExecutionLogger(tmp_path).log_execution(
        instruction="x",
        planner_outputs={"workflow_graph": {"adjacency": [[0] * nodes for _ in range(nodes)]}},
        execution_result=done,
    )
    assert judged_results([row]) == [done]
    audits, logged = audit_logs([tmp_path])
    assert (logged, [each.preset for each in audits]) == (1, list(get_args(Preset)))
    assert [each.warning is None for each in audits] == [False, True, True, True]
    with pytest.raises(DataError, match="line 1 is no execution"):
        judged_results([{"instruction": "x"}])
    with pytest.raises(DataError, match="no executions to audit"):
        audit_results([], "seed")
