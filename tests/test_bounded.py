"""Every reader of what models, servers and clients write keeps a bound on its depth and length."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx2
import pytest
from tests.loopback import listening
from tests.testing.upstream import remote_over

from tutelage.agents.react import ReactAgent
from tutelage.bounded import (
    DIRECT,
    RepeatedKeyError,
    bypass_proxy_on_loopback,
    json_lines,
    reject_repeats,
)
from tutelage.errors import EngineError
from tutelage.orchestration.execution.prompts import node_prompt
from tutelage.orchestration.plan.dag import Node, Plan
from tutelage.policy.codec import Codec
from tutelage.tools.execute import execute_tool_calls
from tutelage.tools.tool import tool
from tutelage.tracing.names import modern
from tutelage.tracing.otlp import OtlpError, read_otlp
from tutelage.types import Message, Sampling, ToolCall

DEEP = (
    "[" * 100_000,
    "[" * 900 + "]" * 900,
    '{"a":' * 900 + "1" + "}" * 900,
    '{"x":' + "[" * 150 + "]" * 150 + "}",
)


@tool
def total(values: list[Any]) -> str:
    """Add up.

    Args:
        values: what to add
    """
    return str(len(values))


async def test_tool_arguments(tiny: Any) -> None:
    """The model hears of it, and the conversation that holds them can be rendered."""
    codec: Codec = tiny("qwen2").codec
    for deep in (
        *DEEP,
        '{"values": ' + "[" * 900 + "]" * 900 + "}",
        "\ud800",
        '{"values": ["\ud800"]}',
    ):
        call = ToolCall("c", "total", deep)
        (result,) = await execute_tool_calls([call], {"total": total})
        assert result.error == "invalid_arguments", deep[:40]
        history = (Message("user", "hi"), Message("assistant", None, (call,)))
        codec.render(history)


def test_an_action_of_a_react_agent() -> None:
    for deep in DEEP:
        agent = ReactAgent({"total": total}, Sampling())
        (called,) = agent.read_text(f"Action: total\nAction Input: {deep}", "t").calls
        written = called.arguments
        assert written == deep or json.loads(written) == {"values": deep}


def test_a_call_in_the_text_of_a_model(tiny: Any) -> None:
    codec: Codec = tiny("qwen2").codec
    for deep in DEEP:
        text = f'<tool_call>{{"name": "f", "arguments": {{"a": {deep}}}}}</tool_call>'
        parsed = codec.parse(codec.encode(text), lambda i: f"c{i}")
        assert not parsed.message.tool_calls
        assert parsed.errors


def test_a_reference_into_another_nodes_output() -> None:
    plan = Plan("x", (Node("a"), Node("b", {"t": "<node-0>.a"})))
    for deep in DEEP:
        assert f"- t: {deep}.a" in node_prompt(plan, 1, {0: deep})


def test_spans_of_a_client() -> None:
    for deep in DEEP:
        assert "gen_ai.request.temperature" not in modern({"llm.invocation_parameters": deep})
        with pytest.raises(OtlpError):
            read_otlp(deep.encode(), "application/json")


@pytest.mark.parametrize("deep", DEEP)
@pytest.mark.parametrize("status", [200, 400])
async def test_a_servers_reply_of_any_depth(deep: str, status: int) -> None:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(status, content=deep.encode()))
    client = remote_over(transport, attempts=1)
    with pytest.raises(EngineError):
        await client.chat([Message("user", "hi")], sampling=Sampling())


async def test_half_a_surrogate_pair_that_an_agent_says_is_sent_as_a_whole_character() -> None:
    def reply(request: httpx2.Request) -> httpx2.Response:
        said = json.loads(request.content)["messages"][0]["content"]
        message = {"role": "assistant", "content": said}
        return httpx2.Response(200, json={"choices": [{"message": message}]})

    client = remote_over(httpx2.MockTransport(reply), attempts=1)
    call = await client.chat([Message("user", "a \ud83d\ude00 \ud83d")], sampling=Sampling())
    assert call.reply.content == "a \U0001f600 \ufffd"


class _CountedKey(str):
    compared = 0

    def __eq__(self, other: object) -> bool:
        _CountedKey.compared += 1
        return str(self) == other

    __hash__ = str.__hash__


def test_a_key_that_stands_twice_among_many_is_found_without_comparing_each_with_each() -> None:
    keys = [_CountedKey(f"k{i}") for i in range(300)]
    _CountedKey.compared = 0
    with pytest.raises(RepeatedKeyError, match="'k299' stands twice"):
        reject_repeats([(key, 0) for key in (*keys, _CountedKey("k299"))])
    assert _CountedKey.compared < 3000


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "localhost,127.0.0.1,::1"),
        ({"NO_PROXY": "corp.example, 10.0.0.1"}, "corp.example,10.0.0.1,localhost,127.0.0.1,::1"),
        ({"no_proxy": "localhost"}, "localhost,127.0.0.1,::1"),
        ({"NO_PROXY": "*", "no_proxy": "*"}, "*"),
    ],
)
def test_no_proxy_has_this_machine_in_both_spellings(before: dict[str, str], after: str) -> None:
    env = {**before, "HTTP_PROXY": "http://proxy.example:3128"}
    for _ in range(2):
        bypass_proxy_on_loopback(env)
        assert (env["NO_PROXY"], env["no_proxy"]) == (after, after)
    assert bypass_proxy_on_loopback({"PATH": "/bin"}) == {
        "PATH": "/bin"
    }  # without a proxy as it was


async def test_our_clients_send_nothing_for_this_machine_to_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)  # a proxy is asked for a whole URL
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    with listening(Server) as proxy:
        monkeypatch.setenv("ALL_PROXY", proxy)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        port = proxy.rpartition(":")[2]
        async with httpx2.AsyncClient(mounts=DIRECT) as client:
            for host in ("127.0.0.1", "localhost", "far.example"):
                await client.get(f"http://{host}:{port}/x")
    assert asked == ["/x", "/x", f"http://far.example:{port}/x"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_of_json_end_with_a_newline_alone(end: str) -> None:
    """Other line ends that Unicode knows may stand in a JSON string."""
    values = [{"x": f"a{c}b"} for c in "\u2028\u2029\x85\x1e\u00e9"]
    text = end * 2 + end.join(json.dumps(value, ensure_ascii=False) for value in values)
    for given in (text, text.encode()):
        lines = [*json_lines(given)]
        assert [json.loads(line) for _, line in lines] == values
        assert [number for number, _ in lines] == [3, 4, 5, 6, 7]
