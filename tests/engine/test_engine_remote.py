"""The client of other servers: what goes out, what is recorded, what is asked again."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx2
import pytest
from tests.loopback import listening
from tests.testing.upstream import remote_over

from tutelage.engine.endpoint import Endpoint, served_models
from tutelage.engine.remote import RemoteChatClient, RemoteServers
from tutelage.engine.script import ScriptedReply
from tutelage.errors import ConfigError, ContextOverflowError, EngineError, RemoteError
from tutelage.gateway import Gateway, ScriptedClient
from tutelage.rollouts.rows import build_rows
from tutelage.seeds import SeedTree
from tutelage.types import (
    UNBOUNDED,
    Constraint,
    Message,
    Sampling,
    StopReason,
    ToolCall,
    ToolSpec,
)

ASK = [Message("user", "hi")]
SAMPLING = Sampling(temperature=0.5, max_tokens=9)
TOOLS = (ToolSpec("f", "F.", {"type": "object", "properties": {}}),)
Answer = Callable[[httpx2.Request], httpx2.Response]


def completion(message: dict[str, Any] | None = None, **more: Any) -> httpx2.Response:
    """What a server answers."""
    choice = {"index": 0, "finish_reason": "stop", **more.pop("choice", {})}
    choice["message"] = message or {"role": "assistant", "content": "hello"}
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    return httpx2.Response(200, json={"choices": [choice], "usage": usage, **more})


def client(*answers: httpx2.Response | Exception, **given: Any) -> tuple[RemoteChatClient, Any]:
    """A client of a server that gives these answers, the last one for ever; and its requests."""
    seen: list[httpx2.Request] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        answer = answers[min(len(seen), len(answers) - 1)]
        seen.append(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    transport = httpx2.MockTransport(handle)
    return remote_over(transport, "http://up/v1/", "key", "big", **given), seen


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries take no time."""
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.0)


async def test_a_call_goes_out_whole_and_comes_back_on_record() -> None:
    tool = {"id": "call_up", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = completion({"role": "assistant", "content": None, "tool_calls": [tool]})
    remote, seen = client(answer)
    call = await remote.chat(
        ASK, tools=TOOLS, sampling=Sampling(0.5, 0.9, 4, 9, ("x",)), agent="judge", seed=5,
        constraint=Constraint("required", parallel_tool_calls=False),
    )  # fmt: skip
    (request,) = seen
    assert str(request.url) == "http://up/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer key"
    assert json.loads(request.content) == {
        "model": "big", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.5,
        "top_p": 0.9, "top_k": 4, "max_tokens": 9, "stop": ["x"], "seed": 5,
        "tools": [TOOLS[0].to_dict()], "tool_choice": "required", "parallel_tool_calls": False,
    }  # fmt: skip
    assert call.reply == Message("assistant", None, (ToolCall("call_up", "f", "{}"),))
    assert call.agent == "judge"
    assert call.policy is None
    assert (call.prompt_ids, call.sampled.token_ids) == ((), ())
    assert call.usage == (7, 3)
    assert remote.calls == [call]
    assert build_rows([call]) == []
    await remote.close()


@pytest.mark.parametrize(
    ("constraint", "sent"),
    [
        (Constraint("f"), {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
        (Constraint("none"), {"tool_choice": "none"}),
        (
            Constraint(json_schema={"type": "object"}),
            {"response_format": {"type": "json_object"}},
        ),
        (
            Constraint(json_schema={"type": "array"}),
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "reply", "schema": {"type": "array"}, "strict": True},
                }
            },
        ),
    ],
)
async def test_constraints_go_out(constraint: Constraint, sent: dict[str, Any]) -> None:
    remote, seen = client(completion())
    await remote.chat(ASK, tools=TOOLS, sampling=SAMPLING, constraint=constraint)
    body = json.loads(seen[0].content)
    assert {k: body[k] for k in sent} == sent


async def test_token_ids_are_recorded_where_the_server_gives_them() -> None:
    entries = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.5}]
    choice = {"token_ids": [4, 5], "logprobs": {"content": entries}, "finish_reason": "length"}
    remote, seen = client(completion(choice=choice, prompt_token_ids=[1, 2, 3]), token_ids=True)
    call = await remote.chat(ASK, sampling=SAMPLING)
    body = json.loads(seen[0].content)
    assert body["return_token_ids"] is True
    assert body["logprobs"] is True
    assert call.prompt_ids == (1, 2, 3)
    assert call.sampled.token_ids == (4, 5)
    assert call.sampled.raw_logprobs == (-0.5, -1.5)
    assert call.sampled.stop_reason is StopReason.LENGTH


async def test_ids_without_their_logprobs_are_not_kept() -> None:
    remote, _ = client(completion(choice={"token_ids": [4, 5]}, prompt_token_ids=[1]))
    call = await remote.chat(ASK, sampling=SAMPLING)
    assert (call.prompt_ids, call.sampled.token_ids) == ((), ())


async def test_a_server_that_is_away_is_asked_again(no_pause: None) -> None:
    answers = [
        httpx2.ConnectError("refused"),
        httpx2.Response(503, text="busy"),
        httpx2.Response(429, headers={"retry-after-ms": "1"}, text="slow"),
        completion(),
    ]
    remote, seen = client(*answers)
    assert (await remote.chat(ASK, sampling=SAMPLING)).reply.content == "hello"
    assert [r.headers["x-stainless-retry-count"] for r in seen] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"retry-after": "7.5"}, 7.5, 7.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0, 0),
        ({"retry-after": "Fri, 01 Jan 2100 00:00:00 GMT"}, 1e6, 1e10),
    ],
)
async def test_an_error_says_how_long_the_server_asks_to_wait(
    headers: dict[str, str], least: float, most: float
) -> None:
    remote, _ = client(httpx2.Response(429, headers=headers), attempts=1)
    with pytest.raises(RemoteError) as caught:
        await remote.chat(ASK, sampling=SAMPLING)
    assert caught.value.retry_after is not None
    assert least <= caught.value.retry_after <= most
    assert not caught.value.final
    silent, _ = client(httpx2.Response(429, headers={"retry-after": "soon"}), attempts=1)
    with pytest.raises(RemoteError) as caught:
        await silent.chat(ASK, sampling=SAMPLING)
    assert caught.value.retry_after is None


@pytest.mark.parametrize(
    ("answer", "error", "asked", "told"),
    [
        (httpx2.ConnectError("refused"), EngineError, 3, "cannot reach"),
        (httpx2.Response(500, text="x"), RemoteError, 3, "answered 500"),
        (httpx2.Response(400, json={"error": {"message": "bad"}}), RemoteError, 1, "bad"),
        (
            httpx2.Response(402, json={"error": {"message": "m", "code": "c"}}), RemoteError, 1,
            "answered 402",
        ),
        (
            httpx2.Response(
                400, json={"error": {"message": "x", "code": "context_length_exceeded"}}
            ),
            ContextOverflowError, 1, "too long",
        ),
        (httpx2.Response(500, headers={"x-should-retry": "false"}), RemoteError, 1, "500"),
        (httpx2.Response(200, text="<html>"), EngineError, 1, "invalid JSON"),
        (httpx2.Response(200, json=[]), EngineError, 1, "list"),
        (httpx2.Response(200, json={"choices": []}), EngineError, 1, "invalid chat completion"),
        (httpx2.Response(200, json={"choices": [{"message": {"content": 5}}]}), EngineError, 1,
         "invalid chat completion"),
    ],
)  # fmt: skip
async def test_what_cannot_be_had_is_an_engine_error(
    answer: Any, error: type[Exception], asked: int, told: str, no_pause: None
) -> None:
    remote, seen = client(answer, attempts=3)
    with pytest.raises(error, match=told) as caught:
        await remote.chat(ASK, sampling=SAMPLING)
    assert len(seen) == asked
    assert not remote.calls
    if isinstance(caught.value, RemoteError):
        assert caught.value.status == answer.status_code


async def test_a_server_may_ask_for_a_repeat(no_pause: None) -> None:
    headers = {"x-should-retry": "true"}
    remote, seen = client(httpx2.Response(404, headers=headers), completion())
    await remote.chat(ASK, sampling=SAMPLING)
    assert len(seen) == 2


async def test_the_record_can_be_bounded() -> None:
    remote, _ = client(completion(), keep=2)
    calls = [await remote.chat(ASK, sampling=SAMPLING) for _ in range(3)]
    assert remote.calls == calls[1:]
    assert len({c.id for c in calls}) == 3


async def test_it_speaks_to_our_own_gateway_with_token_ids() -> None:
    """And the gateway passes requests on to it: two gateways in a row have the same record."""
    inner, outer = Gateway(), Gateway()
    source = ScriptedClient(["one", ScriptedReply(None, (("f", "{}"),))])
    below = inner.open("r", "a", source)
    remote = remote_over(
        httpx2.ASGITransport(app=inner.app), below.base_url, below.api_key, "m", token_ids=True
    )
    above = outer.open("r", "a", remote)
    headers = {"authorization": f"Bearer {above.api_key}"}
    transport = httpx2.ASGITransport(app=outer.app)
    async with httpx2.AsyncClient(transport=transport, headers=headers) as http:
        for stream in (False, True):
            body = {"model": "m", "messages": [m.to_dict() for m in ASK], "stream": stream}
            answer = await http.post(above.base_url + "/chat/completions", json=body)
            assert answer.status_code == 200
    for theirs, ours in zip(source.calls, remote.calls, strict=True):
        assert ours.prompt_ids == theirs.prompt_ids
        assert ours.sampled.token_ids == theirs.sampled.token_ids
        assert ours.sampled.raw_logprobs == theirs.sampled.raw_logprobs
        assert [c.id for c in ours.reply.tool_calls] == [c.id for c in theirs.reply.tool_calls]
    await remote.close()


# ------------------------------------------------------------ other words for a field


def worded(*refused: str) -> tuple[list[set[str]], httpx2.MockTransport]:
    """A server that refuses these fields by name; and the fields of each request."""
    seen: list[set[str]] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        fields = set(json.loads(request.content))
        seen.append(fields & {"max_tokens", "max_completion_tokens", "seed"})
        found = next((name for name in refused if name in fields), None)
        if found is None:
            return completion()
        hint = "Use 'max_completion_tokens' instead." if found == "max_tokens" else ""
        told = {"message": f"Unsupported parameter: {found!r}. {hint}", "param": found}
        return httpx2.Response(400, json={"error": told})

    return seen, httpx2.MockTransport(handle)


async def test_a_server_is_asked_in_the_words_that_it_takes() -> None:
    seen, transport = worded("max_tokens", "seed")
    asked = remote_over(transport)
    for _ in range(2):
        assert (await asked.chat(ASK, sampling=SAMPLING, seed=3)).reply.content == "hello"
    old, new = {"max_tokens", "seed"}, {"max_completion_tokens"}
    assert seen == [old, new | {"seed"}, new, new]


async def test_the_clients_of_one_server_share_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, transport = worded("max_tokens")
    monkeypatch.setattr(
        "openai.DefaultAsyncHttpxClient", lambda **_: httpx2.AsyncClient(transport=transport)
    )
    servers = RemoteServers({"main": Endpoint("main", "http://up/v1", "big")})
    for i in range(2):
        await servers("main", SeedTree(i)).chat(ASK, sampling=SAMPLING)
    assert seen == [{"max_tokens"}, {"max_completion_tokens"}, {"max_completion_tokens"}]


async def test_another_refusal_stays_one() -> None:
    told = {"error": {"message": "temperature and max_completion_tokens are not supported"}}
    asked, seen = client(httpx2.Response(400, json=told))
    with pytest.raises(RemoteError, match="not supported"):
        await asked.chat(ASK, sampling=SAMPLING)
    assert len(seen) == 2  # with the other name, and no third time


async def test_a_request_without_a_limit_leaves_it_to_the_server() -> None:
    remote, seen = client(completion())
    await remote.chat(ASK, sampling=Sampling(max_tokens=UNBOUNDED))
    assert "max_tokens" not in json.loads(seen[0].content)


async def test_token_ids_are_asked_for_until_the_server_refuses_them() -> None:
    fields: list[set[str]] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        sent = set(json.loads(request.content)) & {"return_token_ids", "logprobs"}
        fields.append(sent)
        if not sent:
            return completion()
        told = {"message": "Unrecognized request argument supplied: return_token_ids"}
        return httpx2.Response(400, json={"error": told})

    transport = httpx2.MockTransport(handle)
    remote = remote_over(transport, token_ids=True)
    for _ in range(2):
        call = await remote.chat(ASK, sampling=SAMPLING)
        assert call.reply.content == "hello"
        assert call.usage == (7, 3)
    assert fields == [{"return_token_ids", "logprobs"}, set(), set()]


@pytest.mark.parametrize(
    ("sampling", "more", "words"),
    [
        (Sampling(), {"prompt": "x"}, "cannot continue raw prompts;"),
        (Sampling(max_thinking_tokens=9), {}, "cannot limit thinking tokens;"),
    ],
)
async def test_what_chat_completions_cannot_say_is_refused_before_it_is_sent(
    sampling: Sampling, more: dict[str, Any], words: str
) -> None:
    remote, seen = client()
    with pytest.raises(ConfigError, match=f"chat completions, which {words}"):
        await remote.chat((), sampling=sampling, **more)
    assert not seen
    assert not remote.calls


def test_a_server_that_is_slow_to_list_its_models_is_not_said_to_be_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        said = rf"^the server at '{url}' accepted the connection but did not answer within 0\.2 sec"
        with pytest.raises(ConfigError, match=said):
            served_models(Endpoint("policy", url, "m"), 0.2)


async def test_a_server_here_is_reached_without_a_proxy_and_without_the_environments_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys: list[str | None] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers.get("authorization"))
            self.answer({"data": [{"id": "m"}]})

        def do_POST(self) -> None:
            keys.append(self.headers.get("authorization"))
            self.rfile.read(int(self.headers["content-length"]))
            message = {"role": "assistant", "content": "hello"}
            self.answer({"choices": [{"message": message, "finish_reason": "stop"}]})

        def answer(self, said: Any) -> None:
            data = json.dumps(said).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENAI_API_KEY", "the environment's")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with listening(Server) as url:
        for key in (None, "own"):
            endpoint = Endpoint("main", f"{url}/v1", "m", key)
            servers = RemoteServers({"main": endpoint})
            call = await servers("main", SeedTree(0)).chat(ASK, sampling=SAMPLING)
            assert call.reply.content == "hello"
            assert served_models(endpoint) == ("m",)
            await servers.aclose()
    assert keys == [None, None, "Bearer own", "Bearer own"]


@pytest.mark.parametrize(
    ("chunks", "said"),
    [
        (['{"choices": [{"index": 0, "delta": {"content": "a"}}]}'], "the stream ended before"),
        (['{"choices": 1}'], "an invalid chunk"),
        (["<html>"], "invalid JSON"),
        (['{"error": {"message": "no room", "code": 503}}'], "answered 503: no room"),
    ],
)
async def test_a_stream_that_breaks_is_an_engine_error(chunks: list[str], said: str) -> None:
    body = "".join(f"data: {chunk}\n\n" for chunk in chunks)
    headers = {"content-type": "text/event-stream"}
    remote, _ = client(httpx2.Response(200, headers=headers, text=body))
    with pytest.raises(EngineError, match=said):
        await remote.chat(ASK, sampling=SAMPLING, on_text=lambda _: None)
    assert not remote.calls


@pytest.mark.parametrize("reason", ["abort", "error"])
async def test_a_reply_that_broke_off_is_no_reply(reason: str) -> None:
    remote, _ = client(completion(choice={"finish_reason": reason}))
    with pytest.raises(RemoteError, match=f"the finish reason '{reason}'"):
        await remote.chat(ASK, sampling=SAMPLING)
