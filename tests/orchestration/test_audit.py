"""The audit: the published numbers, what the terms weigh, and who comes out on top."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tutelage.errors import ConfigError, DataError
from tutelage.orchestration.data.synthetic import builtin_graph, generate
from tutelage.orchestration.evaluation.audit import (
    PRESETS,
    audit_policies,
    audit_results,
    audit_routers,
    judged_results,
    published_example,
)
from tutelage.orchestration.evaluation.rewards import ExecutionResult, RewardWeights, compute_reward
from tutelage.orchestration.execution.executor import Executor
from tutelage.orchestration.execution.pools.openai import OpenAIPool
from tutelage.orchestration.execution.pools.simulated import SimulatedPool
from tutelage.orchestration.execution.stored import ExecutionLogger
from tutelage.orchestration.execution.virtual_time import run_virtual
from tutelage.orchestration.execution.worker_files import classic
from tutelage.orchestration.execution.workers import Worker
from tutelage.seeds import SeedTree


def test_the_published_example_loses_to_failing_at_once() -> None:
    """10 - 0.1 * 0.045 - 0.01 * 1200 + 0.1 * 3."""
    example = published_example()
    assert compute_reward(example, "seed") == pytest.approx(-1.7045)
    audit = audit_results([example], "seed")
    assert audit.fail_at_once == 0.0 > audit.mean == pytest.approx(-1.7045)
    assert audit.failing_wins
    assert audit.losing == 1.0
    assert audit.warning is not None
    assert "failing at once earns more" in audit.warning


@pytest.mark.parametrize("preset", ["seed_seconds", "normalized", "gated"])
def test_the_other_presets_prefer_the_example_to_failing(preset: Any) -> None:
    audit = audit_results([published_example()], preset)
    assert not audit.failing_wins
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


def policies() -> dict[str, list[Any]]:
    pool = SimulatedPool(classic())
    plans = [w.plan for w in generate(builtin_graph(), 60, SeedTree(1), max_nodes=5)]

    async def run() -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for name, router in audit_routers(pool).items():
            executor = Executor(pool, router, catalog=builtin_graph().catalog)
            found[name] = await asyncio.gather(
                *(executor.run(p, seeds=SeedTree(2, (i,))) for i, p in enumerate(plans))
            )
        return found

    return run_virtual(run())


@pytest.fixture(scope="module")
def ran() -> dict[str, list[Any]]:
    return policies()


@pytest.mark.parametrize("preset", ["seed_seconds", "normalized", "gated"])
def test_the_oracle_is_on_top_under_the_sound_presets(ran: Any, preset: Any) -> None:
    audit = audit_policies(ran, preset)
    names = [name for name, _ in audit.ranking]
    assert names[0] == "oracle"
    assert set(names) == {"random", "cheapest", "best", "oracle", "failing at once"}
    assert audit.oracle_on_top
    assert audit.warning is None
    assert sum(audit.variance.values()) == pytest.approx(1.0)


def test_under_the_published_milliseconds_training_is_warned_of(ran: Any) -> None:
    audit = audit_policies(ran, "seed")
    assert audit.variance["latency"] > 0.3
    assert audit.warning is not None
    assert "'seed' rewards the wrong thing" in audit.warning


def test_a_reward_whose_oracle_is_not_on_top_is_named() -> None:
    good, bad = ExecutionResult(True, {}, 1.0, 0.0), ExecutionResult(False, {}, 0.0, 0.0)
    audit = audit_policies(
        {"oracle": [good], "cheapest": [bad], "random": [bad]},
        "seed",
        weights=RewardWeights(alpha=1.0, beta=5.0),
    )
    assert audit.oracle_on_top is False
    assert audit.warning is not None
    assert "'cheapest' earns more than the oracle" in audit.warning


def test_failing_at_once_is_one_of_the_policies() -> None:
    """An oracle that earns less than giving up is not on top."""
    slow = ExecutionResult(True, {}, 0.0, 2000.0)
    audit = audit_policies({"oracle": [slow], "random": [slow]}, "seed")
    assert audit.ranking[0] == ("failing at once", 0.0)
    assert audit.oracle_on_top is False
    assert audit.warning is not None
    assert "'failing at once' earns more than the oracle" in audit.warning


def test_logs_can_be_audited(tmp_path: Path) -> None:
    done = published_example()
    nodes = len(done.outputs)
    row = ExecutionLogger(tmp_path).log_execution(
        instruction="x",
        planner_outputs={"workflow_graph": {"adjacency": [[0] * nodes for _ in range(nodes)]}},
        execution_result=done,
    )
    rows = [row]
    assert judged_results(rows) == [done]
    with pytest.raises(DataError, match="line 1 is no execution"):
        judged_results([{"instruction": "x"}])
    with pytest.raises(DataError, match="no executions to audit"):
        audit_results([], "seed")


def test_a_pool_without_the_truth_has_no_oracle() -> None:
    pool = OpenAIPool([Worker("a", endpoint="http://h/v1")])
    with pytest.raises(ConfigError, match="does not know which answers are right"):
        audit_routers(pool)


def test_there_are_four_presets() -> None:
    assert PRESETS == ("seed", "seed_seconds", "normalized", "gated")
