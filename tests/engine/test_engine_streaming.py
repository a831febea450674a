"""Tokens as they come: in order, in time, on the schedule that everybody else has anyway."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from playback import finish, request

from tutelage.engine.chat import ChatSession
from tutelage.engine.driver import EngineDriver
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine, tiny_engine
from tutelage.types import Constraint, Message, Sampling, ToolSpec

ASK = Message("user", "What is 12 + 34?")
TOOL = ToolSpec("f", "", {"type": "object", "properties": {"x": {"type": "integer"}}})


@pytest.mark.parametrize("schedule", ["deterministic", "free"])
async def test_tokens_are_told_as_they_are_drawn_and_before_the_result(
    schedule: Any, tiny: Any
) -> None:
    driver = EngineDriver(tiny_engine(tiny("qwen2")), schedule)
    told: list[int] = []
    turns = 0

    async def bystander() -> None:
        nonlocal turns
        while True:
            turns += len(told) > 0
            await asyncio.sleep(0)

    watcher = asyncio.create_task(bystander())
    wanted = replace(request(1, max_tokens=30), on_token=told.extend)
    got = await driver.sample(wanted)
    watcher.cancel()
    assert tuple(told) == got.token_ids
    assert turns >= len(told) - 2  # others had a turn between tokens: what is told can be sent


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
        assert not engine.streaming
        return got, steps

    runs = [await run(listeners) for listeners in (set(), {2, 5}, set(range(8)))]
    assert runs[1] == runs[0]
    assert runs[2] == runs[0]


async def test_a_listener_that_fails_loses_its_request_and_no_other(tiny: Any) -> None:
    engine = tiny_engine(tiny("qwen2"), slots=3)
    driver = EngineDriver(engine)

    def broken(ids: Any) -> None:
        raise ValueError(f"no more of {len(ids)}")

    wanted = [request(s, max_tokens=20) for s in range(3)]
    got: Any = await asyncio.gather(
        driver.sample(wanted[0]),
        driver.sample(replace(wanted[1], on_token=broken)),
        driver.sample(wanted[2]),
        return_exceptions=True,
    )
    assert isinstance(got[1], ValueError)
    alone = finish(tiny_engine(tiny("qwen2"), slots=3), wanted)
    assert [got[0].token_ids, got[2].token_ids] == [alone[0].token_ids, alone[2].token_ids]
    assert not engine.busy
    assert not engine.streaming


async def test_cancelling_while_tokens_come_ends_the_request(tiny: Any) -> None:
    engine = tiny_engine(tiny("qwen2"), slots=1)
    driver = EngineDriver(engine)
    told: list[int] = []
    wanted = replace(request(1, max_tokens=200, temperature=0.0), on_token=told.extend)
    task = asyncio.create_task(driver.sample(wanted))
    while len(told) < 3:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not engine.busy
    heard = len(told)
    await asyncio.wait_for(driver.sample(request(2)), 60)
    assert len(told) == heard


@pytest.mark.parametrize("constraint", [None, Constraint("required", False)])
async def test_a_chat_tells_what_its_call_records(constraint: Any, tiny: Any) -> None:
    policy = tiny("qwen2")
    scripted = ScriptedEngine(policy.codec, ["It is 46"])
    for engine in (EngineDriver(tiny_engine(policy)), scripted):
        chat = ChatSession(engine, policy.codec, seeds=SeedTree(0), name="a")
        told: list[int] = []
        call = await chat.chat(
            [ASK],
            tools=[TOOL],
            sampling=Sampling(max_tokens=60),
            constraint=constraint,
            on_token=told.extend,
        )
        assert tuple(told) == call.sampled.token_ids
