"""The whole system: results, logs, the trace in the store, and a log that survives kill -9."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from executing import (
    DIAMOND,
    RandomRouter,
    ScriptedPool,
    cut_to,
    plan_of,
    right,
    stored_events,
    walk,
    workers,
    wrong,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracing.samples import orphans

from tutelage.errors import ConfigError, DataError, RunError, StoreError
from tutelage.orchestration import Node, Plan
from tutelage.orchestration.data.workflows import parse_workflow
from tutelage.orchestration.evaluation.rewards import ExecutionResult
from tutelage.orchestration.execution.executor import ExecutorSettings
from tutelage.orchestration.execution.pools.simulated import SimulatedPool
from tutelage.orchestration.execution.record import (
    Execution,
    plan_to_json,
    read_plan,
    replay_events,
)
from tutelage.orchestration.execution.stored import ExecutionLogger, ExecutionRecorder
from tutelage.orchestration.execution.system import OrchestrationSystem, execution_seeds
from tutelage.orchestration.execution.worker_files import classic
from tutelage.orchestration.execution.workers import Subtask, Worker, WorkerAnswer
from tutelage.orchestration.routing.contract import cascade_router
from tutelage.store import Store, StoreWriter, open_store
from tutelage.tracing import names, rollout_trees


def simple(pool: Any = None, **fields: Any) -> OrchestrationSystem:
    pool = pool or ScriptedPool(workers("a"), right(cost=0.25))
    return OrchestrationSystem(lambda text: DIAMOND, pool, cascade_router(["a"]), **fields)


def test_an_instruction_becomes_a_result() -> None:
    found = simple().execute("Do it")
    assert found.success
    assert found.outputs == {"0": "out-0", "1": "out-1", "2": "out-2", "3": "out-3"}
    assert (found.total_cost, found.total_latency_ms) == (1.0, 3000.0)
    assert isinstance(found, ExecutionResult)
    assert found.verified_fraction == 1.0


async def test_in_an_event_loop_it_is_awaited() -> None:
    system = simple(ScriptedPool(workers("a"), right(0.01)))
    assert (await system.aexecute("Do it")).success
    with pytest.raises(ConfigError, match="await aexecute"):
        system.execute("Do it")


def test_the_pool_is_closed_after_each_execution_of_ordinary_code() -> None:
    pool = ScriptedPool(workers("a"), right())
    simple(pool).execute("Do it")
    assert pool.closed == 1


def test_a_planner_is_an_object_or_a_function() -> None:
    class Planner:
        def plan(self, instruction: str) -> Plan:
            return Plan(instruction, (Node("t0"),))

    pool = ScriptedPool(workers("a"), right())
    assert OrchestrationSystem(Planner(), pool).execute("Sing").plan.instruction == "Sing"
    with pytest.raises(ConfigError, match="instruction is empty"):
        simple().execute("  ")


def test_without_a_pool_the_workers_are_simulated_and_say_so() -> None:
    plan = Plan("x", (Node("summarize_text"), Node("read_aloud", {"text": "<node-0>"})))
    found = OrchestrationSystem(seed=3).execute("x", plan=plan)
    assert found.mock
    assert found.pool == "simulated"
    assert all(a.mock for step in found.steps for a in step.requests)
    assert found == OrchestrationSystem(seed=3).execute("x", plan=plan)
    assert found.steps != OrchestrationSystem(seed=4).execute("x", plan=plan).steps


# ------------------------------------------------------------ execution logs


def test_a_line_has_the_documents_fields_and_ours_and_reads_back(tmp_path: Path) -> None:
    pool = ScriptedPool(
        workers("a", "b"), lambda w, k: wrong(cost=0.1) if w.name == "a" else right()(w, k)
    )
    logger = ExecutionLogger(tmp_path, run_id="r1", workers=pool.workers, clock=lambda: 0.0)
    system = OrchestrationSystem(
        lambda text: DIAMOND, pool, cascade_router(["a", "b"]), execution_logger=logger
    )
    found = system.execute("Do it")
    (line,) = (tmp_path / "executions.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert row["timestamp"] == "1970-01-01T00:00:00+00:00"
    assert (row["instruction"], row["success"], row["cost"]) == ("Do it", True, found.total_cost)
    assert row["latency_ms"] == row["execution_result"]["total_latency_ms"]
    assert row["execution_result"]["outputs"] == dict(found.outputs)
    outputs = row["planner_outputs"]
    assert outputs["model_selections"] == [1, 1, 1, 1]
    assert outputs["workflow_graph"]["adjacency"][0] == [0, 1, 1, 0]
    assert (row["run_id"], row["pool"], row["mock"]) == ("r1", "scripted", True)
    assert [node["worker"] for node in row["nodes"]] == ["b", "b", "b", "b"]
    workflow = parse_workflow(row)
    assert workflow.plan.dependencies == DIAMOND.dependencies
    assert workflow.workers == ("b", "b", "b", "b")


# ------------------------------------------------------------ the trace


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with open_store(tmp_path / "store.db") as store:
        store.put_run(
            "run", name="run", recipe="orchestrate", algorithm="cheapest", config={}, seed=0,
            folder=str(tmp_path), status="running",
        )  # fmt: skip
        yield store


def recorded(store: Store, pool: Any, *executions: str, **fields: Any) -> None:
    """Execute `DIAMOND` under these names with workers a and b, and store what comes of it."""
    with StoreWriter(store) as writer:
        system = OrchestrationSystem(
            lambda text: DIAMOND, pool, cascade_router(["a", "b"]),
            recorder=ExecutionRecorder(writer, "run"), **fields,
        )  # fmt: skip
        for name in executions:
            system.execute("Do it", name=name)


def test_each_execution_is_a_rollout_with_its_calls_and_its_trace(store: Store) -> None:
    def behave(worker: Worker, work: Subtask) -> WorkerAnswer:
        return wrong() if (worker.name, work.node) == ("a", 1) else right(cost=0.25)(worker, work)

    recorded(store, ScriptedPool(workers("a", "b"), behave), "one")
    (rollout,) = store.rollouts("run")
    assert rollout.reward is not None
    assert set(rollout.reward.parts) == {"success", "cost", "latency", "shaped"}
    assert rollout.last.answer == "out-3"
    calls = rollout.last.calls
    assert [(call.agent, call.reply.content) for call in calls] == [
        ("t0 #0", "out-0"), ("t1 #1", "bad"), ("t2 #2", "out-2"), ("t1 #1", "out-1"),
        ("t3 #3", "out-3"),
    ]  # fmt: skip
    assert [message.role for message in calls[-1].messages] == ["system", "user"]
    assert "- t2: out-2" in (calls[-1].messages[-1].content or "")
    assert all(call.policy is None for call in calls)
    assert len(calls) == 5
    assert store.count("run", min_reward=rollout.reward.value) == 1
    spans = store.spans("run", rollout.id)
    assert not any(span.attributes[names.OPERATION] == names.CHAT for span in spans)
    (tree,) = rollout_trees(rollout, spans)
    told = [(depth, span.name) for depth, span in walk(tree)]
    assert told == [
        (0, "invoke_workflow rollout"),
        (1, "invoke_workflow Do it"),
        (2, "plan"),
        (2, "execute_tool t0"),
        (3, "chat a"),
        (2, "execute_tool t1"),
        (3, "chat a"),
        (3, "chat b"),
        (2, "execute_tool t2"),
        (3, "chat a"),
        (2, "execute_tool t3"),
        (3, "chat a"),
    ]
    top = next(span for span in spans if span.name.startswith("invoke_workflow"))
    assert top.attributes[names.COST] == 1.0
    assert top.attributes[names.MOCK] is True
    whole = [span for _, span in walk(tree)]
    failed = [span for span in whole if span.status == "error"]
    assert [span.attributes[names.VERDICT] for span in failed] == ["failed"]
    costs = [span.attributes[names.COST] for span in whole if span.name.startswith("chat")]
    assert costs == [0.25, 0.0, 0.25, 0.25, 0.25]
    assert orphans([tree.span, *spans]) == []


def test_a_failed_execution_is_stored_with_its_reason(store: Store) -> None:
    recorded(store, ScriptedPool(workers("a"), lambda w, k: wrong()), "wrong")
    (rollout,) = store.rollouts("run")
    assert rollout.last.failure is not None
    assert "node 0: no worker is left: wrong" in rollout.last.failure.message
    slow = ScriptedPool(workers("a"), right(5.0))
    recorded(store, slow, "late", settings=ExecutorSettings(deadline=1.0))
    causes = {r.last.failure.cause.value for r in store.rollouts("run") if r.last.failure}
    assert causes == {"agent_error", "timeout"}


# ------------------------------------------------------------ a log that survives


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 50), share=st.floats(0.0, 1.0))
def test_killed_at_any_event_it_ends_as_it_would_have(
    seed: int, share: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("record")
    pool = SimulatedPool(classic(), errors=0.3)
    plan = Plan("x", (*(Node("summarize_text", after=p.after) for p in DIAMOND.nodes),))
    path = folder / "events.db"

    def run() -> Execution:
        system = OrchestrationSystem(pool=pool, router=RandomRouter(), seed=seed)
        return system.execute("x", plan=plan, journal=path, name="flow", budget=5.0)

    whole = run()
    seeds = execution_seeds(seed, "flow")
    assert replay_events(stored_events(path), seeds).execution() == whole
    count = max(1, round(share * len(stored_events(path))))
    cut_to(path, count)
    kept = stored_events(path)
    again = run()
    # What was answered is what it was, and is not asked again.
    before = {e["result"]["node"] for e in kept if e["event"] == "node"}
    assert again.resumed == len(before)
    for node in before:
        assert again.nodes[node] == whole.nodes[node]
    sent = stored_events(path)[count:]
    assert not {e["node"] for e in sent if e["event"] == "request"} & before
    answers = [e["step"] for e in kept if e["event"] == "answer" and not e["answer"].get("error")]
    assert not {e["step"] for e in sent if e["event"] == "request"} & set(answers)
    # What was in progress is paid for at its bound; nothing is forgotten.
    assert again.total_cost <= 5.0
    costs = {step.index: step.cost for step in whole.steps}
    assert all(s.cost == costs[s.index] for s in again.steps if s.node in before)
    assert run() == run()


def test_one_file_has_several_executions_and_one_plan_of_each(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    first = simple(seed=0).execute("Do it", journal=path, name="x")
    other = simple(seed=1).execute("Do it", journal=path, name="x")
    again = simple(seed=0).execute("Do it", journal=path, name="x")
    assert (first.id, first.resumed, again.resumed) == (again.id, 0, len(DIAMOND.nodes))
    assert (other.id == first.id, other.resumed) == (False, 0)
    with pytest.raises(RunError, match="contains this execution with another plan"):
        simple(seed=0).execute("Do it", plan=plan_of(()), journal=path, name="x")
    (tmp_path / "log.jsonl").write_text('{"event": "plan"}\n')
    with pytest.raises(StoreError, match="not an SQLite database"):
        simple().execute("Do it", journal=tmp_path / "log.jsonl", name="x")


def test_plans_read_back_as_they_were_written() -> None:
    plan = Plan("x", (Node("a", {"t": "<node-1>"}, (), "Say."), Node("b")))
    assert read_plan(json.loads(json.dumps(plan_to_json(plan)))) == plan
    with pytest.raises(DataError, match="this is no plan"):
        read_plan({"instruction": "x"})


@pytest.mark.full
def test_killed_at_20_random_moments_nothing_is_done_twice_and_doubts_are_asked_about(
    tmp_path: Path,
) -> None:
    """In a process of its own, which has no threads that a child would lack."""
    script = Path(__file__).with_name("killed.py")
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    for row in json.loads(done.stdout):
        did, asked, answered = row["did"], set(row["asked"]), set(row["answered"])
        assert row["killed"], row
        assert len(did) == len(set(did)), f"done twice: {row}"
        # What was done before the kill, and whose answer nobody has, is asked about: nothing else.
        assert set(row["before"]) - answered <= asked, row
        assert not asked & answered, row
        assert asked or row["kept"] == 6, row
