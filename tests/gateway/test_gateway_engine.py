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

from .conftest import CALCULATOR, Open, events, scripted_chat

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
    assert row.n_trained == sum(len(c.sampled.token_ids) for c in chat.calls)


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


def test_the_tokens_of_a_prompt_are_scored_as_when_they_are_sampled(
    tiny: Any, live: Callable[..., Gateway]
) -> None:
    """As lm-eval asks for multiple choice: `echo` with `logprobs`."""
    policy = tiny("qwen2")
    driver = EngineDriver(tiny_engine(policy, slots=2), schedule="free")
    client = ServedPolicy(driver, policy.codec, SeedTree(1), policy=policy)
    session = live().open("r", "a", client)
    headers = {"authorization": f"Bearer {session.api_key}"}

    def ask(path: str = "/completions", **more: Any) -> Any:
        body = {"model": "m", "max_tokens": 1, "temperature": 0, "seed": 1234, **more}
        answer = httpx2.post(session.base_url + path, json=body, headers=headers, timeout=120)
        assert answer.status_code == 200, answer.text
        return answer.json()

    ids = [10, 11, 12, 13]
    drawn = ask(prompt=[ids], max_tokens=6, logprobs=1, return_token_ids=True)["choices"][0]
    whole = [*ids, *drawn["token_ids"]]
    told = ask(prompt=[whole], echo=True, logprobs=1)["choices"][0]
    scored = told["logprobs"]
    assert scored["token_logprobs"][0] is None
    assert scored["top_logprobs"][0] is None
    assert len(scored["tokens"]) == len(whole) + 1
    values = scored["token_logprobs"][len(ids) : len(whole)]
    assert values == pytest.approx(drawn["logprobs"]["token_logprobs"], abs=1e-4)
    for value, top in zip(values, scored["top_logprobs"][len(ids) : len(whole)], strict=True):
        assert max(top.values()) == pytest.approx(value), "the greedy choice is the likeliest"
    assert told["text"].startswith(policy.codec.decode(whole))
    text = ask(prompt="1 + 1", echo=True, logprobs=0)["choices"][0]
    assert "".join(text["logprobs"]["tokens"]).startswith("1 + 1")
    vllm = ask(prompt=[whole], prompt_logprobs=0)["choices"][0]["prompt_logprobs"]
    assert vllm[0] is None
    assert [*vllm[-1]] == [str(whole[-1])]
    assert vllm[-1][str(whole[-1])]["logprob"] == pytest.approx(values[-1], abs=1e-4)
    hi = [{"role": "user", "content": "hi"}]
    chat = ask("/chat/completions", messages=hi, prompt_logprobs=2, return_token_ids=True)
    assert len(chat["prompt_logprobs"]) == len(chat["prompt_token_ids"])
