"""From HTTP to the engine and back: what agents see, what is recorded, what becomes a row."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tutelage.engine.chat import ChatSession
from tutelage.engine.driver import EngineDriver
from tutelage.gateway import Gateway
from tutelage.gateway.serving import ServedPolicy
from tutelage.policy.codec import Codec
from tutelage.rollouts.rows import build_rows
from tutelage.seeds import SeedTree
from tutelage.testing import tiny_engine

from .conftest import ASK, CALCULATOR, FLAT_CALCULATOR, Open, events, scripted_chat

CALL = '<tool_call>{"name": "calculator", "arguments": {"expression":"1+1"}}</tool_call>'


@pytest.fixture
def codec(tiny: Any) -> Codec:
    return tiny("qwen2").codec


@pytest.mark.parametrize("stream", [False, True])
async def test_turns_over_chat_completions_make_one_row(
    attempt_session: Open, codec: Codec, stream: bool
) -> None:
    """The agent re-dumps arguments and rewrites content: history is known by the ids of calls."""
    chat = scripted_chat(codec, f"Hm. {CALL}", "It is 2.")
    case = attempt_session(chat)
    messages: list[Any] = [{"role": "user", "content": "What is 1 + 1?"}]
    answer = await case.chat(messages=messages, tools=[CALCULATOR], stream=stream)
    if stream:
        chunks = [json.loads(e)["choices"][0]["delta"] for e in events(answer.text)[:-1]]
        call_id = next(c["tool_calls"][0]["id"] for c in chunks if "tool_calls" in c)
    else:
        call_id = answer.json()["choices"][0]["message"]["tool_calls"][0]["id"]
    function = {"name": "calculator", "arguments": '{ "expression" : "1+1" }'}
    turn = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }
    result = {"role": "tool", "tool_call_id": call_id, "content": "2"}
    await case.chat(messages=[*messages, turn, result], tools=[CALCULATOR], stream=stream)
    assert chat.calls[1].reply.content == "It is 2."
    (row,) = build_rows(chat.calls)
    assert row.trained == sum(len(c.sampled.token_ids) for c in chat.calls)


async def test_a_reply_that_is_half_a_call_is_content(attempt_session: Open, codec: Codec) -> None:
    chat = scripted_chat(codec, '<tool_call>{"name": ', '<tool_call>{"name": ')
    case = attempt_session(chat)
    plain = (await case.chat(tools=[CALCULATOR])).json()["choices"][0]
    assert plain["message"]["content"] == '<tool_call>{"name":'
    assert plain["finish_reason"] == "stop"
    assert chat.calls[0].parse_errors
    streamed = await case.chat(tools=[CALCULATOR], stream=True)
    deltas = [json.loads(e)["choices"][0]["delta"] for e in events(streamed.text)[:-1]]
    assert "".join(d.get("content") or "" for d in deltas) == '<tool_call>{"name":'


@pytest.mark.parametrize("stream", [False, True])
async def test_a_limit_after_a_whole_call_is_told(
    attempt_session: Open, codec: Codec, stream: bool
) -> None:
    said = f'{CALL}\n<tool_call>{{"name": "calculator", "arg'
    case = attempt_session(scripted_chat(codec, *[said] * 3))
    most = len(codec.encode(said)) - 1
    asked: dict[str, Any] = {"max_tokens": most, "stream": stream, "tools": [CALCULATOR]}
    assert '"finish_reason":"length"' in (await case.chat(**asked)).text
    tool = {"name": "calculator", "input_schema": CALCULATOR["function"]["parameters"]}
    message = {"model": "m", "messages": ASK, **asked, "tools": [tool]}
    assert '"stop_reason":"max_tokens"' in (await case.post("/messages", message)).text
    answer = await case.respond(max_output_tokens=most, stream=stream, tools=[FLAT_CALCULATOR])
    if stream:
        told = [json.loads(e) for e in events(answer.text)[:-1]]
        done = [e["item"] for e in told if e["type"] == "response.output_item.done"]
        final = told[-1]["response"]
        assert done == final["output"]
    else:
        final = answer.json()
    assert (final["status"], final["incomplete_details"]["reason"]) == (
        "incomplete",
        "max_output_tokens",
    )
    kinds = [(item["type"], item["status"]) for item in final["output"]]
    assert kinds == [("message", "incomplete"), ("function_call", "completed")]


@pytest.mark.parametrize("served", [False, True])
def test_a_native_engine_streams_what_it_records(
    tiny: Any, live: Callable[..., Gateway], served: bool
) -> None:
    policy = tiny("qwen2")
    gateway = live()
    driver = EngineDriver(tiny_engine(policy, slots=4), schedule="free")
    client: Any = (
        ServedPolicy(driver, policy.codec, SeedTree(1))
        if served
        else ChatSession(driver, policy.codec, seeds=SeedTree(1), name="att")
    )
    records: list[Any] = []
    attempt_session = gateway.open("r", "a", client, on_call=records.append)
    headers = {"authorization": f"Bearer {attempt_session.api_key}"}
    body = {
        "model": "m", "messages": [{"role": "user", "content": "What is 1 + 1?"}], "seed": 7,
        "max_tokens": 40, "n": 2, "return_token_ids": True,
    }  # fmt: skip
    url = attempt_session.base_url + "/chat/completions"
    asked = {**body, "logprobs": True}
    plain = httpx2.post(url, json=asked, headers=headers, timeout=120).json()
    streamed = httpx2.post(url, json={**body, "stream": True}, headers=headers, timeout=120).text
    attempt_session.close()
    said = {0: "", 1: ""}
    pieces = 0
    for data in events(streamed)[:-1]:
        choice = json.loads(data)["choices"][0]
        piece = choice["delta"].get("content") or ""
        pieces += bool(piece)
        said[choice["index"]] += piece
    for i, choice in enumerate(plain["choices"]):
        call = records[0].calls[i]
        assert choice["token_ids"] == list(call.sampled.token_ids)
        entries = choice["logprobs"]["content"]
        assert [e["logprob"] for e in entries] == pytest.approx(call.sampled.raw_logprobs)
        # Equal seeds give equal samples, streamed or not.
        assert records[1].calls[i].sampled.token_ids == call.sampled.token_ids
        assert said[i] == (choice["message"]["content"] or "")
    assert plain["choices"][0]["token_ids"] != plain["choices"][1]["token_ids"]
    assert pieces > 4


async def test_arguments_that_cannot_be_rendered_are_a_400_that_names_them(
    attempt_session: Open, codec: Codec
) -> None:
    function = {"name": "f", "arguments": "[" * 900 + "]" * 900}
    calls = [{"id": "c", "type": "function", "function": function}]
    turn = {"role": "assistant", "content": None, "tool_calls": calls}
    result = {"role": "tool", "tool_call_id": "c", "content": "2"}
    answer = await attempt_session(scripted_chat(codec, "fine")).chat(messages=[*ASK, turn, result])
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"].endswith("arguments")
    assert "cannot be parsed: " in error["message"]


async def test_the_most_probable_tokens_beside_each(attempt_session: Open, tiny: Any) -> None:
    policy = tiny("qwen2")
    driver = EngineDriver(tiny_engine(policy))
    case = attempt_session(ChatSession(driver, policy.codec, seeds=SeedTree(0), name="att"))
    include = ["message.output_text.logprobs"]
    answer = await case.respond(include=include, top_logprobs=3, max_output_tokens=5)
    entries = answer.json()["output"][0]["content"][0]["logprobs"]
    assert entries
    for entry in entries:
        values = [each["logprob"] for each in entry["top_logprobs"]]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("name", ["prefix", "partial"])
async def test_a_turn_to_be_continued_is_refused(attempt_session: Open, name: str) -> None:
    turn = {"role": "assistant", "content": "It is", name: True}
    answer = await attempt_session("x").chat(messages=[*ASK, turn])
    assert answer.status_code == 400
    assert f"`messages[1].{name}` = True" in answer.json()["error"]["message"]


def test_a_long_text_is_encoded_without_a_warning(
    codec: Codec, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a context that a gateway bounds itself."""
    before, codec.tokenizer.model_max_length = codec.tokenizer.model_max_length, 4
    try:
        assert len(codec.encode("What is 1 + 1? " * 4)) > 4
    finally:
        codec.tokenizer.model_max_length = before
    assert not caplog.records
