"""Replies and errors of other servers, whole and streamed, in each dialect: what is told of
them, and recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.testing.upstream import remote_over

from tutelage.gateway import Gateway
from tutelage.gateway.call_log import CallLog

from .conftest import ASK

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 7, "completion_tokens": 1}
BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": ASK},
    "/responses": {"input": "hi"},
    "/messages": {"messages": ASK, "max_tokens": 9},
}
EACH = [(path, stream) for path in BODIES for stream in (False, True)]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.0)


def chunk(delta: dict[str, Any], end: str | None = None, **choice: Any) -> bytes:
    """An event of a stream."""
    told = {"choices": [{"index": 0, "delta": delta, "finish_reason": end, **choice}]}
    return b"data: " + json.dumps(told).encode() + b"\n\n"


def whole(message: dict[str, Any], end: str | None = "stop", **choice: Any) -> bytes:
    """A completion."""
    made = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": end}
    return json.dumps({"choices": [made | choice], "usage": USAGE}).encode()


class Case:
    """A gateway before a server that answers so; `lines` is its record after `ask`."""

    def __init__(self, tmp_path: Path, answer: httpx2.Response | Exception | bytes) -> None:
        self._path, self._answer, self.asked = tmp_path / "calls.jsonl", answer, 0

    def _respond(self, _: httpx2.Request) -> httpx2.Response:
        self.asked += 1
        if isinstance(self._answer, Exception):
            raise self._answer
        if isinstance(self._answer, httpx2.Response):
            return self._answer
        kind = "application/json" if self._answer[:1] == b"{" else "text/event-stream"
        return httpx2.Response(200, headers={"content-type": kind}, content=self._answer)

    async def ask(self, path: str = "/chat/completions", *, stream: bool = False) -> Any:
        """One request."""
        transport = httpx2.MockTransport(self._respond)
        client = remote_over(transport, "http://up/v1", "k", "far")
        log, gateway = CallLog(self._path), Gateway()
        session = gateway.open("r", "a", client, on_call=log)
        asgi = httpx2.ASGITransport(app=gateway.app)
        headers = {"authorization": f"Bearer {session.api_key}"}
        async with httpx2.AsyncClient(transport=asgi, headers=headers) as http:
            body = {"model": "m", "stream": stream} | BODIES[path]
            answer = await http.post(f"{session.base_url}{path}", json=body)
        await session.aclose()
        log.close()
        self.lines = [json.loads(line) for line in self._path.read_text().splitlines()]
        return answer


@pytest.mark.parametrize("reason", ["abort", "error"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_reason_that_is_an_error_is_told_as_one(
    tmp_path: Path, reason: str, stream: bool
) -> None:
    streamed = chunk({"content": "It "}) + chunk({}, reason) + DONE
    case = Case(tmp_path, streamed if stream else whole({"content": "It "}, reason))
    answer = await case.ask(stream=stream)
    assert f"the finish reason '{reason}'" in answer.text
    assert "stop" not in answer.text
    assert answer.status_code == (200 if stream else 502)
    assert len(case.lines) == stream, "of what is not streamed nothing had come"
    for line in case.lines:
        assert (line["finish_reason"], line["reply"]["content"]) == ("error", "It ")
        assert reason in line["error"]


@pytest.mark.parametrize("reason", ["eos", "end_turn"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_reason_of_another_name_is_an_end(
    tmp_path: Path, reason: str, stream: bool
) -> None:
    streamed = chunk({"content": "It"}) + chunk({}, reason) + DONE
    case = Case(tmp_path, streamed if stream else whole({"content": "It"}, reason))
    answer = await case.ask(stream=stream)
    assert answer.status_code == 200
    assert '"finish_reason":"stop"' in answer.text
    assert "error" not in answer.text


@pytest.mark.parametrize("code", [400, 502])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_any_text_has_its_status(
    tmp_path: Path, code: Any, stream: bool
) -> None:
    told = json.dumps({"error": {"message": "provider died", "code": code}}).encode()
    case = Case(tmp_path, b"data: " + told + b"\n\n" + DONE if stream else told)
    answer = await case.ask(stream=stream)
    assert answer.status_code == (400 if code == 400 else 502)
    assert "provider died" in answer.json()["error"]["message"]
    assert case.asked == 1


@pytest.mark.parametrize(("path", "stream"), EACH)
async def test_a_stream_is_whole_with_its_finish_reason(
    tmp_path: Path, path: str, stream: bool
) -> None:
    end = "stop" if stream else None  # without a reason it is cut
    answer = await Case(tmp_path, chunk({"content": "It is."}) + chunk({}, end)).ask(
        path, stream=True
    )
    assert "It is." in answer.text
    assert ("error" in answer.text.replace('"error":null', "")) is not stream


ARGUMENTS = {"expression": "1 + é"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": ARGUMENTS}}


@pytest.mark.parametrize(("path", "stream"), EACH)
async def test_arguments_that_are_an_object_are_json_text(
    tmp_path: Path, path: str, stream: bool
) -> None:
    streamed = chunk({"tool_calls": [{"index": 0, **CALL}]}) + chunk({}, "tool_calls") + DONE
    content = streamed if stream else whole({"tool_calls": [CALL]}, "tool_calls")
    case = Case(tmp_path, content)
    assert (await case.ask(path, stream=stream)).status_code == 200
    (line,) = case.lines
    (call,) = line["reply"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS


@pytest.mark.parametrize(
    ("error", "param", "code"),
    [
        ({"param": "tools[0]", "code": "invalid_function"}, "tools[0]", "invalid_function"),
        ({"code": 400, "param": None}, None, "upstream_error"),
    ],
)
@pytest.mark.parametrize("path", ["/chat/completions", "/responses"])
async def test_an_error_keeps_its_field_and_its_code(
    tmp_path: Path, error: dict[str, Any], param: str | None, code: str, path: str
) -> None:
    body = json.dumps({"error": {"message": "no", "type": "invalid_request_error", **error}})
    case = Case(tmp_path, httpx2.Response(400, content=body.encode()))
    answer = await case.ask(path)
    told = answer.json()["error"]
    assert (answer.status_code, told["param"], told["code"]) == (400, param, code)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"message": "the request exceeds the available context size"}, "context_length_exceeded"),
        ({"message": "n_ctx", "type": "exceed_context_size_error"}, "context_length_exceeded"),
        ({"message": "prompt is too long: 210000 tokens > 200000"}, "context_length_exceeded"),
        ({"message": "tool is too long", "type": "invalid_request_error"}, "upstream_error"),
    ],
)
async def test_a_prompt_that_is_too_long_is_known_in_their_words(
    tmp_path: Path, error: dict[str, Any], code: str
) -> None:
    answer = await Case(tmp_path, httpx2.Response(400, json={"error": error})).ask()
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
