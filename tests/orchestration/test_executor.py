"""The executor: order, time, retries, escalation, modes of failure, its sums."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from executing import (
    DIAMOND,
    RandomRouter,
    ScriptedPool,
    failed,
    plan_of,
    right,
    run_plan,
    workers,
    wrong,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tutelage.orchestration.execution.executor import Executor, ExecutorSettings
from tutelage.orchestration.execution.pools.simulated import SimulatedPool
from tutelage.orchestration.execution.verifiers import Verifiers
from tutelage.orchestration.execution.virtual_time import run_virtual
from tutelage.orchestration.execution.worker_files import classic
from tutelage.orchestration.execution.workers import Subtask, Verification, Worker, WorkerAnswer
from tutelage.orchestration.plan.dag import Node, Plan, critical_path
from tutelage.orchestration.routing.contract import Choice, RouteState
from tutelage.seeds import SeedTree


def test_a_node_starts_when_its_own_parents_end_and_not_a_level_later() -> None:
    """0 -> 2 and 1 -> 3: the slow 1 does not hold 2 back."""
    seconds = {0: 1.0, 1: 5.0, 2: 1.0, 3: 1.0}
    pool = ScriptedPool(
        workers("a"), lambda w, work: WorkerAnswer("x", seconds=seconds[work.node], correct=True)
    )
    found = run_plan(plan_of((), (), (0,), (1,)), pool)
    started = {step.node: step.started for step in found.steps}
    assert started == {0: 0.0, 1: 0.0, 2: 1.0, 3: 5.0}
    assert found.wall_seconds == pytest.approx(6.0) == found.total_latency_ms / 1000
    assert found.path == (1, 3)


def test_the_prompt_has_the_instruction_the_description_and_every_input() -> None:
    plan = Plan(
        "Compare the reports",
        (
            Node("read", {"file": "a.pdf"}, description="Read the first report."),
            Node("read", {"file": "b.pdf"}),
            Node("join", {"text": "First: <node-0>. Second: <node-1>", "title": "<node-0>.title"}),
            Node("send", after=(2,)),
        ),
    )
    outputs = {0: '{"title": "Q1"}', 1: "beta", 2: "gamma", 3: "sent"}
    pool = ScriptedPool(workers("a"), lambda w, k: WorkerAnswer(outputs[k.node], correct=True))
    assert run_plan(plan, pool).success
    assert "Instruction: Compare the reports" in pool.prompts[0]
    assert "Read the first report." in pool.prompts[0]
    assert "- file: a.pdf" in pool.prompts[0]
    assert '- text: First: {"title": "Q1"}. Second: beta' in pool.prompts[2]
    assert "- title: Q1" in pool.prompts[2]
    assert "Inputs:\n- join: gamma" in pool.prompts[3]


def test_a_busy_server_is_asked_again_with_growing_pauses_in_the_same_try() -> None:
    def behave(worker: Worker, work: Subtask) -> WorkerAnswer:
        if work.attempt < 2:
            return failed("rate_limited", 0.1)
        return WorkerAnswer("x", 0.5, 1.0, correct=True)

    pool = ScriptedPool(workers("a", "b"), behave)
    found = run_plan(plan_of(()), pool, backoff=1.0, retries=2)
    (step,) = found.steps
    assert [a.error.kind if a.error else None for a in step.requests] == [
        "rate_limited",
        "rate_limited",
        None,
    ]
    assert [name for name, _, _ in pool.asked] == ["a"] * 3
    # Pauses are 1 and 2 seconds, each times a draw from 0.5 to 1.5.
    assert 1.2 + 1.5 <= step.seconds <= 1.2 + 4.5
    assert found.total_cost == 0.5


def test_the_pause_that_a_server_asks_for_is_kept() -> None:
    def behave(worker: Worker, work: Subtask) -> WorkerAnswer:
        return (
            failed("rate_limited", 0.0, retry_after=3.0)
            if work.attempt < 1
            else right(1.0)(worker, work)
        )

    found = run_plan(plan_of(()), ScriptedPool(workers("a"), behave))
    assert found.wall_seconds == pytest.approx(4.0)


def test_after_the_last_retry_another_worker_is_asked() -> None:
    def behave(worker: Worker, work: Subtask) -> WorkerAnswer:
        return failed("unavailable") if worker.name == "a" else right()(worker, work)

    pool = ScriptedPool(workers("a", "b"), behave)
    found = run_plan(plan_of(()), pool, retries=1)
    assert [name for name, _, _ in pool.asked] == ["a", "a", "b"]
    assert found.success
    assert found.nodes[0].worker == "b"


@pytest.mark.parametrize("kind", ["truncated", "unauthorized"])
def test_what_asking_again_cannot_mend_goes_to_another_worker_at_once(kind: str) -> None:
    def behave(worker: Worker, work: Subtask) -> WorkerAnswer:
        return failed(kind) if worker.name == "a" else right()(worker, work)

    pool = ScriptedPool(workers("a", "b"), behave)
    assert run_plan(plan_of(()), pool).success
    assert [name for name, _, _ in pool.asked] == ["a", "b"]


@pytest.mark.parametrize(
    ("mode", "statuses"),
    [
        ("skip_dependents", ["failed", "succeeded", "skipped", "succeeded", "skipped"]),
        ("continue", ["failed", "succeeded", "succeeded", "succeeded", "succeeded"]),
        ("fail_fast", ["failed", "cancelled", "cancelled", "cancelled", "cancelled"]),
    ],
)
def test_modes_of_failure(mode: str, statuses: list[str]) -> None:
    """Node 0 fails after one second; 1 takes two."""

    def behave(worker: Worker, work: Subtask) -> WorkerAnswer:
        return wrong() if work.node == 0 else right(2.0)(worker, work)

    pool = ScriptedPool(workers("a"), behave)
    found = run_plan(plan_of((), (), (0,), (1,), (2,)), pool, on_failure=mode)
    assert [node.status for node in found.nodes] == statuses
    assert not found.success
    assert pool.running == 0
    assert found.verified_fraction == statuses.count("succeeded") / 5
    if mode == "continue":
        assert "- t0: (no output)" in pool.prompts[2]
    if mode == "fail_fast":
        assert pool.cancelled == [1]
        assert found.reason == "failed"


def test_a_try_that_takes_too_long_is_ended_and_another_worker_asked() -> None:
    def behave(worker: Worker, work: Subtask) -> WorkerAnswer:
        return right(100.0 if worker.name == "a" else 1.0)(worker, work)

    pool = ScriptedPool(workers("a", "b", price=0.25), behave)
    found = run_plan(plan_of(()), pool, try_timeout=2.0)
    assert found.success
    assert found.wall_seconds == pytest.approx(3.0)
    first = found.steps[0].answer
    assert first is not None
    assert first.error is not None
    assert first.error.kind == "timeout"
    # Nobody knows what the server did with it: the bound counts, and says that it is one.
    assert first.estimated
    assert first.cost == 0.25
    assert found.total_cost == 0.25


def test_the_deadline_ends_everything_and_keeps_what_there_is() -> None:
    pool = ScriptedPool(workers("a", price=0.5), right(2.0, cost=0.1))
    found = run_plan(plan_of((), (0,), (1,)), pool, deadline=3.0)
    assert found.reason == "deadline"
    assert found.wall_seconds == pytest.approx(3.0)
    assert [node.status for node in found.nodes] == ["succeeded", "cancelled", "cancelled"]
    assert found.outputs == {"0": "out-0"}
    assert pool.running == 0
    assert found.total_cost == pytest.approx(0.6)  # what was cut off counts at its bound
    assert found.steps[1].answer is not None
    assert found.steps[1].answer.estimated


def test_cancelling_leaves_no_request_no_task_and_no_reservation() -> None:
    pool = ScriptedPool(workers("a", concurrency=1), right(10.0))
    events: list[dict[str, Any]] = []

    async def run() -> None:
        executor = Executor(pool, RandomRouter())
        task = asyncio.create_task(
            executor.run(plan_of((), (), ()), seeds=SeedTree(0), observers=[events.append])
        )
        await asyncio.sleep(1.0)
        assert pool.running == 1  # one place; two wait
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.running == 0
        assert executor.load == [0]
        assert len(asyncio.all_tasks()) == 1
        # All places are free again.
        assert (await executor.run(plan_of(()), seeds=SeedTree(1))).success

    run_virtual(run())
    kinds = [event["event"] for event in events]
    # What waited for a place has been ended too, and cost nothing.
    assert kinds.count("answer") == 1
    assert kinds.count("step") == 3


def test_places_bound_what_runs_at_once_over_all_plans() -> None:
    pool = ScriptedPool(workers("a", "b", concurrency=3), right(1.0))

    async def run(concurrency: int) -> None:
        executor = Executor(
            pool, RandomRouter(), settings=ExecutorSettings(concurrency=concurrency)
        )
        plan = plan_of((), ())
        await asyncio.gather(*(executor.run(plan, seeds=SeedTree(0, (i,))) for i in range(20)))

    run_virtual(run(5))
    assert pool.most == 5
    pool.most = 0
    run_virtual(run(100))
    assert pool.most == 6


def test_waiting_for_a_place_is_no_part_of_the_latency() -> None:
    pool = ScriptedPool(workers("a", concurrency=1), right(1.0))
    found = run_plan(plan_of((), (), ()), pool)
    assert found.wall_seconds == pytest.approx(3.0)
    assert found.total_latency_ms == pytest.approx(1000.0)
    assert sorted(step.queued for step in found.steps) == pytest.approx([0.0, 1.0, 2.0])


class Scripted:
    """A router with a list of actions; `accept` and `stop` by name."""

    name = "scripted"

    def __init__(self, *actions: int | str) -> None:
        self.actions = list(actions)
        self.states: list[RouteState] = []

    def choose(self, state: RouteState) -> Choice:
        self.states.append(state)
        action = self.actions.pop(0)
        return Choice(getattr(state, action) if isinstance(action, str) else action, -0.5)


def test_accepting_keeps_the_answer_and_is_no_success_unless_it_is_right() -> None:
    for correct in (False, True):
        answer = WorkerAnswer("bad", correct=correct)

        class Strict:
            async def check(self, work: Subtask, answer: WorkerAnswer) -> Verification:
                return Verification(work.node != 0, "strict")

        pool = ScriptedPool(workers("a"), lambda w, k, kept=answer: kept)
        router = Scripted(0, "accept", 0)
        executor = Executor(pool, router, verifiers=Verifiers(Strict()))
        found = run_virtual(executor.run(plan_of((), (0,)), seeds=SeedTree(0)))
        assert [node.status for node in found.nodes] == ["accepted", "succeeded"]
        assert found.success is correct
        assert found.verified_fraction == 0.5
        assert [step.action for step in found.steps] == ["worker", "accept", "worker"]


# ------------------------------------------------------------ laws


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    size = draw(st.integers(1, 9))
    parents = [
        tuple(draw(st.lists(st.integers(0, i - 1), unique=True, max_size=3))) if i else ()
        for i in range(size)
    ]
    return plan_of(*parents)


@settings(max_examples=60, deadline=None)
@given(
    plan=plans(),
    seed=st.integers(0, 10_000),
    mode=st.sampled_from(["skip_dependents", "continue", "fail_fast"]),
    errors=st.sampled_from([0.0, 0.4]),
)
def test_what_is_credited_is_what_ran_and_sums_are_kept(
    plan: Plan, seed: int, mode: str, errors: float
) -> None:
    """Every step holds the action that ran, legal under its mask, in the order of dispatch."""
    pool = SimulatedPool(classic(), errors=errors, tokens=400.0)
    events: list[dict[str, Any]] = []
    found = run_plan(
        plan, pool, RandomRouter(), seed=seed, on_failure=mode, observers=[events.append],
        deadline=30.0,
    )  # fmt: skip
    names = [worker.name for worker in pool.workers]
    assert [step.index for step in found.steps] == list(range(len(found.steps)))
    for step in found.steps:
        assert step.choice.mask[step.choice.action]
        assert step.worker == (names[step.choice.action] if step.action == "worker" else None)
        said = step.to_json()
        assert said["cost"] == pytest.approx(math.fsum(r["cost"] for r in said["requests"]))
    # The requests that the pool saw are the requests of the steps, each by the worker chosen.
    sent = [(e["step"], e["worker"]) for e in events if e["event"] == "request"]
    ran = [(s.index, s.worker) for s in found.steps for _ in s.requests]
    assert sorted(sent) == sorted(ran)
    # No worker is asked twice at one node.
    asked = [(s.node, s.worker) for s in found.steps if s.worker is not None]
    assert len(asked) == len(set(asked))
    # The cost of the whole is that of the requests, each once; latency is the longest chain.
    paid = [e["answer"]["cost"] for e in events if e["event"] == "answer"]
    assert found.total_cost == pytest.approx(math.fsum(paid))
    seconds = [node.seconds for node in found.nodes]
    assert found.total_latency_ms == pytest.approx(1000 * critical_path(plan, seconds)[0])
    # No node starts before its parents have ended.
    for before, after in plan.edges:
        mine = [s.started for s in found.steps if s.node == after]
        if mine:
            assert all(s.ended <= min(mine) + 1e-9 for s in found.steps if s.node == before)


def test_a_plan_draws_the_same_alone_and_among_others() -> None:
    """Places in the seed tree, not the order of calls: only queues differ."""
    pool = SimulatedPool(classic())
    executor = Executor(pool, RandomRouter())

    async def run(count: int) -> list[Any]:
        return await asyncio.gather(
            *(executor.run(DIAMOND, seeds=SeedTree(0, (i,))) for i in range(count))
        )

    alone, among = run_virtual(run(1))[0], run_virtual(run(30))[0]
    assert alone.total_cost == among.total_cost
    assert alone.outputs == among.outputs
    assert [s.worker for s in alone.steps] == [s.worker for s in among.steps]
