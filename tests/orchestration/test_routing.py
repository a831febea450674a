"""The simple routers: whom they choose, and that they keep to the mask."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from executing import ScriptedPool, plan_of, run_plan, workers, wrong

from tutelage.errors import ConfigError
from tutelage.orchestration.evaluation.rewards import References, RewardWeights
from tutelage.orchestration.execution.workers import (
    Latency,
    Subtask,
    Worker,
    WorkerAnswer,
    WorkerEstimate,
)
from tutelage.orchestration.routing.contract import (
    Choice,
    PreviousTry,
    RandomRouter,
    RouteState,
    cascade,
    cheapest,
    fastest,
    greedy,
    most_accurate,
)
from tutelage.seeds import SeedTree

WORKERS = (
    Worker("dear", price_out=9.0, latency=Latency(0.5), skills={"*": 0.95}),
    Worker("cheap", price_out=1.0, latency=Latency(2.0), skills={"*": 0.6}),
    Worker("quick", price_out=3.0, latency=Latency(0.1), skills={"*": 0.7}),
)


def state(*closed: int, tries: tuple[PreviousTry, ...] = (), accept: bool = False) -> RouteState:
    return RouteState(
        plan=plan_of(()),
        work=Subtask(0, "t0", "text"),
        workers=WORKERS,
        mask=(*(i not in closed for i in range(3)), accept, True),
        estimates=tuple(
            WorkerEstimate(w.price_out, w.latency.seconds, w.price_out) for w in WORKERS
        ),
        tries=tries,
        references=References(9.0, 2.0),
    )


FAILED = (PreviousTry(1, WorkerAnswer("x"), False),)


def test_each_takes_its_best_and_then_the_next() -> None:
    assert cheapest().choose(state()).action == 1
    assert cheapest().choose(state(1, tries=FAILED)).action == 2
    assert fastest().choose(state()).action == 2
    assert most_accurate().choose(state()).action == 0
    assert most_accurate().choose(state(0)).action == 2


def test_without_escalation_one_try_is_all() -> None:
    assert cheapest(escalate=False).choose(state(1, tries=FAILED)).action == state().stop
    assert RandomRouter(escalate=False).choose(state(1, tries=FAILED)).action == state().stop


def test_where_nobody_is_left_they_stop() -> None:
    for router in (cheapest(), RandomRouter(), greedy(), cascade(["dear"])):
        assert router.choose(state(0, 1, 2, accept=True)).action == state().stop


def test_a_cascade_asks_in_its_order_and_nobody_else() -> None:
    router = cascade(["quick", "dear"])
    assert router.choose(state()).action == 2
    assert router.choose(state(2, tries=FAILED)).action == 0
    assert router.choose(state(0, 2)).action == state().stop
    with pytest.raises(ConfigError, match="names no workers"):
        cascade([])


def test_random_draws_evenly_by_the_seed_of_the_try() -> None:
    router = RandomRouter()
    drawn = [router.choose(replace(state(0), seeds=SeedTree(0, (i,)))).action for i in range(400)]
    assert set(drawn) == {1, 2}
    assert drawn.count(1) / 400 == pytest.approx(0.5, abs=0.08)
    choice = router.choose(state(0))
    assert choice.log_prob == pytest.approx(-math.log(2))
    assert choice.mask == (False, True, True, False, False)
    assert router.choose(state(0)) == choice


def test_greedy_weighs_success_against_money_and_time() -> None:
    """With weights 10, 8 and 4: dear 9.5 - 8 - 1, cheap 6 - 0.89 - 4, quick 7 - 2.67 - 0.2."""
    weights = RewardWeights(10.0, 8.0, 4.0)
    router = greedy(weights)
    assert router.choose(state()).action == 2
    assert router.choose(state(2)).action == 1
    assert router.choose(state(1, 2)).action == 0
    # The first try is made whatever it is worth; a further one only when it pays.
    poor = greedy(RewardWeights(1.0, 8.0, 4.0))
    assert poor.choose(state()).action in range(3)
    assert poor.choose(state(1, tries=FAILED)).action == state().stop


def test_greedy_measures_against_the_references_of_the_workflow() -> None:
    """Where a dollar and a second are shares of less, the cheap one is too slow to pay."""
    rich = replace(state(), references=References(900.0, 0.5))
    assert greedy(RewardWeights(10.0, 8.0, 4.0)).choose(rich).action == 2
    richer = replace(state(), references=References(900.0, 200.0))
    assert greedy(RewardWeights(10.0, 8.0, 4.0)).choose(richer).action == 0


def test_a_mask_is_filled_in_and_never_widened() -> None:
    given = state(0)
    assert given.checked(Choice(1)).mask == given.mask
    narrow = Choice(1, mask=(False, True, False, False, False))
    assert given.checked(narrow) is narrow
    for bad in (Choice(0), Choice(5), Choice(-1), Choice(2, mask=narrow.mask)):
        with pytest.raises(ConfigError):
            given.checked(bad)
    with pytest.raises(ConfigError):
        given.checked(Choice(0, mask=(True,) * 5))


def test_the_choice_of_a_router_comes_back_with_its_step() -> None:
    class Noting:
        def choose(self, state: RouteState) -> Choice:
            return replace(cheapest().choose(state), log_prob=-0.5 - len(state.tries))

    found = run_plan(plan_of(()), ScriptedPool(workers("a", "b"), lambda w, k: wrong()), Noting())
    assert [step.choice.log_prob for step in found.steps] == [-0.5, -1.5, -2.5]
