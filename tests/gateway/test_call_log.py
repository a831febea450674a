"""The record of `serve --record` behind another server: whole replies, and those that broke off."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.testing.upstream import remote_over

from tutelage.engine.script import ScriptedReply
from tutelage.gateway import Gateway
from tutelage.gateway.call_log import CallLog
from tutelage.tracing import SpanRecord
from tutelage.types import JSON, UNBOUNDED, Sampling

from .conftest import Open

ASK: JSON = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "top_p": 0.5}
DONE = b"data: [DONE]\n\n"


def event(delta: JSON, end: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": end}
    return b"data: " + json.dumps({"model": "far-v7", "choices": [choice]}).encode() + b"\n\n"


CALL = {"index": 0, "id": "c0", "function": {"name": "look", "arguments": '{"ci'}}
BEGUN = [
    event({"reasoning": "Hm."}),
    event({"content": "It "}),
    event({"content": "is"}),
    event({"tool_calls": [CALL]}),
]


class Chunks(httpx2.AsyncByteStream):
    """A reply in pieces; one without an end goes on for ever where it is to `hang`."""

    def __init__(self, chunks: Sequence[bytes], hang: bool) -> None:
        self._chunks, self._hang = chunks, hang

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk
        if self._hang:
            await asyncio.Event().wait()


def recorded(path: Path, chunks: Sequence[bytes], body: JSON, *, leave: bytes = b"") -> list[Any]:
    """The lines of one request; its client goes once it has read `leave`."""
    headers = {"content-type": "text/event-stream"}

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers=headers, stream=Chunks(chunks, bool(leave)))

    transport = httpx2.MockTransport(answer)
    remote = remote_over(transport, "http://up/v1", "k", "far")
    log = CallLog(path)
    with Gateway() as gateway:
        session = gateway.open("r", "a", remote, on_call=log)
        url, key = f"{session.base_url}/chat/completions", f"Bearer {session.api_key}"
        with httpx2.stream("POST", url, json=body, headers={"authorization": key}) as response:
            seen = b""
            for part in response.iter_bytes():
                seen += part
                if leave and leave in seen:
                    break
        while session.in_flight:  # until it is seen that the client has left
            time.sleep(0.01)
        session.close()
    log.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("leaves", [False, True])
def test_what_had_come_of_a_reply_without_an_end_is_on_record(tmp_path: Path, leaves: bool) -> None:
    body, leave = ASK | {"stream": True}, b"is" if leaves else b""
    (line,) = recorded(tmp_path / "calls.jsonl", BEGUN, body, leave=leave)
    assert line["reply"] == {"role": "assistant", "content": "It is", "reasoning": "Hm."}
    assert line["messages"] == ASK["messages"]
    if leaves:
        assert (line["finish_reason"], line["error"]) == ("cancelled", "the client disconnected")
    else:
        assert line["finish_reason"] == "error"
        assert "ended before the reply was complete" in line["error"]
        assert "Error(" not in line["error"]
    assert "token_ids" not in line
    assert line["sampling"]["top_p"] == 0.5
    assert line["sampling"]["max_tokens"] is None


async def test_a_line_has_what_log_probabilities_depend_on(
    tmp_path: Path, attempt_session: Open
) -> None:
    log = CallLog(tmp_path / "calls.jsonl")
    called = ScriptedReply(tool_calls=(("f", "{}"),))
    unbounded = Sampling(max_tokens=UNBOUNDED)
    case = attempt_session("a", "b", called, "c", "d", "e", on_call=log, sampling=unbounded)
    function: JSON = {"name": "f", "strict": True, "parameters": {"type": "object"}}
    forced: JSON = {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    bodies: list[tuple[str, JSON]] = [
        ("/chat/completions", ASK | {"seed": 5, "n": 2, "max_tokens": 4}),
        ("/chat/completions", ASK | forced),
        ("/completions", {"model": "m", "prompt": ["1 + 1", [1, 2]]}),
        ("/chat/completions", ASK | {"max_tokens": 10**9}),
    ]
    for path, body in bodies:
        answer = await case.post(path, body)
        assert answer.status_code == 200, answer.text
    await case.attempt_session.aclose()
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    one, two, tool, text, ids, long = lines
    for line in lines:  # of its own choice, not of all
        ids_of = len(line["prompt_ids"]), len(line["token_ids"])
        assert line["usage"] == dict(zip(("input_tokens", "output_tokens"), ids_of, strict=True))
    assert (one["sampling"]["seed"], two["sampling"]["seed"]) == (5, 6)
    assert (one["sampling"]["max_tokens"], one["constraint"]) == (4, None)
    assert tool["constraint"] == {
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "json_schema": None,
        "choices": [],
    }
    assert tool["tools"][0]["function"]["strict"] is True
    assert (tool["sampling"]["seed"], tool["sampling"]["max_tokens"]) == (None, None)
    assert long["sampling"]["max_tokens"] == 10**9
    assert (text["prompt"], ids["prompt"]) == ("1 + 1", [1, 2])


def test_a_record_that_ends_within_a_line_goes_on_in_a_new_one(tmp_path: Path) -> None:
    path, span = tmp_path / "calls.jsonl", SpanRecord("0" * 32, "0" * 16, None, "plan", 1, 2)
    for before, lines in (("", []), ('{"a": 1}\n', ['{"a": 1}']), ('{"half', ['{"half'])):
        path.write_text(before)
        log = CallLog(path)
        log.spans("run", [span])
        log.close()
        assert path.read_text().splitlines()[:-1] == lines
        assert json.loads(path.read_text().splitlines()[-1])["span"]["name"] == "plan"


def test_what_found_no_room_takes_no_later_line_with_it(tmp_path: Path) -> None:
    """A disk that is full takes a part of a line; what comes once there is room is whole."""
    path = tmp_path / "calls.jsonl"
    names = "plan", "x" * 9000, "act"
    first, long, last = (SpanRecord("0" * 32, "0" * 16, None, name, 1, 2) for name in names)
    log = CallLog(path)
    log.spans("run", [first])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            log.spans("run", [long])
        with pytest.raises(OSError, match="too large"):
            log.spans("run", [long])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.spans("run", [last])
    log.close()
    whole, part, after = path.read_text().splitlines()
    assert [json.loads(line)["span"]["name"] for line in (whole, after)] == ["plan", "act"]
    assert len(part) == 100
