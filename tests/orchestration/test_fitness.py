"""Routers and tables that do not fit the workers and plans: said in words, or refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from routing_world import table

from tutelage.errors import ConfigError
from tutelage.orchestration.execution.config import ExecutionConfig
from tutelage.orchestration.execution.pools.simulated import SimulatedPool
from tutelage.orchestration.execution.worker_files import classic, read_workers
from tutelage.orchestration.execution.workers import Worker
from tutelage.orchestration.routing.phase2 import train_phase2
from tutelage.orchestration.routing.router import load_router
from tutelage.orchestration.routing.settings import Phase2Settings


def router_of(workers: Sequence[Worker], **asked: Any) -> Any:
    config = ExecutionConfig(**asked)
    system = config.make_system(SimulatedPool(workers), None, [])
    return system.executor.router


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = Phase2Settings(val_workflows=64)
    folder = tmp_path_factory.mktemp("router")
    return train_phase2(folder, table=table(), settings=plain, evaluate=False).checkpoint


def test_a_router_of_other_models_is_refused(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=r"not trained on gpt-4.*only on sim-120b.*workers\.json"):
        router_of(classic(), router=str(checkpoint))


def test_the_workers_next_to_a_router_are_those_it_was_trained_on(checkpoint: Path) -> None:
    own = read_workers(checkpoint.with_name("workers.json"))
    assert router_of(own, router=str(checkpoint)).name == "lookahead"
    made = table()
    first = made.right_QW[:, 0].mean()
    assert own[0].skills["*"] == pytest.approx(first, abs=1e-3)
    assert set(own[0].skills) == {"*", *made.types}


def test_a_worker_that_a_router_does_not_know_is_refused(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=r"not trained on new-30b, only on .*; use those workers"):
        router_of([*table().workers, Worker("new-30b")], router=str(checkpoint))
    load_router(checkpoint).check(table().workers)


def test_the_command_refuses_it_too(tmp_path: Path, checkpoint: Path) -> None:
    from typer.testing import CliRunner

    from tutelage.cli import build_app

    workers = tmp_path / "workers.json"
    rows = [{"name": n, "price_in": 1, "price_out": 1, "latency": 0.1} for n in ("a", "b")]
    workers.write_text(json.dumps(rows))
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"instruction": "x", "nodes": [{"tool": "summarize_text"}]}))
    common = ["orchestrate", "run", "--plan", str(plan), "--output", str(tmp_path / "run")]
    given = [*common, "--workers", str(workers), "--router", str(checkpoint)]
    done = CliRunner().invoke(build_app(), given)
    assert done.exit_code == 2, done.output
    assert "was not trained on" in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()
