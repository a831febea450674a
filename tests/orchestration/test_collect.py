"""Collecting: what is logged, which labels it can give, and that wrong plans do not count."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from executing import ScriptedPool, failed, plan_of, right

from tutelage.errors import ConfigError
from tutelage.orchestration import Node, Plan
from tutelage.orchestration.data.collect import collect
from tutelage.orchestration.data.synthetic import builtin_graph, generate
from tutelage.orchestration.data.workflows import read_workflows
from tutelage.orchestration.execution.pools.simulated import SimulatedPool
from tutelage.orchestration.execution.pools.tools import ToolPool
from tutelage.orchestration.execution.stored import ExecutionLogger
from tutelage.orchestration.execution.system import OrchestrationSystem
from tutelage.orchestration.execution.virtual_time import run_virtual
from tutelage.orchestration.execution.worker_files import classic
from tutelage.orchestration.execution.workers import Latency, Worker
from tutelage.orchestration.routing.contract import cascade, most_accurate
from tutelage.seeds import SeedTree
from tutelage.tools.tool import tool


def priced(**prices: float) -> tuple[Worker, ...]:
    return tuple(Worker(n, price_out=p, latency=Latency(1.0)) for n, p in prices.items())


def test_a_collection_of_synthetic_instructions_reads_back_as_workflows(tmp_path: Path) -> None:
    workflows = generate(builtin_graph(), 80, SeedTree(5), max_nodes=4)
    pool = SimulatedPool(classic())

    def run(folder: Path) -> bytes:
        system = OrchestrationSystem(
            pool=pool, router=most_accurate(), catalog=builtin_graph().catalog, seed=2
        )
        logger = ExecutionLogger(folder, workers=pool.workers, clock=lambda: 0.0)
        told = run_virtual(collect(system, [w.plan for w in workflows], logger))
        assert told["executions"] == 80
        assert told["succeeded"] > 40
        assert told["mean_latency"] > 0
        return logger.path.read_bytes()

    first = run(tmp_path / "one")
    assert first == run(tmp_path / "two"), "lines stand in the order of the instructions"
    read = read_workflows(tmp_path / "one" / "executions.jsonl", builtin_graph().catalog)
    assert [w.instruction for w in read] == [w.instruction for w in workflows]
    assert [w.tools for w in read] == [w.tools for w in workflows]


def served(kind: str, every: int, tmp_path: Path) -> tuple[Any, list[dict[str, Any]]]:
    """One instruction in `every` gets this error wherever it asks; the others are done."""

    def behave(worker: Worker, work: Any) -> Any:
        asked = int(work.prompt.split("number ")[1].split()[0].rstrip("."))
        return failed(kind) if asked % every == 0 else right()(worker, work)

    pool = ScriptedPool((Worker("a", latency=Latency(1.0)),), behave)
    system = OrchestrationSystem(pool=pool, router=cascade(["a"]))
    plans = [Plan(f"Do number {i} .", (Node("t0"),)) for i in range(200)]
    logger = ExecutionLogger(tmp_path, workers=pool.workers)
    told = run_virtual(collect(system, plans, logger))
    return told, [json.loads(line) for line in logger.path.read_text().splitlines()]


def test_what_a_server_lost_is_counted_apart(
    tmp_path: Path,
) -> None:
    few, rows = served("network", 100, tmp_path / "few")
    assert (few["succeeded"], few["executions"], few["lost"]) == (198, 200, 2)
    reasons = [row["nodes"][0]["reason"] for row in rows if not row["success"]]
    assert reasons == ["no worker is left: network: scripted"] * 2
    many, rows = served("unavailable", 20, tmp_path / "many")
    assert (many["succeeded"], many["lost"]) == (190, 10)


def test_a_plan_that_cannot_be_begun_is_counted_and_the_rest_is_collected() -> None:
    pool = ScriptedPool((Worker("a", ("t0",), latency=Latency(1.0)),), right())
    system = OrchestrationSystem(pool=pool, router=cascade(["a"]))
    good, bad = plan_of(()), plan_of((), (0,))
    told = run_virtual(collect(system, [bad, good, bad]))
    assert (told["executions"], told["succeeded"], told["refused"], told["lost"]) == (1, 1, 2, 0)
    with pytest.raises(ConfigError, match="node 1 needs a worker for 't1'"):
        run_virtual(collect(system, [bad, bad]))


def test_a_plan_with_wrong_arguments_loses_none_of_the_others(tmp_path: Path) -> None:
    @tool
    def say(text: str) -> str:
        """Say it."""
        return text

    given = ({"text": "a"}, {"txt": "b"}, {"text": "<node1>"}, {"text": "c"})
    plans = [Plan(f"{k}", (Node("say", each), Node("say", each))) for k, each in enumerate(given)]
    system, logger = OrchestrationSystem(pool=ToolPool({"say": say})), ExecutionLogger(tmp_path)
    told = asyncio.run(collect(system, plans, logger))
    assert (told["executions"], told["succeeded"], told["refused"]) == (2, 2, 2)
    rows = [json.loads(line) for line in logger.path.read_text("utf-8").splitlines()]
    assert [row["instruction"] for row in rows] == ["0", "3"]


def test_nothing_to_collect_and_bad_counts_are_refused() -> None:
    system = OrchestrationSystem(pool=SimulatedPool(classic()))
    with pytest.raises(ConfigError, match="no instructions to collect"):
        run_virtual(collect(system, []))
