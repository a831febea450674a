"""What goes on to another server as it came, and what comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from tests.gateway.conftest import ASK

from tutelage.engine.passing import PassingClient
from tutelage.errors import UnreachableError
from tutelage.gateway import AttemptSession, Gateway
from tutelage.types import UNBOUNDED, Message, Sampling, ToolCall

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
SILENT = Sampling(max_tokens=UNBOUNDED)
"""Of an attempt that has no wishes of its own."""


class Upstream:
    """A gateway before a server that remembers what it was sent."""

    def __init__(
        self,
        *,
        passes: bool = True,
        sampling: Sampling = SILENT,
        answer: dict[str, Any] | None = None,
        refuses: str | None = None,
        keep: int = 0,
        **given: Any,
    ) -> None:
        self.seen: list[dict[str, Any]] = []
        self._given, self._refuses = answer, refuses
        transport = httpx2.MockTransport(self._answer)
        self.client = PassingClient(
            "http://up/v1", "k", "far", passes=passes, transport=transport, keep=keep, **given
        )
        self.gateway = Gateway()
        self.spans: list[Any] = []
        self.session: AttemptSession = self.gateway.open(
            "r", "a", self.client, on_span=self.spans.append, sampling=sampling
        )

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.seen.append(json.loads(request.content))
        if self._refuses in self.seen[-1]:
            error = {"message": f"unknown field {self._refuses}"}
            return httpx2.Response(400, json={"error": error})
        if self._given is not None:
            return httpx2.Response(200, json=self._given)
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
    fields: dict[str, Any] = {name: FIELDS[name] or {"x": 1}}
    answer = await case.ask(**fields)
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


WHOLE: dict[str, Any] = {
    "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "u"},
    ],
    "verbosity": "low",
    "service_tier": "flex",
    "prompt_cache_key": "k",
    "user": "u",
    "metadata": {"a": "b"},
    "store": True,
    "prediction": {"type": "content", "content": "hi"},
    "reasoning_effort": "none",
    "max_completion_tokens": 50,
    "stop": "END",
    "top_k": -1,
    "seed": 7,
    "tools": [
        {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"a": 1}}}
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "response_format": {
        "type": "json_schema",
        "json_schema": {
            "name": "city", "description": "A city.", "strict": False, "schema": {"type": "object"},
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_goes_on_whole(stream: bool):
    case = Upstream()
    assert (await case.ask(**WHOLE, stream=stream)).status_code == 200
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    assert case.seen == [WHOLE | {"model": "far"} | (streamed if stream else {})]


async def test_nothing_is_added_to_a_request_that_says_little():
    case = Upstream()
    assert (await case.ask()).status_code == 200
    assert case.seen == [{"model": "far", "messages": ASK}]


async def test_an_attempts_own_sampling_holds_where_the_request_is_silent():
    case = Upstream(sampling=Sampling(0.5, 0.9, 3, 20, ("S",)))
    await case.ask()
    said: dict[str, Any] = {
        "temperature": 0.1,
        "top_p": 1.0,
        "top_k": 9,
        "max_completion_tokens": 5,
        "stop": ["T"],
    }
    await case.ask(**said)
    wishes = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "max_tokens": 20, "stop": ["S"]}
    assert case.seen == [{"model": "far", "messages": ASK, **each} for each in (wishes, said)]


async def test_a_client_has_defaults_for_requests_that_are_silent():
    case = Upstream(defaults={"temperature": 1.0})
    await case.ask()
    await case.ask(temperature=0.25)
    assert [each["temperature"] for each in case.seen] == [1.0, 0.25]


async def test_each_choice_is_a_request_with_a_seed_of_its_own():
    case = Upstream()
    answer = await case.ask(n=2, seed=4)
    assert [choice["index"] for choice in answer.json()["choices"]] == [0, 1]
    assert sorted(each.pop("seed") for each in case.seen) == [4, 5]
    assert case.seen == [{"model": "far", "messages": ASK}] * 2


async def test_log_probabilities_are_asked_of_a_server_that_gives_no_token_ids():
    case = Upstream(token_ids=True, refuses="return_token_ids")
    (choice,) = (await case.ask(logprobs=True)).json()["choices"]
    assert choice["logprobs"]["content"] == LOGPROBS
    (choice,) = (await case.ask()).json()["choices"]
    assert choice["logprobs"] is None
    assert [each.get("logprobs") for each in case.seen] == [True, True, None]


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


REFUSAL: dict[str, Any] = {
    "id": "up-1",
    "model": "far-2026",
    "system_fingerprint": "fp_1",
    "service_tier": "flex",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": None, "refusal": "I cannot."},
            "finish_reason": "content_filter",
        }
    ],
    "usage": {
        "prompt_tokens": 7,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 3, "audio_tokens": None},
    },
}


async def test_refusals_filters_and_counts_come_back():
    case = Upstream(answer=REFUSAL)
    told = (await case.ask()).json()
    (choice,) = told["choices"]
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": "I cannot."}
    assert choice["finish_reason"] == "content_filter"
    assert told["usage"] == {**REFUSAL["usage"], "total_tokens": 11}
    assert (told["system_fingerprint"], told["service_tier"]) == ("fp_1", "flex")
    assert told["id"].startswith("chatcmpl-")
    assert told["model"] == "m"
    two = (await case.ask(n=2)).json()["usage"]
    assert (two["prompt_tokens"], two["completion_tokens"]) == (7, 8)
    assert two["prompt_tokens_details"] == {"cached_tokens": 5}
    assert two["completion_tokens_details"] == {"reasoning_tokens": 6, "audio_tokens": None}
    await case.session.aclose()
    assert case.spans[0].finish_reasons == ("content_filter",)
    assert case.spans[0].calls[0].reply.extra == {"refusal": "I cannot."}


async def test_refusals_filters_and_counts_come_back_in_a_stream():
    case = Upstream(answer=REFUSAL)
    answer = await case.ask(stream=True, stream_options={"include_usage": True})
    chunks = [json.loads(x[6:]) for x in answer.text.splitlines() if x.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert {"refusal": "I cannot."} in [choice["delta"] for choice in choices]
    assert choices[-1]["finish_reason"] == "content_filter"
    assert chunks[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3
    assert chunks[-2]["system_fingerprint"] == "fp_1"


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/messages", {"max_tokens": 9}, {"stop_reason": "refusal"}),
        (
            "/responses",
            {"messages": None, "input": "hi"},
            {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
        ),
    ],
)
async def test_other_dialects_say_that_a_filter_cut_a_reply(
    path: str, body: dict[str, Any], told: dict[str, Any]
):
    answer = (await Upstream(answer=REFUSAL).ask(path, **body)).json()
    assert told.items() <= answer.items()


async def test_the_record_says_what_was_sent_and_what_came_beside_the_message():
    case = Upstream(answer=REFUSAL)
    fields: dict[str, Any] = {
        "reasoning_effort": "high",
        "logit_bias": {"1": 2},
        "presence_penalty": 1,
    }
    await case.ask(**fields, seed=3)
    await case.session.aclose()
    (told,) = case.spans[0].answered
    assert told.to_dict() == {
        "sent": {"model": "far", "seed": 3, **fields},
        "answered": {
            "model": "far-2026",
            "finish_reason": "content_filter",
            "usage": REFUSAL["usage"],
            "system_fingerprint": "fp_1",
            "service_tier": "flex",
        },
    }


async def test_malformed_messages_are_refused_here():
    case = Upstream()
    for messages in (None, [], [7], [{"role": "user", "content": 7}], [{"content": [IMAGE]}]):
        answer = await case.ask(messages=messages)
        assert answer.status_code == 400
        assert "messages" in answer.json()["error"]["message"]
    assert not case.seen


@pytest.mark.parametrize("stream", [False, True])
async def test_a_raw_prompt_is_refused(stream: bool):
    case = Upstream()
    answer = await case.ask("/completions", messages=None, prompt="hi", stream=stream)
    assert answer.status_code == 400
    assert "raw prompt" in answer.json()["error"]["message"]
    assert "thinking" not in answer.json()["error"]["message"]
    assert not case.seen


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


def streaming(chunks: list[bytes], leave: asyncio.Event) -> tuple[PassingClient, list[Any]]:
    seen: list[Any] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(json.loads(request.content))
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, stream=Slow(chunks, leave))

    transport = httpx2.MockTransport(answer)
    return PassingClient("http://up/v1", "k", "far", transport=transport, passes=True), seen


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


THOUGHTS = [
    event({"role": "assistant", "content": ""}),
    event({"reasoning_content": "Hm"}, logprobs={"content": LOGPROBS}),
    event({"reasoning_content": ", so."}),
    event({"content": "It "}),
    event({"tool_calls": [CALL]}),
    event({"reasoning_content": " And"}),
    event({"tool_calls": [REST]}),
    event({"content": "is."}, logprobs={"content": LOGPROBS}),
    event({"annotations": [1]}),
    event({"annotations": [2]}),
    event({}, finish_reason="tool_calls"),
    b"data: [DONE]",
]


def test_thoughts_and_tool_calls_come_as_they_do_there_and_in_their_order():
    """Each chunk of the other server waits until the one before has come through."""
    leave, seen = asyncio.Event(), list[dict[str, Any]]()
    last = "[DONE]"

    class Stepwise(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for chunk in THOUGHTS:
                yield chunk + b"\n\n"
                if b"role" in chunk or b"finish" in chunk or b"DONE" in chunk:
                    continue  # nothing of it is told before the end
                await asyncio.wait_for(leave.wait(), 30)
                leave.clear()

    def answer(_: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, stream=Stepwise())

    transport = httpx2.MockTransport(answer)
    remote = PassingClient("http://up/v1", "k", "far", transport=transport, passes=True)
    with Gateway() as gateway:
        session = gateway.open("r", "a", remote)
        headers = {"authorization": f"Bearer {session.api_key}"}
        url = f"{session.base_url}/chat/completions"
        body = {"model": "m", "messages": ASK, "stream": True, "logprobs": True}
        with httpx2.stream("POST", url, json=body, headers=headers) as answered:
            for line in answered.iter_lines():
                last = line or last
                if line.startswith("data: {"):
                    seen.append(json.loads(line[6:])["choices"][0])
                    gateway.loop.call_soon_threadsafe(leave.set)
        session.close()
    assert last == "data: [DONE]"
    assert [choice["delta"] for choice in seen] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Hm"},
        {"reasoning_content": ", so."},
        {"content": "It "},
        {"tool_calls": [CALL]},
        {"reasoning_content": " And"},
        {"tool_calls": [REST]},
        {"content": "is."},
        {"annotations": [1]},
        {"annotations": [2]},
        {},
    ]
    told = {"content": LOGPROBS, "refusal": None}
    assert [i for i, choice in enumerate(seen) if choice["logprobs"] == told] == [1, 7]
    assert seen[-1]["finish_reason"] == "tool_calls"
    reply = remote.calls[0].reply
    assert (reply.content, reply.tool_calls) == ("It is.", (ToolCall("c", "f", '{"a":1}'),))
    assert reply.extra == {"reasoning_content": "Hm, so. And", "annotations": [1, 2]}


async def test_a_thought_that_was_told_is_not_asked_for_again():
    leave = asyncio.Event()
    leave.set()
    remote, seen = streaming([THOUGHTS[1] + b"\n\n"], leave)
    told: list[Any] = []
    with pytest.raises(UnreachableError, match="aborted its reply"):
        await remote.chat(
            [Message("user", "hi")],
            sampling=Sampling(),
            on_text=told.append,
            on_fields=told.append,
        )
    assert (told, len(seen)) == ([{"reasoning_content": "Hm"}], 1)


@pytest.mark.parametrize("chunks", [CHUNKS[:2], [*CHUNKS[:2], b"data: [1]\n\n"]])
async def test_a_stream_that_breaks_is_no_reply_and_is_not_asked_for_again(chunks: list[bytes]):
    leave = asyncio.Event()
    leave.set()
    remote, seen = streaming(chunks, leave)
    with pytest.raises(UnreachableError, match="aborted its reply"):
        await remote.chat([Message("user", "hi")], sampling=Sampling(), on_text=lambda _: None)
    assert len(seen) == 1
    assert not remote.calls


async def test_a_server_that_does_not_stream_is_read_all_the_same():
    case = Upstream()
    told: list[str] = []
    call = await case.client.chat([Message("user", "hi")], sampling=Sampling(), on_text=told.append)
    assert call.reply.content == "a"
    assert case.seen[0]["stream"] is True
