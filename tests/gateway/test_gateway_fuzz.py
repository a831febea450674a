"""Whatever is sent, the gateway answers with a JSON error or a reply, and goes on serving."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tutelage.gateway import Gateway, ScriptedClient

from .conftest import ASK, CALCULATOR

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.sampled_from([1 << 62, "user", "assistant", "tool", "function", "required"]),
)
KEYS = st.sampled_from(
    ["type", "role", "content", "name", "function", "id", "text", "schema", "json_schema",
     "arguments", "parameters", "call_id", "output", "x"]
)  # fmt: skip
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
CHAT_FIELDS = [
    "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "stop",
    "seed", "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "n", "logprobs",
    "top_logprobs", "stream", "stream_options", "return_token_ids", "user", "logit_bias", "audio",
]  # fmt: skip
RESPONSE_FIELDS = [
    "model", "input", "instructions", "previous_response_id", "tools", "tool_choice", "text",
    "temperature", "max_output_tokens", "stream", "store", "include", "reasoning", "metadata",
]  # fmt: skip
GOOD: dict[str, dict[str, Any]] = {
    "/chat/completions": {"model": "m", "messages": ASK, "tools": [CALCULATOR], "n": 1},
    "/responses": {"model": "m", "input": "hi"},
}


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    path = draw(st.sampled_from(sorted(GOOD)))
    names = CHAT_FIELDS if path.startswith("/chat") else RESPONSE_FIELDS
    changed = draw(st.dictionaries(st.sampled_from(names), JSON, max_size=4))
    body = orjson.dumps({**GOOD[path], **changed})
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(body)))
        body = body[:at] + draw(st.binary(max_size=4)) + body[at + 1 :]
    return path, body


@pytest.fixture
def asked() -> Any:
    """Send one request to a fresh attempt."""
    gateway = Gateway()

    async def send(path: str, body: bytes, headers: dict[str, str]) -> list[httpx2.Response]:
        attempt_session = gateway.open("r", "a", ScriptedClient(["ok"]))
        known = {"authorization": f"Bearer {attempt_session.api_key}"}
        transport = httpx2.ASGITransport(app=gateway.app)
        async with httpx2.AsyncClient(transport=transport) as http:
            url = f"{gateway.url}/v1"
            found = await http.post(url + path, content=body, headers=known | headers)
            after = await http.post(
                url + "/chat/completions", json=GOOD["/chat/completions"], headers=known
            )
        await attempt_session.aclose()
        return [found, after]

    yield lambda *given: asyncio.run(send(*given))
    gateway.close()


@pytest.mark.full
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(given=bodies())
def test_any_body_gets_an_answer(asked: Any, given: tuple[str, bytes]) -> None:
    answer, after = asked(*given, {})
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert error["message"]
        assert error["type"] in ("invalid_request_error", "not_found_error")
    assert after.status_code == 200


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from(
        ["x-tutelage-agent", "x-stainless-retry-count", "idempotency-key", "content-encoding",
         "content-length", "content-type"]),
    value=st.text(st.characters(min_codepoint=33, max_codepoint=255), max_size=20),
)  # fmt: skip
def test_any_header_gets_an_answer(asked: Any, name: str, value: str) -> None:
    body = orjson.dumps(GOOD["/responses"])
    answer, after = asked("/responses", body, {name: value.encode("latin-1")})
    assert answer.status_code in (200, 400, 413, 415)
    assert after.status_code == 200
