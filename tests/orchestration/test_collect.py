"""Collecting: what is logged, logs as training data, and episodes with workers."""

from __future__ import annotations

import json
import runpy
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from executing import ScriptedPool, failed, plan_of, right, wrong

from tutelage.errors import ConfigError, DataError
from tutelage.orchestration import Node, Plan
from tutelage.orchestration.data.collect import collect
from tutelage.orchestration.data.outcomes import read_outcomes
from tutelage.orchestration.data.prepare import prepare
from tutelage.orchestration.data.synthetic import builtin_graph, generate
from tutelage.orchestration.data.workflows import Workflow, read_workflows
from tutelage.orchestration.execution.pools.simulated import SimulatedPool
from tutelage.orchestration.execution.stored import ExecutionLogger
from tutelage.orchestration.execution.system import OrchestrationSystem
from tutelage.orchestration.execution.virtual_time import run_virtual
from tutelage.orchestration.execution.worker_files import classic
from tutelage.orchestration.execution.workers import Latency, Worker
from tutelage.orchestration.routing.contract import accurate_router, cascade_router
from tutelage.seeds import SeedTree


def test_a_collection_of_synthetic_instructions_reads_back_as_workflows(tmp_path: Path) -> None:
    workflows = generate(builtin_graph(), 80, SeedTree(5), max_nodes=4)
    pool = SimulatedPool(classic())

    def run(folder: Path) -> bytes:
        system = OrchestrationSystem(
            pool=pool, router=accurate_router(), catalog=builtin_graph().catalog, seed=2
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
    system = OrchestrationSystem(pool=pool, router=cascade_router(["a"]))
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
    system = OrchestrationSystem(pool=pool, router=cascade_router(["a"]))
    good, bad = plan_of(()), plan_of((), (0,))
    told = run_virtual(collect(system, [bad, good, bad]))
    assert (told["executions"], told["succeeded"], told["refused"], told["lost"]) == (1, 1, 2, 0)
    with pytest.raises(ConfigError, match="node 1 needs a worker for 't1'"):
        run_virtual(collect(system, [bad, bad]))


# ------------------------------------------------------------ logs as training data


def log_line(instruction: str, cost: float, *, success: bool = True, **more: Any) -> dict[str, Any]:
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


def write_log(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "executions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def test_failures_are_left_out_and_the_cheapest_success_is_kept(tmp_path: Path) -> None:
    made, counts = prepare(
        [
            write_log(
                tmp_path,
                log_line("one", 0.3),
                log_line("one", 0.1),
                log_line("two", 0.1, success=False),
                log_line("three", 0.1, correct=False),
            )
        ]
    )
    assert [w.instruction for w in made] == ["one"]
    assert made[0].rewards["cost"] == -0.1
    assert counts == {"executions": 4, "failed": 2, "examples": 1}


def test_what_succeeded_by_a_further_plan_is_left_out_and_counted(tmp_path: Path) -> None:
    ended = [{"node": 0, "status": "failed"}, {"node": 1, "status": "succeeded"}]
    made, counts = prepare(
        [write_log(tmp_path, log_line("one", 0.1), log_line("two", 0.1, nodes=ended))]
    )
    assert (counts["executions"], counts["failed"]) == (2, 1)
    assert [workflow.instruction for workflow in made] == ["one"]


def test_logs_that_teach_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no execution log"):
        prepare([tmp_path])
    with pytest.raises(DataError, match="0 of 1 execution succeeded"):
        prepare([write_log(tmp_path, log_line("one", 0.1, success=False))])
    bad = log_line("one", 0.1)
    bad["planner_outputs"]["workflow_graph"]["adjacency"] = [[0, 1], [1, 0]]
    with pytest.raises(DataError, match=r"row 0.*cycle"):
        prepare([write_log(tmp_path, bad)])


# ------------------------------------------------------------ episodes with workers


EXAMPLE = Path(__file__).parents[2] / "examples" / "orchestration" / "collect_outcomes.py"
collect_episodes = runpy.run_path(str(EXAMPLE))["collect_episodes"]
WORKERS = [Worker(n, price_out=p, latency=Latency(1.0)) for n, p in (("good", 0.2), ("bad", 0.1))]


def behave(worker: Worker, work: Any) -> Any:
    if worker.name == "bad" and work.type == "hard":
        return wrong(cost=0.01)
    return right(cost=0.02)(worker, work)


def workflows(count: int) -> list[Workflow]:
    nodes = (Node("easy"), Node("hard", after=(0,), description="the hard part"))
    return [Workflow(Plan(f"Do {k}", nodes), name=f"w{k}") for k in range(count)]


def test_every_worker_is_seen_at_every_subtask(tmp_path: Path) -> None:
    pool = ScriptedPool(WORKERS, behave)
    found = collect_episodes(tmp_path, workflows(3), pool, budget=None, seed=0)
    assert (found["played"], found["planned"]) == (6, 6)
    table = read_outcomes(tmp_path / "outcomes.json", tmp_path / "models.json")
    assert len(table) == 6
    assert set(table.names) == {"good", "bad"}
    rows = {(i, w.name): s for i, row in zip(table.ids, table.scores_QW, strict=True)
            for w, s in zip(table.workers, row, strict=True)}  # fmt: skip
    assert rows["w0/0", "bad"] == rows["w0/1", "good"] == 1.0
    assert rows["w0/1", "bad"] == 0.0
    assert table.instructions[:2] == ("Do 0", "the hard part")
    assert found["cost"] == pytest.approx(sum(e for e in spent(tmp_path)))


def spent(folder: Path) -> list[float]:
    with closing(sqlite3.connect(folder / "episodes.db")) as conn:
        events = [json.loads(data) for (data,) in conn.execute("select data from events")]
    return [event["answer"]["cost"] for event in events if event["event"] == "answer"]


def test_a_kill_repeats_no_acknowledged_call(tmp_path: Path) -> None:
    whole = ScriptedPool(WORKERS, behave)
    collect_episodes(tmp_path / "whole", workflows(6), whole, budget=None, seed=0)

    class Dying(ScriptedPool):
        async def execute(self, worker: Worker, work: Any) -> Any:
            if len(self.asked) == 17:
                raise KeyboardInterrupt
            return await super().execute(worker, work)

    cut = Dying(WORKERS, behave)
    with pytest.raises(KeyboardInterrupt):
        collect_episodes(tmp_path / "cut", workflows(6), cut, budget=None, seed=0)
    before = len(spent(tmp_path / "cut"))
    assert 0 < before < len(whole.asked)
    again = ScriptedPool(WORKERS, behave)
    collect_episodes(tmp_path / "cut", workflows(6), again, budget=None, seed=0)
    assert len(spent(tmp_path / "cut")) == before + len(again.asked)
    one, two = (
        Counter((r["id"], n, s) for r in json.loads((tmp_path / name / "outcomes.json").read_text())
                for n, s in r["scores"].items())
        for name in ("whole", "cut")
    )  # fmt: skip
    assert one == two
    third = ScriptedPool(WORKERS, behave)
    collect_episodes(tmp_path / "cut", workflows(6), third, budget=None, seed=0)
    assert third.asked == []


def test_the_budget_ends_the_episodes(tmp_path: Path) -> None:
    pool = ScriptedPool(WORKERS, behave)
    found = collect_episodes(tmp_path, workflows(40), pool, budget=1.0, seed=0)
    assert found["played"] < found["planned"]
    assert 0.5 < found["cost"] <= 1.0
    assert found["cost"] == pytest.approx(sum(spent(tmp_path)))
