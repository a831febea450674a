"""A chat completion goes on to another server as it came, its reply comes back as it is, and both
are on record; other dialects are asked of that server by what they mean."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.loopback import listening

from tutelage.gateway import Gateway
from tutelage.gateway.call_log import CallLog
from tutelage.gateway.forward import Upstream

from .conftest import ASK, CALCULATOR

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
CALL = {"id": "c0", "type": "function", "function": {"name": "calculator", "arguments": "{}"}}
DONE = b"data: [DONE]\n\n"
IDS = {"return_token_ids": True, "logprobs": True}


def completion(**message: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    told = {"id": "up-1", "model": "far-v7", "choices": [choice], "usage": USAGE, "made": "up"}
    return json.dumps(told).encode()


def chunk(delta: Any, end: str | None = None, **more: Any) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": end, **more}]
    told = {"id": "up-1", "model": "far-v7", "choices": choices}
    return b"data: " + json.dumps(told).encode() + b"\n\n"


COUNTED = b"data: " + json.dumps({"id": "up-1", "choices": [], "usage": USAGE}).encode() + b"\n\n"
CALLED = {"tool_calls": [{"index": 0, **CALL}]}
STREAM = [
    b": alive\n\n",
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "Hm."}),
    chunk({"content": "It "}),
    chunk({"content": "is."}),
    chunk({"tool_calls": [{**CALLED["tool_calls"][0], "function": {"name": "calculator"}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
    chunk({}, "tool_calls"),
    COUNTED,
    DONE,
]


class Server:
    """A server on loopback that answers with these bytes and remembers what it was sent."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.keys: list[str | None] = []
        self.status, self.kind = 200, "application/json"
        self.headers: dict[str, str] = {}
        self.pieces: Sequence[bytes] = [completion(content="It is.")]
        self.refuses: str | None = None
        self.hangs, self.left = threading.Event(), threading.Event()
        self.hang = False
        self.url = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        self.seen.append(body)
        self.keys.append(handler.headers["authorization"])
        status, kind, pieces = self.status, self.kind, self.pieces
        if self.refuses in body:
            told = {"error": {"message": f"unknown field {self.refuses}"}}
            status, kind, pieces = 400, "application/json", [json.dumps(told).encode()]
        handler.send_response(status)
        for name, value in {"content-type": kind, "connection": "close", **self.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        try:
            for piece in pieces:
                handler.wfile.write(piece)
                handler.wfile.flush()
            while self.hang:  # until who asked is gone
                handler.wfile.write(b": alive\n\n")
                handler.wfile.flush()
                time.sleep(0.01)
        except OSError:
            self.left.set()


@contextmanager
def served() -> Generator[Server]:
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            server.answer(self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with listening(Handler) as server.url:
        yield server


class Case:
    """A gateway before that server, and its record."""

    def __init__(self, path: Path, server: Server, **given: Any) -> None:
        self.server, self._path = server, path
        self._log = CallLog(path)
        opened = {k: given.pop(k) for k in ("token_budget",) if k in given}
        client = Upstream(f"{server.url}/v1", "theirs", "far", **given)
        self.gateway = Gateway().start()
        self.session = self.gateway.open("r", "a", client, on_call=self._log, **opened)

    def ask(self, path: str = "/chat/completions", **body: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {self.session.api_key}"}
        given = {} if "input" in body else {"messages": ASK}
        sent = {"model": "m", **given, **body}
        return httpx2.post(self.session.base_url + path, json=sent, headers=headers, timeout=30)

    def lines(self) -> list[Any]:
        self.gateway.close()
        self._log.close()
        return [json.loads(line) for line in self._path.read_text().splitlines()]


@pytest.fixture
def case(tmp_path: Path) -> Generator[Callable[..., Case]]:
    made: list[Case] = []
    with served() as server:

        def make(**given: Any) -> Case:
            made.append(Case(tmp_path / "calls.jsonl", server, **given))
            return made[-1]

        yield make
        server.hang = False
        for each in made:
            each.gateway.close()


Make = Callable[..., Case]
FIELDS: dict[str, Any] = {
    "messages": [{"role": "user", "content": [{"type": "text", "text": "What?"}, IMAGE]}],
    "reasoning_effort": "high",
    "frequency_penalty": 0.5,
    "temperature": 7,
    "max_completion_tokens": 50,
    "n": 2,
    "seed": 3,
    "tools": [CALCULATOR, {"type": "web_search"}],
    "web_search_options": {},
    "what_nobody_here_knows": [1, None],
}


def test_body_and_reply_go_through_but_for_model_and_key(case: Make) -> None:
    made = case()
    answer = made.ask(**FIELDS)
    assert (answer.status_code, answer.content) == (200, made.server.pieces[0])
    assert made.server.seen == [{**FIELDS, **IDS, "model": "far"}]
    assert made.server.keys == ["Bearer theirs"]


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_a_refusal_is_the_servers_own(case: Make, status: int) -> None:
    made = case()
    made.server.status, made.server.headers = status, {"retry-after": "3"}
    made.server.pieces = [b'{"error": {"message": "no", "code": "x"}}']
    answer = made.ask()
    assert (answer.status_code, answer.content) == (status, made.server.pieces[0])
    assert answer.headers["retry-after"] == "3"
    assert len(made.server.seen) == 1, "the client decides whether to ask again"
    assert made.lines() == []


def test_defaults_hold_where_a_request_is_silent(case: Make) -> None:
    made = case(defaults={"temperature": 0.25})
    made.ask()
    made.ask(temperature=0.5)
    assert [each["temperature"] for each in made.server.seen] == [0.25, 0.5]


@pytest.mark.parametrize("shown", [False, True])
def test_a_stream_comes_as_it_is_there(case: Make, shown: bool) -> None:
    """What was used is asked for the record, and told where the client asked too."""
    made = case()
    made.server.kind, made.server.pieces = "text/event-stream", STREAM
    answer = made.ask(stream=True, **({"stream_options": {"include_usage": True}} if shown else {}))
    told = b"".join(STREAM) if shown else b"".join(STREAM).replace(COUNTED, b"\n")
    assert answer.content == told
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert made.server.seen[0]["stream_options"] == {"include_usage": True}


def test_token_ids_are_asked_for_until_the_server_refuses_them(case: Make) -> None:
    made = case()
    made.server.refuses = "return_token_ids"
    for _ in range(2):
        assert made.ask(logprobs=True).status_code == 200
    asked = [("return_token_ids" in each, each["logprobs"]) for each in made.server.seen]
    assert asked == [(True, True), (False, True), (False, True)]
    assert made.ask().status_code == 200
    assert "logprobs" not in made.server.seen[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_on_record_with_what_was_sent_and_answered(case: Make, stream: bool) -> None:
    made = case()
    said = {"content": "It is.", "reasoning_content": "Hm.", "tool_calls": [CALL]}
    if stream:
        made.server.kind, made.server.pieces = "text/event-stream", STREAM
    else:
        made.server.pieces = [completion(**said)]
    made.ask(**FIELDS, stream=stream)
    (line,) = made.lines()
    assert line["messages"] == FIELDS["messages"]
    assert line["tools"] == FIELDS["tools"]
    assert line["reply"] == {"role": "assistant", **said}
    assert line["usage"] == {"input_tokens": 7, "output_tokens": 3}
    assert (line["model"], line["api"], line["response_id"]) == ("m", "chat.completions", "up-1")
    assert line["sent"]["what_nobody_here_knows"] == [1, None]
    assert line["sent"]["model"] == "far"
    assert (line["answered"]["model"], line["answered"]["usage"]) == ("far-v7", USAGE)
    assert line["answered"]["finish_reason"] == line["finish_reason"]
    sampling = {"temperature": 7, "max_tokens": 50, "seed": 3}
    assert sampling.items() <= line["sampling"].items()
    assert line["start_ns"] <= line["end_ns"]


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_are_on_record(case: Make, stream: bool) -> None:
    made = case()
    entries = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1}]}
    choice = {"token_ids": [5, 6], "logprobs": entries}
    whole = json.loads(completion(content="ab"))
    if stream:
        made.server.kind = "text/event-stream"
        parts = [
            chunk({"content": text}, None, token_ids=[id], logprobs={"content": [entry]})
            for text, id, entry in zip("ab", (5, 6), entries["content"], strict=True)
        ]
        last = b'data: {"choices": [], "prompt_token_ids": [1, 2]}\n\n'
        made.server.pieces = [*parts, chunk({}, "stop"), last, DONE]
    else:
        whole["choices"][0] |= choice
        made.server.pieces = [json.dumps(whole | {"prompt_token_ids": [1, 2]}).encode()]
    made.ask(stream=stream)
    (line,) = made.lines()
    assert (line["prompt_ids"], line["token_ids"]) == ([1, 2], [5, 6])
    assert line["logprobs"] == [-0.5, -1.0]


DIED = b'data: {"error": {"message": "provider died"}}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(("last", "why"), [(b"", "aborted its reply"), (DIED, "provider died")])
def test_a_stream_that_breaks_off_is_an_error_on_record(case: Make, last: bytes, why: str) -> None:
    made = case()
    made.server.kind, made.server.pieces = "text/event-stream", [*STREAM[:5], last]
    content = made.ask(stream=True).content
    assert b"is." in content
    assert last in content
    (line,) = made.lines()
    assert (line["finish_reason"], line["reply"]["content"]) == ("error", "It is.")
    assert why in line["error"]
    assert (line["answered"], "token_ids" in line) == (None, False)
    assert line["messages"] == ASK


def test_a_client_that_leaves_ends_the_call_there(case: Make) -> None:
    made = case()
    made.server.kind, made.server.pieces, made.server.hang = "text/event-stream", STREAM[:5], True
    headers = {"authorization": f"Bearer {made.session.api_key}"}
    url = f"{made.session.base_url}/chat/completions"
    body = {"model": "m", "messages": ASK, "stream": True}
    with httpx2.stream("POST", url, json=body, headers=headers) as answer:
        seen = b""
        for part in answer.iter_bytes():
            seen += part
            if b"is." in seen:
                break
    assert made.server.left.wait(20)
    while made.session.in_flight:
        time.sleep(0.01)
    (line,) = made.lines()
    assert (line["finish_reason"], line["error"]) == ("cancelled", "the client disconnected")
    assert line["reply"]["content"] == "It is."


def test_a_budget_lowers_the_limit_and_ends(case: Make) -> None:
    made = case(token_budget=5)
    made.ask()
    made.ask(max_tokens=100)
    limits = [each["max_tokens"] for each in made.server.seen]
    assert (limits, made.session.spent) == ([5, 2], 6)
    assert made.ask().status_code == 402


# ---------------------------------------------------------------- other dialects

TOOLS: dict[str, Any] = {
    "/responses": [{"type": "function", **CALCULATOR["function"]}],
    "/messages": [{"name": "calculator", "input_schema": {"type": "object"}}],
}
TURNS: dict[str, Any] = {
    "/responses": {"input": "hi", "instructions": "Be brief."},
    "/messages": {"max_tokens": 9, "messages": ASK, "system": "Be brief."},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", TURNS)
def test_another_dialect_is_asked_by_what_it_means(case: Make, path: str, stream: bool) -> None:
    made = case()
    said = {"content": "It is.", "reasoning_content": "Hm.", "tool_calls": [CALL]}
    if stream:
        made.server.kind, made.server.pieces = "text/event-stream", STREAM
    else:
        made.server.pieces = [completion(**said)]
    answer = made.ask(path, tools=TOOLS[path], stream=stream, **TURNS[path])
    assert answer.status_code == 200
    (sent,) = made.server.seen
    assert [m["role"] for m in sent["messages"]] == ["system", "user"]
    assert sent["tools"][0]["function"]["name"] == "calculator"
    assert sent["model"] == "far"
    if not stream:
        kinds = [each["type"] for each in answer.json().get("content") or answer.json()["output"]]
        thought, text, call = kinds
        assert thought in ("thinking", "reasoning")
        assert (text, call) in (("text", "tool_use"), ("message", "function_call"))
    for word in ("Hm.", "It ", "is.", "calculator"):
        assert word in answer.text
    (line,) = made.lines()
    assert line["api"] == path[1:]
    assert line["reply"]["content"] == "It is."
    assert line["usage"] == {"input_tokens": 7, "output_tokens": 3}


def test_a_prompt_to_be_continued_is_refused(case: Make) -> None:
    made = case()
    answer = made.ask("/completions", prompt="1 + 1 =")
    assert answer.status_code == 400
    assert "cannot continue raw prompts" in answer.json()["error"]["message"]
