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

from .conftest import ASK, CALCULATOR, FLAT_CALCULATOR, TOOL_TURN

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


def test_a_tool_loop_over_chat_completions(live: Live) -> None:
    api, scripted = client(live, TOOL_TURN, "It is 2.")
    messages: list[Any] = list(ASK)
    first = api.chat.completions.create(model="m", messages=messages, tools=[CALCULATOR])
    turn = first.choices[0].message
    result = {"role": "tool", "tool_call_id": turn.tool_calls[0].id, "content": "2"}
    again = [*messages, turn.model_dump(), result]
    second = api.chat.completions.create(model="m", messages=again, tools=[CALCULATOR])
    assert second.choices[0].message.content == "It is 2."
    seen = scripted.calls[1].messages
    assert seen[1] == scripted.calls[0].reply
    assert seen[2].tool_call_id == scripted.calls[0].reply.tool_calls[0].id


def test_streams_add_up_to_the_reply(live: Live) -> None:
    api, scripted = client(live, TOOL_TURN)
    with api.chat.completions.stream(
        model="m", messages=ASK, tools=[CALCULATOR], stream_options={"include_usage": True}
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert kinds.count("content.delta") > 1
    message = final.choices[0].message
    reply = scripted.calls[0].reply
    assert message.content == reply.content
    assert [(c.id, c.function.arguments) for c in message.tool_calls] == [
        (c.id, c.arguments) for c in reply.tool_calls
    ]
    assert final.usage.completion_tokens == len(scripted.calls[0].sampled.token_ids)
    with api.responses.stream(model="m", input="hi", tools=[FLAT_CALCULATOR]) as stream:
        for _ in stream:
            pass
        response = stream.get_final_response()
    assert response.output_text == reply.content
    assert response.output[1].call_id == scripted.calls[1].reply.tool_calls[0].id


def test_responses_go_on_by_id(live: Live) -> None:
    api, scripted = client(live, TOOL_TURN, "It is 2.")
    first = api.responses.create(model="m", input="1 + 1?", tools=[FLAT_CALCULATOR])
    call = next(i for i in first.output if i.type == "function_call")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "2"}
    second = api.responses.create(model="m", input=[output], previous_response_id=first.id)
    assert second.output_text == "It is 2."
    assert scripted.calls[1].messages[1] is scripted.calls[0].reply
    assert api.responses.retrieve(second.id).output_text == "It is 2."


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
