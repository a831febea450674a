"""Chat completions: what is sent, what is refused, and that the record says the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tutelage.errors import ConfigError, ContextOverflowError, EngineError
from tutelage.types import Call, Constraint, Sampled, Sampling, StopReason, ToolCall

from .conftest import CALCULATOR, Open, events


async def test_a_completion_is_the_call_on_record(attempt_session: Open) -> None:
    case = attempt_session("It is 2.")
    answer = (await case.chat()).json()
    (call,) = case.client.calls
    assert case.attempt_session.response_id(call.id) == answer["id"]
    choice = answer["choices"][0]
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "m"
    assert choice["message"] == {"role": "assistant", "content": "It is 2.", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert answer["usage"] == {
        "prompt_tokens": len(call.prompt_ids),
        "completion_tokens": len(call.sampled.token_ids),
        "total_tokens": len(call.prompt_ids) + len(call.sampled.token_ids),
    }


async def test_every_role_and_form_of_content_is_read(attempt_session: Open) -> None:
    case = attempt_session("ok")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    tool = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "d"},
        {"role": "system", "content": parts},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": None, "tool_calls": [tool], "refusal": None},
        {"role": "tool", "content": parts, "tool_call_id": "c1"},
        {"role": "assistant", "content": "", "tool_calls": [tool], "annotations": []},
        {"role": "assistant", "content": "", "function_call": None},
        {"role": "user", "content": "u", "name": "Ann"},
    ]
    assert (await case.chat(messages=messages)).status_code == 200
    got = case.client.calls[0].messages
    assert [m.role for m in got] == [
        "system", "system", "user", "assistant", "tool", "assistant", "assistant", "user"
    ]  # fmt: skip
    assert [m.content for m in got] == ["d", "ab", "", None, "ab", None, "", "u"]
    assert got[3].tool_calls == (ToolCall("c1", "f", "{}"),)
    assert got[4].tool_call_id == "c1"
    assert got[7].name == "Ann"


class Asked:
    """Keeps what it was asked."""

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []

    async def chat(self, messages: Any, **given: Any) -> Call:
        from tutelage.types import Message

        self.given.append(given)
        n = len(self.given)
        sampled = Sampled((5, 6), (-0.5, -1.0), (-0.25, -2.0), StopReason.STOP, 3)
        reply = Message("assistant", f"reply {n}")
        return Call(f"call_{n}", "main", n, (), (1, 2, 3), sampled, reply, given["sampling"])


async def test_what_the_request_asks_for_reaches_the_client(attempt_session: Open) -> None:
    client = Asked()
    case = attempt_session(client, sampling=Sampling(temperature=0.7, max_tokens=99))
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    named = {"type": "function", "function": {"name": "calculator"}}
    tools = {"tools": [CALCULATOR]}
    for body in (
        {},
        {"temperature": 0, "top_p": 0.5, "max_tokens": 7, "stop": "x", "seed": 11, "top_k": -1},
        {"max_completion_tokens": 8, "max_tokens": 7, "stop": ["x", "y"]},
        {"response_format": wanted},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "text"}, "tool_choice": "none"},
        {**tools, "tool_choice": "required"},
        {**tools, "tool_choice": named, "parallel_tool_calls": False},
        {**tools, "tool_choice": "auto"},
        {**tools, "tool_choice": "none"},
        {**tools, "parallel_tool_calls": False},
    ):
        answer = await case.chat(**body)
        assert answer.status_code == 200, answer.text
    sampling = [g["sampling"] for g in client.given]
    assert sampling[0] == Sampling(temperature=0.7, max_tokens=99)
    assert sampling[1] == Sampling(temperature=0, top_p=0.5, max_tokens=7, stop=("x",))
    assert sampling[2].max_tokens == 8
    assert sampling[2].stop == ("x", "y")
    assert [g.get("seed") for g in client.given[:2]] == [None, 11]
    assert [g.get("constraint") for g in client.given[3:]] == [
        Constraint(json_schema=schema),
        Constraint(json_schema={"type": "object"}),
        Constraint("none"),
        Constraint("required"),
        Constraint("calculator", parallel_tool_calls=False),
        None,
        Constraint("none"),
        Constraint(parallel_tool_calls=False),
    ]


async def test_several_choices_are_several_calls(attempt_session: Open) -> None:
    client = Asked()
    case = attempt_session(client)
    answer = (await case.chat(n=3, seed=5)).json()
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    said = {c["message"]["content"] for c in answer["choices"]}
    assert case.attempt_session.response_id("call_2") == f"{answer['id']}-1"
    assert said == {"reply 1", "reply 2", "reply 3"}
    assert [g["seed"] for g in client.given] == [5, 6, 7]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 6


async def test_logprobs_are_those_on_record(attempt_session: Open) -> None:
    case = attempt_session("Añ!")
    answer = (await case.chat(logprobs=True, return_token_ids=True)).json()
    call = case.client.calls[0]
    choice = answer["choices"][0]
    entries = choice["logprobs"]["content"]
    assert [e["logprob"] for e in entries] == list(call.sampled.raw_logprobs)
    assert entries[0] == {"token": "A", "logprob": 0.0, "bytes": [65], "top_logprobs": []}
    assert choice["token_ids"] == list(call.sampled.token_ids)
    assert answer["prompt_token_ids"] == list(call.prompt_ids)
    plain = (await case.chat(logprobs=True)).json()["choices"][0]
    # Without token ids the token that ends the turn is not shown: it has no text.
    assert len(plain["logprobs"]["content"]) == len(call.sampled.token_ids) - 1
    assert "token_ids" not in plain


async def test_logprobs_that_are_not_known_are_refused(attempt_session: Open) -> None:
    answer = await attempt_session(Asked()).chat(logprobs=True)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "logprobs"


async def test_a_stop_string_is_not_part_of_the_content(attempt_session: Open) -> None:
    case = attempt_session("one two END three")
    for stream in (False, True):
        answer = await case.chat(stop=["END"], stream=stream)
        if stream:
            chunks = [json.loads(e) for e in events(answer.text)[:-1]]
            said = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)
        else:
            said = answer.json()["choices"][0]["message"]["content"]
        assert said == "one two"


async def test_a_client_without_tokens_streams_when_it_is_done(attempt_session: Open) -> None:
    answer = await attempt_session(Asked()).chat(stream=True)
    chunks = [json.loads(e) for e in events(answer.text)[:-1]]
    assert [c["choices"][0]["delta"].get("content") for c in chunks] == ["", "reply 1", None]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"tools": [CALCULATOR, CALCULATOR]}, "tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs"),
        ({"guided_regex": "a+"}, "guided_regex"),
    ],
    ids=lambda v: json.dumps(v)[:60] if isinstance(v, dict) else "",
)
async def test_what_cannot_be_honoured_is_a_400_that_names_it(
    attempt_session: Open, body: dict[str, Any], param: str
) -> None:
    case = attempt_session()
    answer = await case.chat(**body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert not case.client.calls


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'{"a":NaN}'])
async def test_what_is_no_json_object_is_a_400(attempt_session: Open, body: bytes) -> None:
    case = attempt_session()
    answer = await case.http.post(case.attempt_session.base_url + "/chat/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json"


class Failing:
    """Raises."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def chat(self, *_: Any, **__: Any) -> Call:
        raise self.error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ContextOverflowError("too long"), 400, "context_length_exceeded"),
        (EngineError("lost"), 500, "engine_error"),
        (ConfigError("the schema cannot be compiled"), 400, None),
        (ZeroDivisionError("inner secret"), 500, "internal_error"),
    ],
)
async def test_failures_below_are_openai_errors(
    attempt_session: Open, error: Exception, status: int, code: str | None, stream: bool
) -> None:
    case = attempt_session(Failing(error))
    answer = await case.chat(stream=stream)
    told = answer.json()["error"]
    assert (answer.status_code, told["code"]) == (status, code)
    assert "inner secret" not in answer.text


async def test_the_token_budget_cuts_and_then_refuses_for_good(attempt_session: Open) -> None:
    case = attempt_session("abcdefgh", token_budget=12)
    assert (await case.chat()).json()["usage"]["completion_tokens"] == 9
    second = (await case.chat()).json()
    assert second["choices"][0]["finish_reason"] == "length"
    assert second["usage"]["completion_tokens"] == 3
    assert case.attempt_session.budget_left == 0
    refused = await case.chat()
    assert refused.status_code == 402
    assert refused.json()["error"]["code"] == "token_budget_exhausted"
    assert refused.headers["x-should-retry"] == "false"
    assert len(case.client.calls) == 2
