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
from tutelage.testing import ScriptedEngine, tiny_engine
from tutelage.types import Message

from .conftest import ASK, CALCULATOR, FLAT_CALCULATOR, Open, events

CALL = '<tool_call>{"name": "calculator", "arguments": {"expression":"1+1"}}</tool_call>'


@pytest.fixture
def codec(tiny: Any) -> Codec:
    return tiny("qwen2").codec


def session(codec: Codec, *script: str) -> ChatSession:
    return ChatSession(ScriptedEngine(codec, script), codec, seeds=SeedTree(0), name="att")


@pytest.mark.parametrize("stream", [False, True])
async def test_turns_over_chat_completions_make_one_row(
    attempt_session: Open, codec: Codec, stream: bool
) -> None:
    """The agent re-dumps arguments and rewrites content: history is known by the ids of calls."""
    chat = session(codec, f"Hm. {CALL}", "It is 2.")
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


async def test_turns_over_responses_make_one_row(attempt_session: Open, codec: Codec) -> None:
    chat = session(codec, CALL, "It is 2.", "Yes.")
    case = attempt_session(chat)
    first = (await case.respond(tools=[FLAT_CALCULATOR])).json()
    call_id = first["output"][0]["call_id"]
    output = {"type": "function_call_output", "call_id": call_id, "output": "2"}
    second = await case.respond(
        input=[output], previous_response_id=first["id"], tools=[FLAT_CALCULATOR]
    )
    third = await case.respond(
        input="Sure?", previous_response_id=second.json()["id"], tools=[FLAT_CALCULATOR]
    )
    assert third.json()["output"][0]["content"][0]["text"] == "Yes."
    assert len(build_rows(chat.calls)) == 1


async def test_a_reply_that_is_half_a_call_is_content(attempt_session: Open, codec: Codec) -> None:
    chat = session(codec, '<tool_call>{"name": ', '<tool_call>{"name": ')
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
    case = attempt_session(session(codec, *[said] * 3))
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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("said", "stop", "left"),
    [
        (" (", " ", ""), ("\n\nSo", "\n\n", ""), (" (x", " (", ""), ("It is \n", "\n", "It is"),
        (" It is", "s", "It i"),
    ],
)  # fmt: skip
async def test_a_stop_string_in_white_space_that_is_stripped(
    attempt_session: Open, codec: Codec, said: str, stop: str, left: str, stream: bool
) -> None:
    """The engine looks for it in what is sampled, clients see that without white space around."""
    case = attempt_session(session(codec, *[said] * 3))
    made = await case.chat(stop=stop, stream=stream)
    told = (
        [json.loads(e)["choices"][0] for e in events(made.text)[:-1]]
        if stream
        else made.json()["choices"]
    )
    text = "".join((c.get("message") or c.get("delta")).get("content") or "" for c in told)
    assert (text, told[-1]["stop_reason"], told[-1]["finish_reason"]) == (left, stop, "stop")
    message = await case.post(
        "/messages",
        {
            "model": "m",
            "messages": ASK,
            "max_tokens": 9,
            "stop_sequences": [stop],
            "stream": stream,
        },
    )
    assert f'"stop_sequence":{json.dumps(stop)}' in message.text
    assert ('"text":' in message.text) == (left != "")
    item = (await case.respond(stop=stop)).json()["output"][0]
    assert item["content"][0]["text"] == left


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
        "max_tokens": 40, "logprobs": True, "n": 2, "return_token_ids": True,
    }  # fmt: skip
    url = attempt_session.base_url + "/chat/completions"
    plain = httpx2.post(url, json=body, headers=headers, timeout=120).json()
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


@pytest.mark.parametrize("arguments", ["[" * 100_000, "[" * 900 + "]" * 900, "1" * 5000])
@pytest.mark.parametrize("responses", [False, True])
async def test_arguments_that_cannot_be_rendered_are_a_400_that_names_them(
    attempt_session: Open, codec: Codec, arguments: str, responses: bool
) -> None:
    case = attempt_session(session(codec, "fine"))
    ask = {"role": "user", "content": "hi"}
    if responses:
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}
        output = {"type": "function_call_output", "call_id": "c", "output": "2"}
        answer = await case.respond(input=[ask, call, output], tools=[FLAT_CALCULATOR])
    else:
        function = {"name": "f", "arguments": arguments}
        calls = [{"id": "c", "type": "function", "function": function}]
        turn = {"role": "assistant", "content": None, "tool_calls": calls}
        result = {"role": "tool", "tool_call_id": "c", "content": "2"}
        answer = await case.chat(messages=[ask, turn, result])
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"].endswith("arguments")
    assert "cannot be parsed: " in error["message"]


@pytest.mark.parametrize("depth", [150, 900])
async def test_a_body_that_is_nested_too_deeply_is_a_400(
    attempt_session: Open, codec: Codec, depth: int
) -> None:
    """A schema, for one, is written into the prompt, and whoever writes it recurses."""
    case = attempt_session(session(codec, "fine"))
    deep = "[" * depth + "]" * depth
    schema = f'{{"type": "object", "properties": {{"x": {{"enum": {deep}}}}}}}'
    tool = f'{{"type": "function", "function": {{"name": "f", "parameters": {schema}}}}}'
    body = f'{{"model": "m", "messages": [{{"role": "user", "content": "a"}}], "tools": [{tool}]}}'
    answer = await case.http.post(
        case.attempt_session.base_url + "/chat/completions", content=body.encode()
    )
    assert answer.status_code == 400, answer.text
    assert "nested more than" in answer.json()["error"]["message"]


@pytest.mark.parametrize("api", ["chat", "responses", "completions"])
async def test_the_most_probable_tokens_beside_each(
    attempt_session: Open, tiny: Any, api: str
) -> None:
    policy = tiny("qwen2")
    driver = EngineDriver(tiny_engine(policy))
    chat = ChatSession(driver, policy.codec, seeds=SeedTree(0), name="att")
    case = attempt_session(chat)
    if api == "chat":
        answer = await case.chat(logprobs=True, top_logprobs=3, max_tokens=5)
        entries = answer.json()["choices"][0]["logprobs"]["content"]
    elif api == "responses":
        include = ["message.output_text.logprobs"]
        answer = await case.respond(include=include, top_logprobs=3, max_output_tokens=5)
        entries = answer.json()["output"][0]["content"][0]["logprobs"]
    else:
        body = {"model": "m", "prompt": "x", "logprobs": 3, "max_tokens": 5}
        found = (await case.post("/completions", body)).json()["choices"][0]["logprobs"]
        assert all(1 <= len(top) <= 3 for top in found["top_logprobs"])
        return
    assert entries
    for entry in entries:
        values = [each["logprob"] for each in entry["top_logprobs"]]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)


STRANGE: dict[str, Any] = {
    "provider_specific_fields": {"refusal": None, "x": [1]},
    "parsed": None,
    "id": "msg_1",
    "thinking_blocks": [],
    "annotations": [],
    "audio": None,
    "reasoning_content": "hm",
    "function_call": None,
    "prefix": False,
}
"""What LiteLLM's and the official clients' own replies have, appended as they are."""


@pytest.mark.parametrize("name", STRANGE)
async def test_what_a_client_adds_to_messages_changes_no_token(
    attempt_session: Open, codec: Codec, name: str
) -> None:
    prompts: list[tuple[int, ...]] = []
    for extra in ({}, {name: STRANGE[name]}):
        chat = session(codec, f"Hm. {CALL}", "It is 2.")
        case = attempt_session(chat)
        first = await case.chat(tools=[CALCULATOR])
        turn = first.json()["choices"][0]["message"] | extra
        result = {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": "2"}
        ask = {"role": "user", "content": "What is 1 + 1?"} | extra
        answer = await case.chat(messages=[ask, turn, result | extra], tools=[CALCULATOR])
        assert answer.status_code == 200, answer.text
        prompts.append(chat.calls[1].prompt_ids)
        kept = chat.calls[1].messages[1].extra
        assert all(kept[k] == v for k, v in extra.items() if v is not None and k != "prefix")
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize("name", ["prefix", "partial"])
async def test_a_turn_to_be_continued_is_refused(attempt_session: Open, name: str) -> None:
    turn = {"role": "assistant", "content": "It is", name: True}
    answer = await attempt_session("x").chat(messages=[*ASK, turn])
    assert answer.status_code == 400
    assert f"`messages[1].{name}` = True" in answer.json()["error"]["message"]


@pytest.mark.parametrize("truncation", ["auto", "disabled"])
async def test_a_conversation_that_is_too_long_is_refused(
    attempt_session: Open, codec: Codec, truncation: str
) -> None:
    turns = [{"role": r, "content": "one two three " * 9} for r in ("user", "assistant") * 3]
    ask = [{"role": "system", "content": "Be brief."}, *turns, {"role": "user", "content": "Now?"}]
    room = len(codec.render([Message(m["role"], m["content"]) for m in (ask[0], *ask[5:])]))
    engine = ScriptedEngine(codec, ("Yes.",), max_length=room + 5)
    chat = ChatSession(engine, codec, seeds=SeedTree(0), name="att")
    answer = await attempt_session(chat).respond(input=ask, truncation=truncation)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "This model's maximum context length is" in error["message"]
    assert "prompt is too long" in error["message"]  # Anthropic's words


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
