"""A repeated request is answered, not sampled again; records and closing lose nothing."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tutelage.engine.script import ScriptedReply
from tutelage.gateway import RecordedRequest
from tutelage.gateway.dialects import CHAT_COMPLETIONS
from tutelage.gateway.record import Recorder

from .conftest import Open, Puppet, events


async def until(condition: Any) -> None:
    """Wait for something that other tasks do."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came about")


AGAIN = {"x_stainless_retry_count": "1"}
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
RESPONSE: dict[str, Any] = {"model": "m", "input": "hi"}
BOTH = pytest.mark.parametrize(
    ("path", "body"), [("/chat/completions", CHAT), ("/responses", RESPONSE)]
)


@BOTH
@pytest.mark.parametrize("stream", [False, True])
async def test_a_repeat_gets_the_first_result(
    attempt_session: Open, path: str, body: dict[str, Any], stream: bool
) -> None:
    case = attempt_session("one", "two", "three")
    body = {**body, "stream": stream}
    first = await case.post(path, body, x_stainless_retry_count="0")
    again = await case.post(path, body, **AGAIN)
    if stream:  # the same but for how it is cut into pieces
        assert events(again.text)[-2:] == events(first.text)[-2:] or path == "/responses"
    else:
        assert again.json() == first.json()
    assert "one" in again.text
    assert len(case.client.calls) == 1
    fresh = await case.post(path, body)
    assert "two" in fresh.text
    other = await case.post(path, {**body, "temperature": 0.5}, **AGAIN)
    assert "three" in other.text


@BOTH
async def test_a_repeat_joins_what_still_runs(
    attempt_session: Open, path: str, body: dict[str, Any]
) -> None:
    puppet = Puppet()
    case = attempt_session(puppet)
    first = asyncio.create_task(case.post(path, body))
    await until(lambda: puppet.started)
    second = asyncio.create_task(case.post(path, body, **AGAIN))
    await until(lambda: case.attempt_session.in_flight == 2)
    puppet.go.set()
    one, two = await first, await second
    assert one.json() == two.json()
    assert puppet.started == 1
    assert len(puppet.inner.calls) == 1


async def test_who_leaves_does_not_cancel_who_joined(attempt_session: Open) -> None:
    puppet = Puppet()
    case = attempt_session(puppet)
    answer = case.attempt_session.answer(CHAT_COMPLETIONS, b"k", False, _ask(), "main")
    answer.add_waiter()
    same = case.attempt_session.answer(CHAT_COMPLETIONS, b"k", True, _ask(), "main")
    assert same is answer
    same.add_waiter()
    answer.remove_waiter()
    await asyncio.sleep(0)
    assert not answer.task.done()
    puppet.go.set()
    await answer.task
    same.remove_waiter()
    assert puppet.cancelled == 0


def _ask() -> Any:
    from tutelage.gateway.request import ChatRequest
    from tutelage.types import Message, Sampling

    return ChatRequest("m", (Message("user", "hi"),), Sampling())


async def test_a_failure_is_no_result(attempt_session: Open) -> None:
    case = attempt_session(ScriptedReply(error=(500, "down")), "up")
    assert (await case.post("/chat/completions", CHAT)).status_code == 500
    retried = await case.post("/chat/completions", CHAT, **AGAIN)
    assert retried.json()["choices"][0]["message"]["content"] == "up"


async def test_an_idempotency_key_needs_no_count(attempt_session: Open) -> None:
    case = attempt_session("one", "two", "three")
    key = {"idempotency_key": "k1"}
    first = await case.post("/chat/completions", CHAT, **key)
    assert (await case.post("/chat/completions", CHAT, **key)).json() == first.json()
    other = await case.post("/chat/completions", CHAT, idempotency_key="k2")
    assert other.json()["id"] != first.json()["id"]


async def test_the_agent_is_part_of_what_was_asked(attempt_session: Open) -> None:
    case = attempt_session("one", "two")
    await case.post("/chat/completions", CHAT, x_tutelage_agent="a")
    await case.post("/chat/completions", CHAT, x_tutelage_agent="b", **AGAIN)
    assert [c.agent for c in case.client.calls] == ["a", "b"]


# ------------------------------------------------------------ records


async def test_every_request_is_recorded_before_the_door_is_closed(attempt_session: Open) -> None:
    records: list[RecordedRequest] = []
    case = attempt_session("one two", ScriptedReply(error=(500, "down")), on_call=records.append)
    answer = await case.chat(stream=True)
    assert (await case.respond()).status_code == 500
    await case.attempt_session.aclose()
    good, bad = records
    assert good.id in answer.text
    assert good.calls == tuple(case.client.calls)
    assert (good.api, good.finish_reasons) == ("chat.completions", ("stop",))
    assert good.began_ns <= good.ended_ns
    assert (bad.api, bad.calls) == ("responses", ())
    assert "down" in (bad.error or "")


def test_a_call_that_could_not_be_recorded_is_told_once_and_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def listen(request: Any) -> None:
        raise OSError(28, "No space left on device")

    recorder, request = Recorder(), cast("Any", None)
    for _ in range(2):
        recorder.put(listen, request)
    recorder.close()
    (told,) = caplog.records
    assert "failed to record a call: No space left on device" in told.message
    assert recorder.failed == 2
