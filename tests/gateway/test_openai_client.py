"""OpenAI's own SDK against the gateway, where it is installed: both APIs, streams, retries."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import pytest

from tutelage.engine.script import ScriptedReply
from tutelage.gateway import Gateway, ScriptedClient

from .conftest import ASK

openai = pytest.importorskip("openai")
Live = Callable[..., Gateway]


def client(live: Live, *script: Any) -> tuple[Any, ScriptedClient]:
    scripted = ScriptedClient(script)
    attempt_session = live().open("r", "a", scripted)
    return openai.OpenAI(
        base_url=attempt_session.base_url, api_key=attempt_session.api_key
    ), scripted


@pytest.fixture
def by_hand() -> Generator[None]:
    """Garbage is collected when a test says so."""
    gc.disable()
    yield
    gc.enable()


def test_the_sdk_repeats_what_may_succeed_and_nothing_else(live: Live) -> None:
    api, scripted = client(
        live, ScriptedReply(error=(500, "down")), ScriptedReply(error=(429, "busy")), "up"
    )
    quick = api.with_options(max_retries=2)
    answer = quick.chat.completions.create(model="m", messages=ASK)
    assert answer.choices[0].message.content == "up"
    assert len(scripted.calls) == 1
    with pytest.raises(openai.BadRequestError) as caught:
        api.chat.completions.create(model="m", messages=ASK, presence_penalty=1)
    assert caught.value.param == "presence_penalty"
    other = api.with_options(api_key="nonsense")
    with pytest.raises(openai.AuthenticationError):
        other.models.list()
    assert [m.id for m in api.models.list()] == ["policy"]


async def test_a_client_that_is_dropped_takes_no_connection_with_it(
    live: Live, by_hand: None
) -> None:
    gateway = live()
    attempt_session = gateway.open("r", "a", ScriptedClient(["x"]))
    make = partial(
        openai.AsyncOpenAI, base_url=attempt_session.base_url, api_key=attempt_session.api_key
    )

    async def ask(api: Any) -> str:
        answer = await api.chat.completions.create(model="m", messages=ASK)
        return answer.choices[0].message.content

    second = make()
    assert await ask(make()) == "x"  # a client for one rollout, never closed, as agno makes them
    collected, waits = threading.Event(), threading.Event()

    async def collect_and_work() -> None:
        gc.collect()  # closes the first connection, whose file number is free again
        collected.set()
        waits.wait(20)  # as during an engine's step; the second connection takes that number

    work = gateway.submit(collect_and_work())
    await asyncio.to_thread(collected.wait)
    asked = asyncio.create_task(ask(second))
    await asyncio.sleep(0.3)
    waits.set()
    assert await asyncio.wait_for(asked, 20) == "x"
    work.result()
    await second.close()
