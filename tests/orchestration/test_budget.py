"""The budget: reserve, settle, never pass an enforced limit; verdicts that cost money."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from executing import RandomRouter, ScriptedPool, cut_after, plan_of, right, run_plan, workers
from hypothesis import given, settings
from hypothesis import strategies as st

from tutelage.errors import ConfigError
from tutelage.orchestration.execution.budget import Budget
from tutelage.orchestration.execution.executor import Executor, ExecutorSettings
from tutelage.orchestration.execution.record import Execution, ExecutionJournal
from tutelage.orchestration.execution.verifiers import Verifiers, make_verifier
from tutelage.orchestration.execution.virtual_time import run_virtual
from tutelage.orchestration.execution.workers import (
    Latency,
    Subtask,
    Verification,
    Worker,
    WorkerAnswer,
    WorkerError,
)
from tutelage.orchestration.routing.contract import cascade_router
from tutelage.seeds import SeedTree


@settings(max_examples=40, deadline=None)
@given(
    limit=st.floats(0.6, 6.0),
    seed=st.integers(0, 10_000),
    flows=st.integers(1, 6),
    timeout=st.sampled_from([None, 0.8, 2.0]),
)
def test_many_plans_at_once_never_overspend_one_budget(
    limit: float, seed: int, flows: int, timeout: float | None
) -> None:
    """With errors, retries, escalations, timeouts and a deadline, sharing one budget."""

    def behave(worker: Worker, work: Any) -> WorkerAnswer:
        draw = work.seeds.child("draw", worker.name, work.attempt).python()
        kind = draw.choice(["right", "right", "wrong", "busy", "truncated"])
        seconds, cost = draw.uniform(0.1, 1.5), worker.price_out * draw.random()
        if kind == "busy":
            return WorkerAnswer(seconds=seconds, error=WorkerError("rate_limited"))
        error = WorkerError("truncated") if kind == "truncated" else None
        return WorkerAnswer("x", cost, seconds, error=error, correct=kind == "right")

    workers = [Worker(f"w{i}", price_out=0.2 + 0.2 * i, latency=Latency(1.0)) for i in range(3)]
    pool = ScriptedPool(workers, behave)
    budget = Budget(limit)
    executor = Executor(
        pool, RandomRouter(), settings=ExecutorSettings(try_timeout=timeout, deadline=6.0)
    )
    plan = plan_of((), (), (0, 1), (0,), (2, 3))

    async def run() -> list[Any]:
        return await asyncio.gather(
            *(executor.run(plan, seeds=SeedTree(seed, (i,)), budget=budget) for i in range(flows))
        )

    found = run_virtual(run())
    assert budget.spent <= limit + 1e-9
    assert budget.open == 0
    assert budget.reserved == 0.0
    assert math.fsum(e.total_cost for e in found) == pytest.approx(budget.spent)
    assert pool.running == 0


def test_a_node_waits_for_what_others_reserved_and_did_not_use() -> None:
    """Two roots whose bounds do not fit together both run, one after the other."""
    workers = (Worker("a", price_out=0.6, latency=Latency(1.0)),)
    pool = ScriptedPool(workers, lambda w, work: WorkerAnswer("x", 0.1, 1.0, correct=True))
    found = run_plan(plan_of((), ()), pool, budget=Budget(0.8))
    assert found.success
    assert found.total_cost == pytest.approx(0.2)
    assert pool.most == 1
    assert found.wall_seconds == pytest.approx(2.0)


def test_an_exhausted_budget_ends_the_node_with_that_reason() -> None:
    workers = (Worker("a", price_out=0.6, latency=Latency(1.0)),)
    pool = ScriptedPool(workers, lambda w, work: WorkerAnswer("x", 0.6, 1.0, correct=True))
    found = run_plan(plan_of((), (0,)), pool, budget=Budget(0.7))
    assert [node.status for node in found.nodes] == ["succeeded", "failed"]
    assert found.reason == found.nodes[1].reason == "budget"
    assert found.total_cost == pytest.approx(0.6)
    assert found.outputs == {"0": "x"}


def test_a_budget_that_buys_no_first_step_is_refused_before_anything_runs() -> None:
    pool = ScriptedPool(
        (Worker("a", price_out=0.6, latency=Latency(1.0)),), lambda w, work: WorkerAnswer("x")
    )
    with pytest.raises(ConfigError, match=r"cheapest first step.*0\.600000; raise --budget"):
        run_plan(plan_of((), (0,)), pool, budget=Budget(0.59))
    assert pool.asked == []


# ------------------------------------------------------------ paid verdicts


RIGHT = '{"correct": true}'
USAGE = {"prompt_tokens": 1000, "completion_tokens": 10}
PRICE = (1000 * 2.0 + 10 * 4.0) / 1e6
WORK = Subtask(0, "sum", prompt="1 + 1?")


REPLIES: dict[str, Callable[[httpx2.Request], httpx2.Response]] = {}
"""What judges reply, by host."""


@pytest.fixture(autouse=True)
def _upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = httpx2.MockTransport(lambda request: REPLIES[request.url.host](request))
    client = "openai.DefaultAsyncHttpxClient"
    monkeypatch.setattr(client, lambda **_: httpx2.AsyncClient(transport=transport))


def judge(
    said: Callable[[dict[str, Any]], httpx2.Response] | str, **fields: Any
) -> tuple[Any, list[dict[str, Any]]]:
    """A judge that replies so, and what it was asked."""
    asked: list[dict[str, Any]] = []

    def reply(request: httpx2.Request) -> httpx2.Response:
        asked.append(json.loads(request.content))
        return answered(said) if isinstance(said, str) else said(asked[-1])

    host = f"judge{len(REPLIES)}"
    REPLIES[host] = reply
    at = {"base_url": f"http://{host}/v1", "model": "m", "price_in": 2.0, "price_out": 4.0}
    return make_verifier({"kind": "judge", **at, **fields}), asked


def answered(text: str, usage: Any = USAGE) -> httpx2.Response:
    message = {"role": "assistant", "content": text}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    body = {"id": "x", "choices": choices} | ({} if usage is None else {"usage": usage})
    return httpx2.Response(200, json=body)


def check(verifier: Any, output: str, work: Subtask = WORK) -> Verification:
    return asyncio.run(verifier.check(work, WorkerAnswer(output)))


def test_it_looks_at_the_task_and_costs_what_the_server_counted() -> None:
    verifier, asked = judge(RIGHT)
    verdict = check(verifier, "two")
    assert verdict.passed
    assert verdict.cost == pytest.approx(PRICE)
    shown = json.loads(asked[0]["messages"][1]["content"])
    assert shown == {"task": "1 + 1?", "candidate_result": "two"}
    assert not check(judge('{"correct": false}')[0], "three").passed


def test_a_server_that_counts_nothing_costs_the_bound() -> None:
    verifier, _ = judge(lambda _: answered(RIGHT, None))
    assert check(verifier, "two").cost == verifier.bound(WORK, WorkerAnswer("two")) > PRICE


def test_no_verdict_is_paid_for_and_does_not_pass() -> None:
    verdict = check(judge("It is right, I think.")[0], "two")
    assert (verdict.passed, verdict.checked, verdict.cost) == (False, False, pytest.approx(PRICE))
    assert "no verdict: 'It is right" in verdict.reason


def test_a_refused_request_costs_nothing_and_a_busy_server_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tutelage.orchestration.execution.verifiers.PAUSE", 0.0)
    verdict = check(judge(lambda _: httpx2.Response(401, json={}))[0], "two")
    assert (verdict.passed, verdict.cost) == (False, 0.0)
    busy = [httpx2.Response(503, json={}), answered(RIGHT)]
    verdict = check(judge(lambda _: busy.pop(0))[0], "two")
    assert (verdict.passed, verdict.cost) == (True, pytest.approx(PRICE))


def test_a_judge_without_a_price_is_refused() -> None:
    with pytest.raises(ConfigError, match="price_in"):
        make_verifier({"kind": "judge", "model": "m", "base_url": "http://j/v1"})


class Counted:
    """Judges at a fixed price; every other verdict is wrong."""

    def __init__(self, price: float, bound: float) -> None:
        self.price, self._bound, self.checked = price, bound, 0

    def bound(self, work: Subtask, answer: WorkerAnswer | None = None) -> float:
        return self._bound

    async def check(self, work: Subtask, answer: WorkerAnswer) -> Verification:
        self.checked += 1
        await asyncio.sleep(0.5)
        return Verification(self.checked % 2 == 0, "judged", cost=self.price)


def execute(verifier: Any, budget: Budget, **more: Any) -> Execution:
    pool = ScriptedPool(workers("a", "b", "c", price=0.2), right(cost=0.1))
    executor = Executor(pool, cascade_router(["a", "b", "c"]), verifiers=Verifiers(verifier))
    plan = plan_of((), (), (0, 1))
    return run_virtual(executor.run(plan, seeds=SeedTree(0), budget=budget, **more))


def test_cost_is_conserved_with_verdicts() -> None:
    verifier, budget = Counted(0.05, 0.07), Budget(10.0)
    found = execute(verifier, budget)
    paid = sum(len(step.requests) for step in found.steps) * 0.1 + verifier.checked * 0.05
    assert found.total_cost == pytest.approx(paid)
    assert found.total_cost == pytest.approx(sum(step.cost for step in found.steps))
    assert budget.spent == pytest.approx(found.total_cost)
    assert (budget.open, budget.reserved) == (0, 0.0)


@pytest.mark.parametrize("limit", [0.27, 0.55, 1.1])
def test_an_enforced_budget_holds_with_verdicts(limit: float) -> None:
    budget = Budget(limit)
    found = execute(Counted(0.07, 0.07), budget)
    assert found.total_cost <= limit + 1e-9
    assert budget.spent == pytest.approx(found.total_cost)
    assert budget.open == 0


def test_a_verdict_that_was_cut_off_counts_at_its_bound(tmp_path: Path) -> None:
    """A process that ends while it judges: the log knows what may have been spent."""
    seeds, plan = SeedTree(0), plan_of(())
    pool = ScriptedPool(workers("a", price=0.2), right(cost=0.1))
    executor = Executor(pool, cascade_router(["a"]), verifiers=Verifiers(Counted(0.05, 0.07)))
    with ExecutionJournal(tmp_path / "events.db", plan, seeds) as journal:
        run_virtual(executor.run(plan, seeds=seeds, journal=journal))
    cut_after(tmp_path / "events.db", "verify")
    with ExecutionJournal(tmp_path / "events.db", plan, seeds) as again:
        (step,) = again.state.steps.values()
    assert step.cost == pytest.approx(0.1 + 0.07)
    assert not step.passed
