"""A judge costs money: its verdicts are in the execution's cost, its budget and its log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from executing import ScriptedPool, cut_after, plan_of, right, workers

from tutelage.errors import ConfigError
from tutelage.orchestration.execution.budget import Budget
from tutelage.orchestration.execution.executor import Executor
from tutelage.orchestration.execution.record import Execution, ExecutionJournal
from tutelage.orchestration.execution.verifiers import Verifiers, make_verifier
from tutelage.orchestration.execution.virtual_time import run_virtual
from tutelage.orchestration.execution.workers import (
    Subtask,
    Verification,
    WorkerAnswer,
    WorkerError,
)
from tutelage.orchestration.routing.contract import cascade
from tutelage.seeds import SeedTree

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


def test_nothing_to_judge_asks_nobody() -> None:
    verifier, asked = judge(RIGHT)
    assert not check(verifier, "  ").passed
    assert not check(Verifiers(verifier), "").passed
    failed = WorkerAnswer(error=WorkerError("truncated", "cut"))
    assert Verifiers(verifier).bound(WORK, failed) == 0.0
    assert not asked


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"model": "m", "base_url": "http://j/v1"}, "price_in"),
        ({"price_in": -1, "price_out": 0, "model": "m", "base_url": "http://j/v1"}, "price_in"),
        ({"price_in": "dear", "price_out": 0, "model": "m", "base_url": "http://j"}, "price_in"),
        (
            {"price_in": 1, "price_out": 1, "model": "m", "base_url": "judge"},
            "is not a valid base URL",
        ),
        (
            {"price_in": 1, "price_out": 1, "model": "m", "base_url": "http://j", "key_env": "NO_"},
            "NO_ is not set",
        ),
    ],
)
def test_a_judge_without_a_price_or_a_place_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make_verifier({"kind": "judge", **given})


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
    executor = Executor(pool, cascade(["a", "b", "c"]), verifiers=Verifiers(verifier))
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


@pytest.mark.parametrize("limit", [0.27, 0.4, 0.55, 0.8, 1.1])
def test_an_enforced_budget_holds_with_verdicts(limit: float) -> None:
    budget = Budget(limit)
    found = execute(Counted(0.07, 0.07), budget)
    assert found.total_cost <= limit + 1e-9
    assert budget.spent == pytest.approx(found.total_cost)
    assert budget.open == 0


def test_a_budget_that_cannot_pay_worker_and_judge_is_refused() -> None:
    with pytest.raises(ConfigError, match="cheapest first step"):
        execute(Counted(0.07, 0.07), Budget(0.25))


def test_a_verdict_that_was_cut_off_counts_at_its_bound(tmp_path: Path) -> None:
    """A process that ends while it judges: the log knows what may have been spent."""
    seeds, plan = SeedTree(0), plan_of(())
    pool = ScriptedPool(workers("a", price=0.2), right(cost=0.1))
    executor = Executor(pool, cascade(["a"]), verifiers=Verifiers(Counted(0.05, 0.07)))
    with ExecutionJournal(tmp_path / "events.db", plan, seeds) as journal:
        run_virtual(executor.run(plan, seeds=seeds, journal=journal))
    cut_after(tmp_path / "events.db", "verify")
    with ExecutionJournal(tmp_path / "events.db", plan, seeds) as again:
        (step,) = again.state.steps.values()
    assert step.cost == pytest.approx(0.1 + 0.07)
    assert not step.passed
