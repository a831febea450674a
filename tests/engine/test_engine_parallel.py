"""Rollouts whose code branches: the deterministic schedule counts each branch, and repeats."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from playback import prompt, request

from tutelage.engine import call_barrier
from tutelage.engine.chat import ChatSession
from tutelage.engine.driver import EngineDriver
from tutelage.engine.native import NativeEngine
from tutelage.engine.protocol import Request
from tutelage.seeds import SeedTree
from tutelage.testing import tiny_engine
from tutelage.types import Message, Sampling

Tool = Callable[[], Awaitable[None]]
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


async def team(chat: ChatSession, tool: Tool) -> None:
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


async def test_the_engine_waits_for_a_branch_whose_tool_runs(tiny: Any) -> None:
    """While one branch waits for the engine and the other for its tool, nothing is decoded."""
    engine = tiny_engine(tiny("qwen2"))
    driver = EngineDriver(engine)
    opened = asyncio.Event()

    async def quick() -> None:
        await driver.sample(request(1, max_tokens=1))
        await opened.wait()
        await driver.sample(request(3, max_tokens=1))

    async def slow() -> None:
        await driver.sample(request(2, max_tokens=1))
        await driver.sample(request(4, max_tokens=1))

    async with driver.participant():
        both = [asyncio.create_task(quick()), asyncio.create_task(slow())]
        await asyncio.sleep(0.02)
        decoded = engine.decoded_tokens
        assert decoded == 2
        opened.set()
        await asyncio.wait_for(asyncio.gather(*both), 60)
    assert engine.decoded_tokens == 4


async def test_a_branch_that_ended_holds_nobody_up(tiny: Any) -> None:
    driver = EngineDriver(tiny_engine(tiny("qwen2")))

    async def sample(seed: int, tokens: int) -> tuple[int, ...]:
        return (await driver.sample(request(seed, max_tokens=tokens))).token_ids

    async with driver.participant():
        await sample(0, 2)
        short, long = await asyncio.wait_for(asyncio.gather(sample(1, 1), sample(2, 30)), 60)
        assert len(short) == 1
        assert long
        async with asyncio.timeout(60):  # which makes no task, while wait_for does
            await sample(3, 3)
        await asyncio.wait_for(sample(4, 3), 60)


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


async def test_what_an_outside_task_samples_counts_for_the_rollout_that_made_the_session(
    tiny: Any,
) -> None:
    """As a gateway's handlers do: they know no rollout, the session that they call does."""
    policy = tiny("qwen2")
    driver = EngineDriver(tiny_engine(policy))
    inbox: asyncio.Queue[tuple[ChatSession, asyncio.Future[Any]]] = asyncio.Queue()
    handlers: set[asyncio.Task[None]] = set()

    async def handle(chat: ChatSession, answer: asyncio.Future[Any]) -> None:
        answer.set_result(await chat.chat([Message("user", "?")], sampling=Sampling(max_tokens=2)))

    async def serve() -> None:
        while True:
            handlers.add(asyncio.create_task(handle(*await inbox.get())))

    server = asyncio.create_task(serve())

    async def rollout(number: int) -> int:
        async with driver.participant():
            chat = ChatSession(driver, policy.codec, seeds=SeedTree(number), name=f"r{number}")
            for _ in range(3):
                answer = asyncio.get_running_loop().create_future()
                await inbox.put((chat, answer))
                await answer
            return len(chat.calls)

    got = await asyncio.wait_for(asyncio.gather(rollout(0), rollout(1)), 60)
    assert got == [3, 3]
    assert driver.barrier.thinking == 0
    server.cancel()


async def test_a_rollout_that_ends_before_its_branches_leaves_no_trace(tiny: Any) -> None:
    driver = EngineDriver(tiny_engine(tiny("qwen2")))
    async with driver.participant():
        stray = asyncio.create_task(driver.sample(request(1, max_tokens=3)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    async with driver.participant():
        await asyncio.wait_for(driver.sample(request(2, max_tokens=3)), 60)
        await asyncio.wait_for(stray, 60)
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
