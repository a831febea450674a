"""Routers and tables that do not fit the workers and plans: said in words, or refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from routing_world import table

from tutelage.errors import ConfigError
from tutelage.orchestration import Node, Plan
from tutelage.orchestration.execution.config import ExecutionConfig
from tutelage.orchestration.execution.pools.replay import ReplayPool
from tutelage.orchestration.execution.pools.simulated import SimulatedPool
from tutelage.orchestration.execution.worker_files import classic, read_workers
from tutelage.orchestration.execution.workers import Subtask, Worker
from tutelage.orchestration.routing.phase2 import train_phase2
from tutelage.orchestration.routing.router import load_router
from tutelage.orchestration.routing.settings import Phase2Settings


def router_of(workers: Sequence[Worker], said: list[str], **asked: Any) -> Any:
    config = ExecutionConfig(**asked)
    system = config.make_system(SimulatedPool(workers), None, [], warn=said.append)
    return system.executor.router


def test_a_router_that_goes_by_skills_gives_way_where_none_is_declared() -> None:
    said: list[str] = []
    assert router_of([Worker("a"), Worker("b")], said, router="accurate").name == "cheapest"
    assert "the cheapest worker is asked first" in said[0]
    assert router_of(classic(), said, router="accurate").name == "accurate"
    assert len(said) == 1


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = Phase2Settings(val_workflows=64)
    folder = tmp_path_factory.mktemp("router")
    return train_phase2(folder, table=table(), settings=plain, evaluate=False).checkpoint


def test_a_router_of_other_models_is_refused(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=r"trained on sim-120b.*gpt-4.*workers\.json"):
        router_of(classic(), [], router=str(checkpoint))


def test_the_workers_next_to_a_router_are_those_it_was_trained_on(checkpoint: Path) -> None:
    own, said = read_workers(checkpoint.with_name("workers.json")), list[str]()
    assert router_of(own, said, router=str(checkpoint)).name == "lookahead"
    assert not said
    made = table()
    first = made.right_QW[:, 0].mean()
    assert own[0].skills["*"] == pytest.approx(first, abs=1e-3)
    assert set(own[0].skills) == {"*", *made.types}


def test_a_worker_that_a_router_does_not_know_is_refused(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=r"knows nothing of new-30b; give the workers"):
        router_of([*table().workers, Worker("new-30b")], [], router=str(checkpoint))
    load_router(checkpoint).check(table().workers)


def test_replay_takes_the_row_of_the_instruction() -> None:
    made = table()
    pool = ReplayPool(made)
    asked = Subtask(0, "anything", instruction=f"  {made.instructions[7]} ")
    assert pool.row(asked) == 7
    described = replace(asked, instruction="other", description=made.instructions[9])
    assert pool.row(described) == 9
    assert pool.unrelated(Plan(made.instructions[7], (Node("x"),))) == 0


def test_replay_says_which_subtasks_get_outcomes_of_other_queries() -> None:
    made = table()
    known = Node(made.types[0], description=made.instructions[0])
    plan = Plan("Do it", (known, Node(made.types[0]), Node("paint")))
    said: list[str] = []
    ExecutionConfig().make_system(ReplayPool(made), None, [plan], warn=said.append)
    assert said[0].startswith("2 of 3 subtasks are no query of the table of outcomes")


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
    assert "knows nothing" in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()
