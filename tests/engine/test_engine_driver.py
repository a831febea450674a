"""The driver: a schedule that repeats, waits for nobody it should not, and loses no failure."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from playback import one, prompt, request

from tutelage.engine.driver import EngineDriver
from tutelage.engine.native import NativeEngine
from tutelage.engine.protocol import Request
from tutelage.errors import ContextOverflowError, EngineError
from tutelage.testing import tiny_engine
from tutelage.types import Sampled, Sampling, StopReason

Tool = Callable[[int, int], Awaitable[None]]


class Recorder:
    """An engine that notes which requests each step worked on."""

    def __init__(self, engine: NativeEngine) -> None:
        self.engine, self.log = engine, []
        self._step, self._submit = engine.step, engine.submit
        engine.step = self.step

    def step(self) -> list[tuple[int, Sampled]]:
        ended = self._step()
        self.log.append((self.engine.prefilled_tokens, [s.token_ids for _, s in ended]))
        return ended


async def talk(driver: EngineDriver, number: int, tool: Tool, said: list[Sampled]) -> None:
    async with driver.participant():
        ids = prompt(number % 3, 9)
        for turn in range(3):
            sampling = Sampling(max_tokens=3 + number)
            name = f"talk{number}"
            got = await driver.sample(Request(ids, sampling, 10 * number + turn, number, name))
            said.append(got)
            await tool(number, turn)
            ids += got.token_ids + prompt(20 + number, 4)
        driver.release(f"talk{number}")


async def talks(driver: EngineDriver, tool: Tool, count: int = 6) -> list[list[Sampled]]:
    said: list[list[Sampled]] = [[] for _ in range(count)]
    async with asyncio.TaskGroup() as group, driver.participant():
        for number in range(count):
            group.create_task(talk(driver, number, tool, said[number]))
        await asyncio.sleep(0)
    return said


def random_tool(seed: int) -> Tool:
    chance = random.Random(seed)

    async def tool(number: int, turn: int) -> None:
        del number, turn
        await asyncio.sleep(chance.choice([0, 0, 0.001, 0.004]))

    return tool


async def no_tool(number: int, turn: int) -> None:
    del number, turn


async def test_the_deterministic_schedule_does_not_see_the_order_of_tools(tiny: Any) -> None:
    runs = []
    for seed in range(4):
        recorder = Recorder(tiny_engine(tiny("qwen2"), slots=4))
        said = await talks(EngineDriver(recorder.engine), random_tool(seed))
        runs.append((said, recorder.log))
    assert all(run == runs[0] for run in runs)


async def test_the_free_schedule_lets_nobody_wait_for_a_slow_tool(tiny: Any) -> None:
    """The first talk's tool waits for all the others to end: a deadlock if they waited for it."""
    driver = EngineDriver(tiny_engine(tiny("qwen2"), slots=3), "free")
    others = asyncio.Event()
    ended = 0

    async def tool(number: int, turn: int) -> None:
        nonlocal ended
        if number == 0:
            await others.wait()
        elif turn == 2:
            ended += 1
            if ended == 5:
                others.set()

    said = await asyncio.wait_for(talks(driver, tool), 60)
    assert [len(s) for s in said] == [3] * 6


@pytest.mark.parametrize("schedule", ["deterministic", "free"])
async def test_both_schedules_sample_the_same_tokens(schedule: Any, tiny: Any) -> None:
    said = await talks(EngineDriver(tiny_engine(tiny("qwen2"), slots=4), schedule), no_tool)
    alone = tiny_engine(tiny("qwen2"), slots=1)
    for number, turns in enumerate(said):
        ids = prompt(number % 3, 9)
        for turn, got in enumerate(turns):
            wanted = Request(ids, Sampling(max_tokens=3 + number), 10 * number + turn)
            assert got.token_ids == one(alone, wanted).token_ids
            ids += got.token_ids + prompt(20 + number, 4)


async def test_free_schedule_in_invariant_mode_repeats_bit_for_bit(tiny: Any) -> None:
    runs = [
        await talks(
            EngineDriver(tiny_engine(tiny("qwen2"), slots=6, invariant=True), "free"),
            random_tool(seed),
        )
        for seed in range(2)
    ]
    assert runs[0] == runs[1]


async def test_a_caller_outside_any_rollout_is_served(tiny: Any) -> None:
    driver = EngineDriver(tiny_engine(tiny("qwen2")))
    got = await asyncio.gather(*(driver.sample(request(s)) for s in range(5)))
    assert [g.token_ids for g in got] == [
        one(tiny_engine(tiny("qwen2")), request(s)).token_ids for s in range(5)
    ]
    assert driver.max_length == 256


@pytest.mark.parametrize("schedule", ["deterministic", "free"])
async def test_cancelling_a_rollout_cancels_its_request_and_frees_its_slot(
    schedule: Any, tiny: Any
) -> None:
    engine = tiny_engine(tiny("qwen2"), slots=1)
    driver = EngineDriver(engine, schedule)
    ready = asyncio.Event()

    async def stuck() -> None:
        async with driver.participant():
            ready.set()
            await driver.sample(request(1, max_tokens=200, session="stuck", temperature=0.0))

    async with driver.participant():
        task = asyncio.create_task(stuck())
        await ready.wait()
        if schedule == "free":
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not engine.busy
        got = await asyncio.wait_for(driver.sample(request(2)), 60)
    assert got.token_ids == one(tiny_engine(tiny("qwen2")), request(2)).token_ids


async def test_a_rollout_that_is_cancelled_while_its_tool_runs_holds_nobody_up(tiny: Any) -> None:
    driver = EngineDriver(tiny_engine(tiny("qwen2")))

    async def thinking() -> None:
        async with driver.participant():
            await asyncio.sleep(3600)

    async with driver.participant():
        task = asyncio.create_task(thinking())
        await asyncio.sleep(0)
        waiting = asyncio.create_task(driver.sample(request(1)))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        task.cancel()
        assert (await asyncio.wait_for(waiting, 60)).token_ids


@pytest.mark.parametrize("schedule", ["deterministic", "free"])
async def test_an_engine_that_fails_fails_everyone_who_waits_and_serves_the_next(
    schedule: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine(tiny("qwen2"), slots=2)
    driver = EngineDriver(engine, schedule)
    working = engine.step

    def broken() -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine, "step", broken)
    got: Sequence[Any] = await asyncio.gather(
        *(driver.sample(request(s)) for s in range(4)), return_exceptions=True
    )
    assert [type(e) for e in got] == [EngineError] * 4
    assert all("RuntimeError: out of memory" in str(e) for e in got)
    assert all(isinstance(e.__cause__, RuntimeError) for e in got)
    assert not engine.busy
    monkeypatch.setattr(engine, "step", working)
    fine = await driver.sample(request(1))
    assert fine.token_ids == one(tiny_engine(tiny("qwen2")), request(1)).token_ids


async def test_a_prompt_that_does_not_fit_fails_alone(tiny: Any) -> None:
    driver = EngineDriver(tiny_engine(tiny("qwen2"), max_length=20))
    async with driver.participant():
        with pytest.raises(ContextOverflowError):
            await driver.sample(request(1, ids=prompt(1, 30)))
        fine = await driver.sample(request(1, max_tokens=2))
    assert fine.stop_reason is StopReason.LENGTH


async def test_conversations_that_keep_every_slot_are_an_error_and_not_a_hang(tiny: Any) -> None:
    """One rollout with two agents and an engine of one slot that must not evict."""
    driver = EngineDriver(tiny_engine(tiny("qwen2"), slots=1, invariant=True))
    async with driver.participant():
        await driver.sample(request(1, session="planner"))
        with pytest.raises(EngineError, match="slot"):
            await asyncio.wait_for(driver.sample(request(2, session="worker")), 30)
        driver.release("planner")
        assert (await driver.sample(request(2, session="worker"))).token_ids
