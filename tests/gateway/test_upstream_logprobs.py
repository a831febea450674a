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
