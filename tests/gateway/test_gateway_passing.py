"""What goes on to another server as it came, and what comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from tests.gateway.conftest import ASK

from tutelage.engine.remote import RemoteChatClient
from tutelage.errors import UnreachableError
from tutelage.gateway import AttemptSession, Gateway
from tutelage.types import Message, Sampling, ToolCall

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
LOGPROBS = [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]
ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
}
FIELDS: dict[str, Any] = {
    "reasoning_effort": "high",
    "frequency_penalty": 0.5,
    "presence_penalty": -1,
    "logit_bias": {"50256": -100},
    "min_tokens": 3,
    "chat_template_kwargs": {"enable_thinking": False},
    "web_search_options": {},
    "what_nobody_here_knows": [1],
}


class Upstream:
    """A gateway before a server that remembers what it was sent."""

    def __init__(self, *, passes: bool = True) -> None:
        self.seen: list[dict[str, Any]] = []
        transport = httpx2.MockTransport(self._answer)
        self.client = RemoteChatClient(
            "http://up/v1", "k", "far", keep=0, passes=passes, transport=transport
        )
        self.gateway = Gateway()
        self.spans: list[Any] = []
        self.session: AttemptSession = self.gateway.open(
            "r", "a", self.client, on_span=self.spans.append
        )

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.seen.append(json.loads(request.content))
        message = {"role": "assistant", "content": "a", "reasoning_content": "so"}
        logprobs = {"content": LOGPROBS} if self.seen[-1].get("logprobs") else None
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": logprobs}
        usage = {"prompt_tokens": 7, "completion_tokens": 1}
        return httpx2.Response(200, json={"choices": [choice], "usage": usage})

    async def ask(self, path: str = "/chat/completions", **body: Any) -> httpx2.Response:
        """One request."""
        transport = httpx2.ASGITransport(app=self.gateway.app)
        headers = {"authorization": f"Bearer {self.session.api_key}"}
        async with httpx2.AsyncClient(transport=transport, headers=headers) as http:
            url = f"{self.session.base_url}{path}"
            return await http.post(url, json={"model": "m", "messages": ASK} | body)


@pytest.mark.parametrize("name", sorted(FIELDS))
async def test_a_field_that_is_not_read_here_goes_on_as_it_came(name: str):
    case = Upstream()
    assert (await case.ask(**{name: FIELDS[name]})).status_code == 200
    assert case.seen[0][name] == FIELDS[name]
    assert case.seen[0]["messages"] == ASK


@pytest.mark.parametrize("name", sorted(FIELDS))
async def test_without_leave_to_pass_it_on_it_is_refused_by_name(name: str):
    case = Upstream(passes=False)
    answer = await case.ask(**{name: {"x": 1} if FIELDS[name] == {} else FIELDS[name]})
    assert answer.status_code == 400
    assert name in answer.json()["error"]["message"]
    assert not case.seen


async def test_images_go_on_and_stay_on_record_with_their_message():
    case = Upstream()
    parts = [{"type": "text", "text": "What is it?"}, IMAGE]
    messages = [{"role": "user", "content": parts}]
    assert (await case.ask(messages=messages)).status_code == 200
    assert case.seen[0]["messages"] == messages
    await case.session.aclose()
    (message,) = case.spans[0].calls[0].messages
    assert message.content == "What is it?"
    assert message.extra["content_parts"] == parts


async def test_allowed_tools_go_on():
    case = Upstream()
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    assert (await case.ask(tools=tools, tool_choice=ALLOWED)).status_code == 200
    assert case.seen[0]["tool_choice"] == ALLOWED


@pytest.mark.parametrize("stream", [False, True])
async def test_what_comes_back_is_told_and_recorded(stream: bool):
    case = Upstream()
    answer = await case.ask(logprobs=True, top_logprobs=5, stream=stream)
    assert case.seen[0]["logprobs"] is True
    assert case.seen[0]["top_logprobs"] == 5
    if stream:
        lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
        choices = [json.loads(line[6:])["choices"][0] for line in lines]
        assert [c["logprobs"] for c in choices if c["logprobs"]] == [
            {"content": LOGPROBS, "refusal": None}
        ]
    else:
        (choice,) = answer.json()["choices"]
        assert choice["logprobs"]["content"] == LOGPROBS
        assert choice["message"]["reasoning_content"] == "so"
        assert answer.json()["usage"]["prompt_tokens"] == 7
    await case.session.aclose()
    (span,) = case.spans
    assert span.calls[0].reply.extra == {"reasoning_content": "so"}
    assert (span.input_tokens, span.output_tokens) == (7, 1)


async def test_malformed_messages_are_refused_here():
    case = Upstream()
    for messages in (None, [], [7], [{"role": "user", "content": 7}], [{"content": [IMAGE]}]):
        answer = await case.ask(messages=messages)
        assert answer.status_code == 400
        assert "messages" in answer.json()["error"]["message"]
    assert not case.seen


async def test_other_dialects_are_read_as_ever():
    case = Upstream()
    answer = await case.ask("/responses", messages=None, input="hi", top_logprobs=None, thing=1)
    assert answer.status_code == 400
    assert "thing" in answer.json()["error"]["message"]


# ---------------------------------------------------------------- streams


class Slow(httpx2.AsyncByteStream):
    """Chunks of a server that waits for leave between them."""

    def __init__(self, chunks: list[bytes], leave: asyncio.Event) -> None:
        self._chunks, self._leave = chunks, leave

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for i, chunk in enumerate(self._chunks):
            if i:
                await self._leave.wait()
            yield chunk


def event(delta: dict[str, Any], **more: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta, **more}]}).encode()


CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a"'}}
REST = {"index": 0, "function": {"arguments": ":1}"}}
CHUNKS = [
    event({"role": "assistant", "content": ""}) + b"\n\n" + event({"content": "Hel"}) + b"\n\nda",
    b"ta: " + event({"content": "lo "})[6:] + b"\r\n\r\n: a comment\n\n",
    event({"reasoning_content": "s"}) + b"\n\n" + event({"tool_calls": [CALL]}) + b"\n\n",
    event({"tool_calls": [REST]}, finish_reason="tool_calls", logprobs={"content": LOGPROBS}),
    b'\n\ndata: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}\n\n',
    b"data: [DONE]\n\n",
]


def streaming(chunks: list[bytes], leave: asyncio.Event) -> tuple[RemoteChatClient, list[Any]]:
    seen: list[Any] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(json.loads(request.content))
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, stream=Slow(chunks, leave))

    transport = httpx2.MockTransport(answer)
    return RemoteChatClient("http://up/v1", "k", "far", transport=transport, passes=True), seen


async def test_text_comes_before_the_server_has_ended():
    leave, first = asyncio.Event(), asyncio.Event()
    told: list[str] = []
    remote, seen = streaming(CHUNKS, leave)

    def on_text(text: str) -> None:
        told.append(text)
        first.set()

    asked = asyncio.ensure_future(
        remote.chat([Message("user", "hi")], sampling=Sampling(), on_text=on_text)
    )
    await asyncio.wait_for(first.wait(), 30)
    assert told == ["Hel"]
    assert not asked.done()
    leave.set()
    call = await asked
    assert told == ["Hel", "lo "]
    assert seen[0]["stream"] is True
    assert call.reply.content == "Hello "
    assert call.reply.tool_calls == (ToolCall("c", "f", '{"a":1}'),)
    assert call.reply.extra == {"reasoning_content": "s"}
    assert remote.usage(call) == (9, 4)
    assert remote.logprobs(call) == LOGPROBS


def test_a_stream_through_the_gateway_comes_before_the_server_has_ended():
    leave = asyncio.Event()
    remote, _ = streaming(CHUNKS, leave)
    with Gateway() as gateway:
        session = gateway.open("r", "a", remote)
        headers = {"authorization": f"Bearer {session.api_key}"}
        url, body = f"{session.base_url}/chat/completions", {"model": "m", "messages": ASK}
        deltas: list[dict[str, Any]] = []
        before = False
        with httpx2.stream("POST", url, json=body | {"stream": True}, headers=headers) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    deltas.append(json.loads(line[6:])["choices"][0]["delta"])
                if not before and deltas and deltas[-1].get("content") == "Hel":
                    before = True
                    assert not remote.calls
                    gateway.loop.call_soon_threadsafe(leave.set)
        session.close()
    assert before
    assert "".join(d.get("content") or "" for d in deltas) == "Hello "
    assert {"reasoning_content": "s"} in deltas
    assert remote.calls[0].reply.content == "Hello "


@pytest.mark.parametrize("chunks", [CHUNKS[:2], [*CHUNKS[:2], b"data: [1]\n\n"]])
async def test_a_stream_that_breaks_is_no_reply_and_is_not_asked_for_again(chunks: list[bytes]):
    leave = asyncio.Event()
    leave.set()
    remote, seen = streaming(chunks, leave)
    with pytest.raises(UnreachableError, match="broke off"):
        await remote.chat([Message("user", "hi")], sampling=Sampling(), on_text=lambda _: None)
    assert len(seen) == 1
    assert not remote.calls


async def test_a_server_that_does_not_stream_is_read_all_the_same():
    case = Upstream()
    told: list[str] = []
    call = await case.client.chat([Message("user", "hi")], sampling=Sampling(), on_text=told.append)
    assert call.reply.content == "a"
    assert case.seen[0]["stream"] is True
