"""Log-probabilities of another server that are not written as OpenAI's: they never cost a reply,
and what of them can be read is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .test_reply_forms import BODIES, DONE, Case, chunk, whole

GOOD = {"token": "a", "logprob": -0.5}
BAD: dict[str, Any] = {
    "null": {"content": [{"token": "a", "logprob": None}]},
    "without": {"content": [{"token": "a", "bytes": [97]}]},
    "list": [GOOD],
    "no entry": {"content": ["a"]},
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests ask for them."""
    include = {"include": ["message.output_text.logprobs"]}
    monkeypatch.setitem(BODIES, "/responses", BODIES["/responses"] | include)
    chat = BODIES["/chat/completions"] | {"logprobs": True}
    monkeypatch.setitem(BODIES, "/chat/completions", chat)


def case(tmp_path: Path, logprobs: Any, stream: bool) -> Case:
    told: dict[str, Any] = {"logprobs": logprobs, "token_ids": [5]}
    streamed = chunk({"content": "a"}, **told) + chunk({}, "stop") + DONE
    return Case(tmp_path, streamed if stream else whole({"content": "a"}, **told))


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("stream", [False, True])
async def test_those_that_nobody_can_read_leave_a_reply_without_tokens(
    tmp_path: Path, bad: str, stream: bool
) -> None:
    sent = case(tmp_path, BAD[bad], stream)
    answer = await sent.ask(stream=stream)
    assert answer.status_code == 200
    assert "error" not in answer.text
    (line,) = sent.lines
    assert (line["reply"]["content"], line["finish_reason"]) == ("a", "stop")
    assert line["token_ids"] == line["logprobs"] == []


@pytest.mark.parametrize("told", ["with the call", "at the end"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_has_those_of_a_call_too(
    tmp_path: Path, asked: None, stream: bool, told: str
) -> None:
    one, other = (GOOD | {"token": token, "bytes": [], "top_logprobs": []} for token in "ab")
    later: dict[str, Any] = {"logprobs": {"content": [other]}}
    none: dict[str, Any] = {}
    at: dict[str, Any] = {
        "function": {"name": "look", "arguments": '{"city": "X"}'},
        "id": "c0",
        "index": 0,
    }
    chunks = [
        chunk({"content": "a"}, logprobs={"content": [one]}),
        chunk({"tool_calls": [at]}, **(later if told == "with the call" else none)),
        chunk({}, "tool_calls", **(later if told == "at the end" else none)),
        DONE,
    ]
    message = {"content": "a", "tool_calls": [at]}
    completion = whole(message, "tool_calls", logprobs={"content": [one, other]})
    sent = Case(tmp_path, b"".join(chunks) if stream else completion)
    answer = await sent.ask("/responses", stream=stream)
    lines = [json.loads(s[6:]) for s in answer.text.splitlines() if s.startswith("data: {")]
    final = lines[-1]["response"] if stream else answer.json()
    assert [item["type"] for item in final["output"]] == ["message", "function_call"]
    assert final["output"][0]["content"][0]["logprobs"] == [one, other]


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_tell_what_can_be_read(tmp_path: Path, asked: None, stream: bool) -> None:
    top = [{"token": "b", "logprob": -1.0}]
    entries = [GOOD | {"top_logprobs": top}, {"token": "x"}]
    sent = case(tmp_path, {"content": entries}, stream)
    answer = await sent.ask("/responses", stream=stream)
    assert answer.status_code == 200
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    final = json.loads(lines[-1])["response"] if stream else answer.json()
    (part,) = final["output"][0]["content"]
    told = GOOD | {"bytes": [], "top_logprobs": [top[0] | {"bytes": []}]}
    assert part["logprobs"] == [told]
    assert sent.lines[0]["token_ids"] == []
