"""The client of other servers: what goes out, what is recorded, what is asked again."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from tests.loopback import replying
from tests.testing.upstream import remote_over

from tutelage.engine.endpoint import Endpoint, list_models
from tutelage.engine.remote import RemoteChatClient, RemoteServers
from tutelage.engine.script import ScriptedReply
from tutelage.errors import ConfigError, ContextOverflowError, EngineError, RemoteError
from tutelage.gateway import Gateway, ScriptedClient
from tutelage.rollouts.rows import build_rows
from tutelage.seeds import SeedTree
from tutelage.types import Constraint, Message, Sampling, StopReason, ToolCall, ToolSpec

ASK = [Message("user", "hi")]
SAMPLING = Sampling(temperature=0.5, max_tokens=9)
TOOLS = (ToolSpec("f", "F.", {"type": "object", "properties": {}}),)


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
    assert list(remote.calls) == [call]
    assert build_rows([call]) == []
    await remote.close()


@pytest.mark.parametrize(
    ("constraint", "sent"),
    [
        (Constraint("f"), {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
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
    ("answer", "error", "asked", "told"),
    [
        (httpx2.ConnectError("refused"), EngineError, 3, "cannot reach"),
        (httpx2.Response(500, text="x"), RemoteError, 3, "answered 500"),
        (httpx2.Response(400, json={"error": {"message": "bad"}}), RemoteError, 1, "bad"),
        (
            httpx2.Response(
                400, json={"error": {"message": "x", "code": "context_length_exceeded"}}
            ),
            ContextOverflowError, 1, "too long",
        ),
        (httpx2.Response(500, headers={"x-should-retry": "false"}), RemoteError, 1, "500"),
        (httpx2.Response(200, text="<html>"), EngineError, 1, "invalid JSON"),
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
    with pytest.raises(ConfigError, match=f"chat completions API at .* {words}"):
        await remote.chat((), sampling=sampling, **more)
    assert not seen
    assert not remote.calls


async def test_a_server_here_is_reached_without_a_proxy_and_without_the_environments_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys: list[str | None] = []

    def reply(asked: Any, body: Any) -> tuple[int, Any]:
        keys.append(asked.headers["authorization"])
        message = {"role": "assistant", "content": "hello"}
        said = {"choices": [{"message": message, "finish_reason": "stop"}]}
        return 200, {"data": [{"id": "m"}]} if body is None else said

    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENAI_API_KEY", "the environment's")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with replying(reply) as url:
        for key in (None, "own"):
            endpoint = Endpoint("main", f"{url}/v1", "m", key)
            servers = RemoteServers({"main": endpoint})
            call = await servers("main", SeedTree(0)).chat(ASK, sampling=SAMPLING)
            assert call.reply.content == "hello"
            assert list_models(endpoint) == ("m",)
            await servers.aclose()
    assert keys == [None, None, "Bearer own", "Bearer own"]
