"""The budget: reserve a bound, settle the cost, and never pass an enforced limit."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

import pytest
from executing import RandomRouter, ScriptedPool, plan_of, run_plan
from hypothesis import given, settings
from hypothesis import strategies as st

from tutelage.errors import ConfigError
from tutelage.orchestration.execution.budget import Budget
from tutelage.orchestration.execution.executor import Executor, ExecutorSettings
from tutelage.orchestration.execution.virtual_time import run_virtual
from tutelage.orchestration.execution.workers import Latency, Worker, WorkerAnswer, WorkerError
from tutelage.seeds import SeedTree


@pytest.mark.parametrize("limit", [-0.1, math.nan, math.inf])
def test_a_limit_is_an_amount(limit: float) -> None:
    with pytest.raises(ConfigError, match="budget must be"):
        Budget(limit)


def test_reservations_count_until_they_are_settled() -> None:
    budget = Budget(1.0)
    assert budget.reserve(0.7)
    assert not budget.reserve(0.4)
    assert budget.left == pytest.approx(0.3)
    budget.settle(0.7, 0.2)
    assert budget.left == pytest.approx(0.8)
    assert budget.reserve(0.8)
    budget.settle(0.8, 0.8)
    assert (budget.spent, budget.reserved, budget.open) == (1.0, 0.0, 0)


@given(
    limit=st.floats(0.0, 3.0),
    steps=st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)), max_size=40),
    seed=st.integers(0, 1000),
)
def test_an_enforced_budget_is_never_overspent_by_any_interleaving(
    limit: float, steps: list[tuple[float, float]], seed: int
) -> None:
    budget, draw = Budget(limit), random.Random(seed)
    under_way: list[tuple[float, float]] = []
    for bound, share in steps:
        if under_way and draw.random() < 0.5:
            kept, used = under_way.pop(draw.randrange(len(under_way)))
            budget.settle(kept, kept * used)
        if budget.reserve(bound):
            under_way.append((bound, share))
        assert budget.spent + budget.reserved <= limit + 1e-9
    for bound, share in under_way:
        budget.settle(bound, bound * share)
    assert budget.spent <= limit + 1e-9
    assert budget.open == 0


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


@pytest.mark.parametrize("limit", [0.0, 0.59])
def test_a_budget_that_buys_no_first_step_is_refused_before_anything_runs(limit: float) -> None:
    pool = ScriptedPool(
        (Worker("a", price_out=0.6, latency=Latency(1.0)),), lambda w, work: WorkerAnswer("x")
    )
    with pytest.raises(ConfigError, match=r"cheapest first step.*0\.600000; raise --budget"):
        run_plan(plan_of((), (0,)), pool, budget=Budget(limit))
    assert pool.asked == []


def test_a_budget_of_nothing_is_enough_for_free_workers() -> None:
    pool = ScriptedPool(
        (Worker("a", latency=Latency(1.0)),), lambda w, work: WorkerAnswer("x", correct=True)
    )
    assert run_plan(plan_of(()), pool, budget=Budget(0.0)).success


def test_a_deadline_ends_the_wait_for_a_budget() -> None:
    workers = (Worker("a", price_out=0.6, latency=Latency(1.0)),)
    pool = ScriptedPool(workers, lambda w, work: WorkerAnswer("x", 0.1, 5.0, correct=True))
    executor = Executor(pool, RandomRouter(), settings=ExecutorSettings(deadline=3.0))
    budget = Budget(0.8)

    async def run() -> Any:
        return await asyncio.gather(
            *(executor.run(plan_of(()), seeds=SeedTree(i), budget=budget) for i in range(2))
        )

    assert [e.reason for e in run_virtual(run())] == ["deadline", "deadline"]
    assert budget.open == 0


def test_after_a_server_that_used_more_than_a_request_can_nothing_begins() -> None:
    def behave(worker: Worker, work: Any) -> WorkerAnswer:
        cost = 21.51 if work.node == 0 else 0.1
        return WorkerAnswer("x", cost, 1.0 + work.node, correct=True)

    pool = ScriptedPool([Worker("small", price_out=0.1)], behave)
    plan = plan_of((), (), (0,), (1,))
    done = run_plan(plan, pool, budget=Budget(1.0))
    assert not done.success
    assert done.reason == "budget"
    assert [node.reason for node in done.nodes[2:]] == ["budget", "budget"]
    assert len(pool.asked) == 2
