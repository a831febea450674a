"""Thoughts, text and tool calls of another server as responses and messages stream them: each piece
as it comes, in its order, by the clients' own stream helpers; the whole at the end is the same."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from tutelage.engine.passing import PassingClient
from tutelage.gateway import AttemptSession, Gateway
from tutelage.types import ToolCall

from .conftest import ASK, FLAT_CALCULATOR
from .test_gateway_messages import TOOL, known
from .test_gateway_passing import LOGPROBS, event
from .test_openai_types import parsed

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def part(at: int, id: str | None, name: str | None, said: str, kind: str = "function") -> Any:
    """A piece of a tool call."""
    words = {"name": name, "input" if kind == "custom" else "arguments": said}
    piece = {"index": at, "id": id, kind: {k: v for k, v in words.items() if v is not None}}
    return {"tool_calls": [{k: v for k, v in piece.items() if v is not None}]}


USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 6,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
END = [
    event({}, finish_reason="tool_calls"),
    b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode(),
    b"data: [DONE]",
]
ORDERLY = [
    event({"role": "assistant", "content": ""}),
    event({"reasoning_content": "Hm"}),
    event({"reasoning_content": ", so."}, logprobs={"content": LOGPROBS}),
    event({"content": "It "}, logprobs={"content": LOGPROBS}),
    event({"content": "is."}),
    event(part(0, "c0", "calculator", "")),
    event(part(0, None, None, '{"expression"')),
    event(part(0, None, None, ': "1+1"}')),
    event(part(1, "c1", "calculator", '{"expression": "2"}')),
    *END,
]
MIXED = [
    event({"content": "One."}),
    event({"reasoning": "Hm."}),
    event(part(0, "c0", "calculator", '{"exp')),
    event({"content": "Two."}),
    event(part(1, "c1", "calculator", '{"expression": "2"}')),
    event(part(0, None, None, 'ression": "1"}')),
    event({"reasoning": "So."}),
    *END,
]


@contextmanager
def served(
    chunks: list[bytes], leave: threading.Event | None = None, until: bytes = b"[DONE]"
) -> Generator[tuple[AttemptSession, PassingClient]]:
    """A gateway before a server that sends these chunks; those from the one with `until` on only
    with leave."""

    class Chunks(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for chunk in chunks:
                if leave is not None and until in chunk:
                    await asyncio.to_thread(leave.wait, 30)
                yield chunk + b"\n\n"

    def answer(request: httpx2.Request) -> httpx2.Response:
        assert json.loads(request.content)["stream"] is True
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, stream=Chunks())

    transport = httpx2.MockTransport(answer)
    remote = PassingClient("http://up/v1", "k", "far", transport=transport, passes=True)
    with Gateway() as gateway:
        session = gateway.open("r", "a", remote)
        try:
            yield session, remote
        finally:
            session.close()


def responses(session: AttemptSession) -> Any:
    client: Any = openai.OpenAI(base_url=session.base_url, api_key=session.api_key)
    include = ["message.output_text.logprobs"]
    return client.responses.stream(
        model="m", input="What is 1 + 1?", tools=[FLAT_CALCULATOR], include=include
    )


def messages(session: AttemptSession) -> Any:
    url = session.base_url.removesuffix("/v1")
    client: Any = anthropic.Anthropic(base_url=url, api_key=session.api_key)
    return client.messages.stream(model="m", max_tokens=99, messages=ASK, tools=[TOOL])


def output(events: list[Any]) -> list[Any]:
    """The items of a stream, put together from its pieces alone."""
    items: list[Any] = []
    for each in events:
        if each.type == "response.output_item.added":
            assert each.output_index == len(items)
            items.append({"id": each.item.id, "type": each.item.type, "said": ""})
        elif each.type.endswith(".delta"):
            assert each.item_id == items[each.output_index]["id"]
            items[each.output_index]["said"] += each.delta
        elif each.type == "response.output_item.done":
            assert each.item.id == items[each.output_index]["id"]
    return [(item["id"], item["type"], item["said"]) for item in items]


def said(item: Any) -> str:
    if item.type == "function_call":
        return item.arguments
    if item.type == "custom_tool_call":
        return item.input
    (content,) = item.content
    return content.refusal if content.type == "refusal" else content.text


def told(stream: Any) -> tuple[list[Any], Any]:
    """The events of a stream of responses, by the package's types, and the response."""
    events = [parsed(EVENT, each.model_dump(exclude_unset=True)) for each in raw(stream)]
    assert [each.sequence_number for each in events] == list(range(len(events)))
    final = events[-1].response
    assert [(item.id, item.type, said(item)) for item in final.output] == output(events)
    return events, final


def raw(stream: Any) -> list[Any]:
    """The events as they came: the helper adds words of its own."""
    return list(stream._raw_stream)


@pytest.mark.parametrize("chunks", [ORDERLY, MIXED], ids=["orderly", "mixed"])
def test_items_come_in_their_order_and_are_those_of_the_response(chunks: list[bytes]):
    with served(chunks) as (session, remote):
        with responses(session) as stream:
            events, final = told(stream)
        with responses(session) as stream:
            helped = list(stream)
            assert stream.get_final_response().output_text == final.output_text
    assert helped[-1].type == "response.completed"
    calls = [item for item in final.output if item.type == "function_call"]
    assert [c.call_id for c in calls] == ["c0", "c1"]
    assert remote.calls[0].reply.tool_calls == tuple(
        ToolCall(c.call_id, c.name, c.arguments) for c in calls
    )
    assert final.output_text == remote.calls[0].reply.content
    assert final.usage.input_tokens_details.cached_tokens == 4
    assert final.usage.output_tokens_details.reasoning_tokens == 2
    kinds = [item.type for item in final.output]
    call = "function_call"
    assert kinds == (
        ["reasoning", "message", call, call]
        if chunks is ORDERLY
        else ["message", "reasoning", call, "message", call, "reasoning"]
    )
    if chunks is ORDERLY:
        deltas = [e.logprobs for e in events if e.type == "response.output_text.delta"]
        told_tokens = [token for entries in deltas for token in entries]
        assert len(told_tokens) == len(final.output[1].content[0].logprobs) == 2
        names = [e.type for e in events if "reasoning" in e.type]
        assert names == ["response.reasoning_text.delta"] * 2 + ["response.reasoning_text.done"]
        arguments = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
        assert arguments == ['{"expression"', ': "1+1"}', '{"expression": "2"}']


@pytest.mark.parametrize("chunks", [ORDERLY, MIXED], ids=["orderly", "mixed"])
def test_blocks_come_in_their_order_and_one_at_a_time(chunks: list[bytes]):
    with served(chunks) as (session, _):
        with messages(session) as stream:
            events = list(stream._raw_stream)
            known(events)
        with messages(session) as stream:
            made = stream.get_final_message()
    known(made)
    opened = None
    for each in events:
        if each.type == "content_block_start":
            assert opened is None
            opened = each.index
        elif each.type == "content_block_delta":
            assert each.index == opened
        elif each.type == "content_block_stop":
            assert each.index == opened
            opened = None
    blocks = [block.model_dump(exclude_none=True) for block in made.content]
    calls = [block for block in blocks if block["type"] == "tool_use"]
    assert [(c["id"], c["name"]) for c in calls] == [("c0", "calculator"), ("c1", "calculator")]
    first = "1+1" if chunks is ORDERLY else "1"
    assert [c["input"] for c in calls] == [{"expression": first}, {"expression": "2"}]
    kinds = [block["type"] for block in blocks]
    if chunks is ORDERLY:
        thought = {"type": "thinking", "thinking": "Hm, so.", "signature": "reasoning_content"}
        assert blocks[:2] == [thought, {"type": "text", "text": "It is."}]
        pieces = [e.delta.partial_json for e in events if hasattr(e, "delta")
                  and e.delta and getattr(e.delta, "type", "") == "input_json_delta"]  # fmt: skip
        assert pieces == ['{"expression"', ': "1+1"}', '{"expression": "2"}']
        assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    else:
        assert kinds == ["text", "thinking", "tool_use", "text", "tool_use", "thinking"]
    assert made.stop_reason == "tool_use"
    usage = made.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (5, 4, 6)
    assert usage.output_tokens_details.thinking_tokens == 2


@pytest.mark.parametrize("ask", [responses, messages])
@pytest.mark.parametrize("until", [b"so.", b"is.", b"1+1", b"finish_reason"])
def test_a_piece_comes_before_the_server_sends_the_next(ask: Any, until: bytes):
    """What stands before the chunk that waits is there, though the server has not ended."""
    leave = threading.Event()
    whole = "Hm, so.It is." + '{"expression": "1+1"}{"expression": "2"}'
    before = {b"so.": "Hm", b"is.": "Hm, so.It ", b"1+1": 'Hm, so.It is.{"expression"'}
    wanted = before.get(until, whole)
    chunks = [c for c in ORDERLY if until != b"finish_reason" or c is not END[1]]
    seen = ""
    with served(chunks, leave, until) as (session, remote), ask(session) as stream:
        for each in stream._raw_stream:
            delta = getattr(each, "delta", None)
            names = ("text", "thinking", "partial_json")
            new = delta if isinstance(delta, str) else next(
                (getattr(delta, n) for n in names if hasattr(delta, n)), ""
            )  # fmt: skip
            seen += new
            if seen == wanted and not leave.is_set():
                assert not remote.calls, "the server has not ended"
                leave.set()
    assert leave.is_set()
    assert seen == whole


OTHERS: dict[str, tuple[list[bytes], list[tuple[str, str]], list[tuple[str, Any]]]] = {
    "a refusal": (
        [event({"refusal": "I "}), event({"refusal": "cannot."}), event({}, finish_reason="stop"),
         b"data: [DONE]"],
        [("message", "I cannot.")],
        [("text", "I cannot.")],
    ),
    "a custom tool": (
        [event(part(0, "c", "g", "a", "custom")), event(part(0, None, None, "b", "custom")), *END],
        [("custom_tool_call", "ab")],
        [("tool_use", {"arguments": "ab"})],
    ),
    "no arguments": (
        [event(part(0, "c", "f", "")), *END],
        [("function_call", "{}")],
        [("tool_use", {})],
    ),
    "no object": (
        [event(part(0, "c", "f", "[1")), event(part(0, None, None, ", 2]")), *END],
        [("function_call", "[1, 2]")],
        [("tool_use", {"arguments": [1, 2]})],
    ),
    "no id": (
        [event(part(0, None, "f", '{"a": 1}')), *END],
        [("function_call", '{"a": 1}')],
        [("tool_use", {"a": 1})],
    ),
    "nothing": (
        [event({}, finish_reason="stop"), b"data: [DONE]"],
        [("message", "")],
        [],
    ),
    "a thought that is cut": (
        [event({"reasoning": "Hm"}), event({}, finish_reason="length"), b"data: [DONE]"],
        [("reasoning", "Hm")],
        [("thinking", "Hm")],
    ),
}  # fmt: skip
"""Chunks, the items and the blocks that they make."""


@pytest.mark.parametrize("name", OTHERS)
def test_other_turns(name: str):
    chunks, items, blocks = OTHERS[name]
    with served(chunks) as (session, remote):
        with responses(session) as stream:
            _, final = told(stream)
        assert [(item.type, said(item)) for item in final.output] == items
        with messages(session) as stream:
            made = stream.get_final_message()
        if name == "no id":
            ids = [call.reply.tool_calls[0].id for call in remote.calls]
            assert [final.output[0].call_id, made.content[0].id] == ids
    known(made)
    fields = {"text": "text", "thinking": "thinking", "tool_use": "input"}
    assert [(b.type, getattr(b, fields[b.type])) for b in made.content] == blocks
    if name == "a refusal":
        assert made.stop_reason == "refusal"
    if name == "a thought that is cut":
        assert (made.stop_reason, final.status) == ("max_tokens", "incomplete")
        assert final.output[0].status == "incomplete"


def test_a_server_that_breaks_off_after_a_thought_ends_both_streams_with_an_error():
    chunks = ORDERLY[:2]
    with served(chunks) as (session, _):
        with responses(session) as stream:
            kinds = [each.type for each in raw(stream)]
        assert kinds[-2:] == ["error", "response.failed"]
        with pytest.raises(anthropic.APIStatusError), messages(session) as stream:
            stream.get_final_message()


STRANGE: list[dict[str, Any]] = [
    {"refusal": 7, "reasoning": [1], "reasoning_content": {"a": 1}},
    {"tool_calls": [{"function": None}]},
    {"tool_calls": [{"index": 1, "id": 7, "function": {"name": "f", "arguments": "{}"}}]},
    {"audio": {"id": "a", "data": "AA"}, "function_call": {"name": "f"}, "annotations": [1]},
    {"audio": {"id": "a", "data": "BB"}, "function_call": {"arguments": "{}"}},
    {"content": "It is."},
]


def test_pieces_that_make_no_sense_break_no_stream():
    with served([*map(event, STRANGE), *END]) as (session, remote):
        with responses(session) as stream:
            final = raw(stream)[-1]
        assert (final.type, final.response.output_text) == ("response.completed", "It is.")
        with messages(session) as stream:
            made = stream.get_final_message()
        assert "It is." in [getattr(block, "text", None) for block in made.content]
        reply = remote.calls[0].reply
    assert reply.extra["audio"] == {"id": "a", "data": "AABB"}
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("f", "{}")] * 2


TWO = ("c0", '{"expression": "1"}'), ("c1", '{"expression": "2"}')
INDEXES: dict[str, list[int | None]] = {"all 0": [0, 0, 0, 0], "none": [None] * 4}


@pytest.mark.parametrize("indexes", INDEXES.values(), ids=INDEXES)
@pytest.mark.parametrize("repeats", [False, True], ids=["id at first", "id in each"])
def test_a_name_with_a_new_id_begins_a_call_whatever_its_index(
    indexes: list[int | None], repeats: bool
):
    pieces: list[Any] = []
    for id, said in TWO:
        pieces.append(part(0, id, "calculator", said[:5]))
        pieces.append(part(0, id if repeats else None, None, said[5:]))
    for piece, index in zip(pieces, indexes, strict=True):
        piece["tool_calls"][0]["index"] = index
    with served([*map(event, pieces), *END]) as (session, remote):
        with responses(session) as stream:
            final = told(stream)[1]
        with messages(session) as stream:
            made = stream.get_final_message()
    assert [(call.call_id, call.arguments) for call in final.output] == list(TWO)
    assert [(block.id, json.dumps(block.input)) for block in made.content] == list(TWO)
    calls = remote.calls[0].reply.tool_calls
    assert [(call.id, call.arguments) for call in calls] == list(TWO)


def test_a_new_id_alone_is_another_name_of_the_same_call():
    """Older versions of vLLM made up an id for each piece."""
    pieces = [part(0, "c0", "calculator", '{"exp'), part(0, "c9", None, 'ression": "1"}')]
    with served([*map(event, pieces), *END]) as (session, remote), responses(session) as stream:
        told(stream)
    (call,) = remote.calls[0].reply.tool_calls
    assert call.arguments == '{"expression": "1"}'
