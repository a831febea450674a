"""Streams of other servers that are not like OpenAI's: lines, further events, further choices,
names and details in pieces. What is told and recorded is what the server means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tutelage.engine.server_events import EventReader
from tutelage.gateway.dialects import StoredResponses
from tutelage.gateway.dialects.responses_items import read_items

from .test_gateway_passing_streams import part
from .test_reply_forms import DONE, Case, chunk, whole

TWO = json.dumps({"choices": [{"index": 0, "delta": {"content": "b"}}]}, indent=1)
LINES: dict[str, bytes] = {
    "no last newline": chunk({"content": "ab"}) + chunk({}, "stop").rstrip(b"\n"),
    "several data lines": chunk({"content": "a"})
    + "".join(f"data: {line}\n" for line in TWO.splitlines()).encode() + b"\n"
    + chunk({}, "stop") + DONE,
    "empty and null": chunk({"content": "a"}) + b"data:\n\ndata: null\n\n"
    + chunk({"content": "b"}, "stop") + DONE,
    "pings": b"event: ping\ndata: ping\n\n" + chunk({"content": "ab"})
    + b'event: foo\ndata: {"x": 1}\n\ndata: {"type": "ping"}\n\n' + chunk({}, "stop") + DONE,
    "CR": (chunk({"content": "a"}) + chunk({"content": "b"}, "stop") + DONE).replace(b"\n", b"\r"),
    "one newline": (chunk({"content": "a"}) + chunk({"content": "b"}, "stop") + DONE)
    .replace(b"\n\n", b"\n"),
    "another choice": chunk({"content": "a"}) + chunk({"content": "x"}, index=1)
    + chunk({"content": "b"}, "stop") + chunk({}, "length", index=1) + DONE,
}  # fmt: skip


@pytest.mark.parametrize("lines", LINES)
async def test_a_stream_is_read_as_the_standard_says(tmp_path: Path, lines: str) -> None:
    case = Case(tmp_path, LINES[lines])
    answer = await case.ask(stream=True)
    told = [json.loads(line[6:]) for line in answer.text.splitlines() if line[:7] == "data: {"]
    deltas = [choice["delta"] for each in told for choice in each["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "ab"
    (line,) = case.lines
    assert (line["reply"]["content"], line["finish_reason"]) == ("ab", "stop")
    fields = {"id", "object", "created", "model", "choices"}
    assert all(each.keys() == fields for each in told), "nothing of other events"
    assert line["answered"].keys() == {"model", "finish_reason", "usage"}


def test_a_line_end_may_come_in_two_pieces() -> None:
    reader, pieces = EventReader(), (b"\xef\xbb\xbfdata: 1\r", b"\n\r", b"\ndata: 2\r\n", b"\r\n")
    assert [each for piece in pieces for each in reader.feed(piece)] == [(b"", b"1"), (b"", b"2")]


def named(*pieces: dict[str, Any]) -> bytes:
    return b"".join(map(chunk, pieces)) + chunk({}, "tool_calls") + DONE


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/messages"])
@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param((("c", "ad", ""), (None, "d", '{"x"'), (None, None, ": 1}")), id="parts"),
        pytest.param((("c", "add", '{"x"'), ("c", "add", ": 1"), ("c", "add", "}")), id="again"),
    ],
)
async def test_a_call_has_one_whole_name(tmp_path: Path, path: str, pieces: Any) -> None:
    case = Case(tmp_path, named(*(part(0, *piece) for piece in pieces)))
    answer = await case.ask(path, stream=True)
    (call,) = case.lines[0]["reply"]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"x": 1}'}
    told = [json.loads(line[6:]) for line in answer.text.splitlines() if line[:7] == "data: {"]
    names = [name for each in told for name in _names(each)]
    assert "".join(names) == "add" if path == "/chat/completions" else set(names) == {"add"}


def _names(event: Any) -> list[str]:
    calls = [
        call.get("function", {})
        for choice in event.get("choices", ())
        for call in choice["delta"].get("tool_calls", ())
    ]
    items = [event.get("item", {}), event.get("content_block", {})]
    return [each["name"] for each in (*calls, *items) if each.get("name")]


async def test_details_of_a_thought_are_joined_by_their_index(tmp_path: Path) -> None:
    def detail(kind: str, at: int, **more: str) -> dict[str, Any]:
        return {"reasoning_details": [{"type": f"reasoning.{kind}", "index": at, **more}]}

    pieces = (
        detail("text", 0, text="Hm", format="f"), detail("text", 0, text=", so.", format="f"),
        detail("text", 0, signature="s"), detail("encrypted", 0, data="x"),
        detail("text", 1, text="Yes."),
    )  # fmt: skip
    case = Case(tmp_path, b"".join(map(chunk, pieces)) + chunk({"content": "a"}, "stop") + DONE)
    await case.ask(stream=True)
    assert case.lines[0]["reply"]["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "Hm, so.", "format": "f", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 0, "data": "x"},
        {"type": "reasoning.text", "index": 1, "text": "Yes."},
    ]


@pytest.mark.parametrize("text", ["Hm.", ""])
@pytest.mark.parametrize("stream", [False, True])
async def test_responses_give_details_out_and_take_them_back(
    tmp_path: Path, text: str, stream: bool
) -> None:
    details = [
        {"type": "reasoning.text", "index": 0, "text": text, "signature": "s"},
        {"type": "reasoning.encrypted", "index": 0, "data": "x"},
    ]
    first = {"type": "reasoning.text", "index": 0, "text": text}
    begun: dict[str, Any] = {"reasoning_details": [first]}
    pieces = (begun | ({"reasoning": text} if text else {}),
              {"reasoning_details": [{"type": "reasoning.text", "index": 0, "signature": "s"}]},
              {"reasoning_details": details[1:]}, {"content": "a"})  # fmt: skip
    message = {"reasoning": text, "reasoning_details": details, "content": "a"}
    streamed = b"".join(map(chunk, pieces)) + chunk({}, "stop") + DONE
    case = Case(tmp_path, streamed if stream else whole(message))
    answer = await case.ask("/responses", stream=stream)
    lines = [line[6:] for line in answer.text.splitlines() if line[:7] == "data: {"]
    output = (json.loads(lines[-1])["response"] if stream else answer.json())["output"]
    thought, said = output
    assert thought["reasoning_details"] == details
    assert [part["text"] for part in thought["content"]] == [text] * bool(text)
    if stream:
        done = [each for each in map(json.loads, lines) if each["type"].endswith("item.done")]
        assert [each["item"] for each in done] == [thought, said]
    (turn,) = read_items([thought, said], StoredResponses(), passing=True)
    assert turn.extra["reasoning_details"] == details


async def test_an_event_that_is_no_chunk_names_the_server_once(tmp_path: Path) -> None:
    case = Case(tmp_path, chunk({"content": "a"}) + b'data: {"choices": 1}\n\n')
    answer = await case.ask(stream=True)
    assert "aborted its reply: answered 200 with an invalid chunk" in answer.text
    assert answer.text.count("http://up/v1") == 1
