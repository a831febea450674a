"""The driver: a schedule that repeats, waits for nobody it should not, and loses no failure."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from playback import one, prompt, request

from tutelage.engine import call_barrier
from tutelage.engine.chat import ChatSession
from tutelage.engine.driver import EngineDriver
from tutelage.engine.native import NativeEngine
from tutelage.engine.protocol import Request
from tutelage.errors import EngineError
from tutelage.seeds import SeedTree
from tutelage.testing import tiny_engine
from tutelage.types import Message, Sampled, Sampling

Tool = Callable[[int, int], Awaitable[None]]
Log = list[tuple[int, int, tuple[tuple[int, ...], ...]]]


def recorded(engine: NativeEngine) -> Log:
    """Notes what each step of an engine did."""
    log: Log = []
    step = engine.step

    def noting() -> Any:
        ended = step()
        said = tuple(s.token_ids for _, s in ended)
        log.append((engine.prefilled_tokens, engine.decoded_tokens, said))
        return ended

    engine.step = noting
    return log


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
        engine = tiny_engine(tiny("qwen2"), slots=4)
        log = recorded(engine)
        runs.append((await talks(EngineDriver(engine), random_tool(seed)), log))
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
        assert not engine.is_busy
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
    assert not engine.is_busy
    monkeypatch.setattr(engine, "step", working)
    fine = await driver.sample(request(1))
    assert fine.token_ids == one(tiny_engine(tiny("qwen2")), request(1)).token_ids


async def test_conversations_that_keep_every_slot_are_an_error_and_not_a_hang(tiny: Any) -> None:
    """One rollout with two agents and an engine of one slot that must not evict."""
    driver = EngineDriver(tiny_engine(tiny("qwen2"), slots=1, invariant=True))
    async with driver.participant():
        await driver.sample(request(1, session="planner"))
        with pytest.raises(EngineError, match="slot"):
            await asyncio.wait_for(driver.sample(request(2, session="worker")), 30)
        driver.release("planner")
        assert (await driver.sample(request(2, session="worker"))).token_ids


Pause = Callable[[], Awaitable[None]]


async def team(chat: ChatSession, tool: Pause) -> None:
    """One agent that thinks aloud, asks two helpers at the same time, and sums up."""
    ask = Message("user", "What is 12 + 34?")
    sampling = Sampling(max_tokens=7)
    first = await chat.chat([ask], sampling=sampling)

    async def helper(question: str, turns: int) -> str:
        history = [ask, first.reply, Message("user", question)]
        for _ in range(turns):
            call = await chat.chat(history, sampling=sampling)
            await tool()
            history += [call.reply, Message("user", "and?")]
        return str(history[-2].content)

    said = await asyncio.gather(helper("one?", 3), helper("two?", 2))
    await tool()
    last = [ask, first.reply, Message("user", " ".join(said)[:40])]
    await chat.chat(last, sampling=sampling)
    await asyncio.gather(
        *(chat.chat([*last[:2], Message("user", q)], sampling=sampling) for q in "ab")
    )


async def play(policy: Any, seed: int, **engine: Any) -> tuple[list[list[Any]], Log]:
    built = tiny_engine(policy, **engine)
    log = recorded(built)
    driver = EngineDriver(built)
    chance = random.Random(seed)
    sessions: list[ChatSession] = []

    async def tool() -> None:
        await asyncio.sleep(chance.choice([0, 0.001, 0.003]))

    async def rollout(number: int) -> None:
        async with driver.participant():
            seeds = SeedTree(0, ("rollout", number))
            chat = ChatSession(driver, policy.codec, seeds=seeds, name=f"r{number}", order=number)
            sessions[number] = chat
            await team(chat, tool)
            chat.close()

    count = 5
    sessions += [None] * count  # pyright: ignore
    async with asyncio.TaskGroup() as group, driver.participant():
        for number in range(count):
            group.create_task(rollout(number))
        await asyncio.sleep(0)
    assert driver.barrier.thinking == 0
    return [s.calls for s in sessions], log


@pytest.mark.full
@pytest.mark.parametrize("engine", [{"slots": 3}, {"slots": 16}, {"slots": 16, "invariant": True}])
async def test_agents_that_ask_twice_at_the_same_time_repeat_bit_for_bit(
    engine: dict[str, Any], tiny: Any
) -> None:
    runs = [await play(tiny("qwen2"), seed, **engine) for seed in range(4)]
    assert all(run == runs[0] for run in runs)
    assert [len(calls) for calls in runs[0][0]] == [9] * 5


async def test_branches_that_wait_for_each_other_do_not_stop_the_engine(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two actors with mailboxes, neither a child of the other."""
    monkeypatch.setattr(call_barrier, "_PATIENCE", 0.05)
    driver = EngineDriver(tiny_engine(tiny("qwen2")))
    mail: asyncio.Queue[int] = asyncio.Queue()

    async def writer() -> None:
        for turn in range(4):
            await driver.sample(request(turn, max_tokens=5))
            await mail.put(turn)

    async def reader() -> None:
        await driver.sample(request(9, max_tokens=1))
        for turn in range(4):
            assert await mail.get() == turn
            await driver.sample(request(10 + turn, max_tokens=1))

    async with driver.participant():
        await asyncio.wait_for(asyncio.gather(writer(), reader()), 60)
    assert "wait for each other" in caplog.text
    assert driver.barrier.thinking == 0


async def test_lanes_beside_the_main_one_keep_no_slot_in_invariant_mode(tiny: Any) -> None:
    """Else rollouts that ask twice at the same time would need more slots than there are."""
    engine = tiny_engine(tiny("qwen2"), slots=2, invariant=True)
    driver = EngineDriver(engine)

    def asked(lane: int, turn: int) -> Request:
        return Request(prompt(lane, 9 + turn), Sampling(max_tokens=3), turn, 0, f"s{lane}", lane)

    async with driver.participant():
        for turn in range(3):
            got = await asyncio.wait_for(
                asyncio.gather(*(driver.sample(asked(lane, turn)) for lane in range(4))), 60
            )
            assert len(got) == 4


@pytest.mark.parametrize("schedule", ["deterministic", "free"])
async def test_listening_changes_nothing_for_anybody(schedule: Any, tiny: Any) -> None:
    async def run(listeners: set[int]) -> tuple[list[Any], list[int]]:
        engine = tiny_engine(tiny("qwen2"), slots=3)
        steps: list[int] = []
        step = engine.step

        def noting() -> Any:
            ended = step()
            steps.append(engine.decoded_tokens)
            return ended

        engine.step = noting
        driver = EngineDriver(engine, schedule)
        heard: dict[int, list[int]] = {i: [] for i in range(8)}

        async def one(number: int) -> Any:
            wanted = request(number, max_tokens=5 + 4 * number, order=number)
            if number in listeners:
                wanted = replace(wanted, on_token=heard[number].extend)
            async with driver.participant():
                return await driver.sample(wanted)

        async with driver.participant():
            tasks = [asyncio.create_task(one(i)) for i in range(8)]
            await asyncio.sleep(0)
        got = [await t for t in tasks]
        assert all(tuple(heard[i]) == got[i].token_ids for i in listeners)
        assert not any(heard[i] for i in set(range(8)) - listeners)
        assert not engine.is_streaming
        return got, steps

    runs = [await run(listeners) for listeners in (set(), {2, 5}, set(range(8)))]
    assert runs[1] == runs[0]
    assert runs[2] == runs[0]
