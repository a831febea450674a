"""The simple routers: whom they choose, and that they keep to the mask."""

from __future__ import annotations

from dataclasses import replace

import pytest
from executing import ScriptedPool, plan_of, run_plan, workers, wrong

from tutelage.errors import ConfigError
from tutelage.orchestration.execution.workers import (
    Latency,
    Subtask,
    Worker,
    WorkerEstimate,
)
from tutelage.orchestration.routing.contract import (
    Choice,
    RouteState,
    cascade,
    cheapest,
    most_accurate,
)

WORKERS = (
    Worker("dear", price_out=9.0, latency=Latency(0.5), skills={"*": 0.95}),
    Worker("cheap", price_out=1.0, latency=Latency(2.0), skills={"*": 0.6}),
    Worker("quick", price_out=3.0, latency=Latency(0.1), skills={"*": 0.7}),
)


def state(*closed: int, tries: tuple[int, ...] = (), accept: bool = False) -> RouteState:
    return RouteState(
        plan=plan_of(()),
        work=Subtask(0, "t0", "text"),
        workers=WORKERS,
        mask=(*(i not in closed for i in range(3)), accept, True),
        estimates=tuple(
            WorkerEstimate(w.price_out, w.latency.seconds, w.price_out) for w in WORKERS
        ),
        tries=tries,
    )


FAILED = (1,)


def test_each_takes_its_best_and_then_the_next() -> None:
    assert cheapest().choose(state()).action == 1
    assert cheapest().choose(state(1, tries=FAILED)).action == 2
    assert most_accurate().choose(state()).action == 0
    assert most_accurate().choose(state(0)).action == 2


def test_where_nobody_is_left_they_stop() -> None:
    for router in (cheapest(), cascade(["dear"])):
        assert router.choose(state(0, 1, 2, accept=True)).action == state().stop


def test_a_cascade_asks_in_its_order_and_nobody_else() -> None:
    router = cascade(["quick", "dear"])
    assert router.choose(state()).action == 2
    assert router.choose(state(2, tries=FAILED)).action == 0
    assert router.choose(state(0, 2)).action == state().stop


def test_a_choice_keeps_to_the_mask() -> None:
    given = state(0)
    assert given.checked(Choice(1)).mask == given.mask
    for bad in (Choice(0), Choice(5), Choice(-1)):
        with pytest.raises(ConfigError, match="the mask allows"):
            given.checked(bad)


def test_the_choice_of_a_router_comes_back_with_its_step() -> None:
    class Noting:
        def choose(self, state: RouteState) -> Choice:
            return replace(cheapest().choose(state), log_prob=-0.5 - len(state.tries))

    found = run_plan(plan_of(()), ScriptedPool(workers("a", "b"), lambda w, k: wrong()), Noting())
    assert [step.choice.log_prob for step in found.steps] == [-0.5, -1.5, -2.5]
