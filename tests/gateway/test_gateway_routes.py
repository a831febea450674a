"""Paths, the endpoints that they lead to, and what is said of those that lead nowhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tutelage.gateway import Gateway, ScriptedClient

from .conftest import ASK, Open

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")

OF_ANTHROPIC = {"anthropic-version": "2023-06-01"}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models",
        "/rollout/roll_0/attempt/att_0/v1/models",
        "/rollout/roll_0/attempt/att_0/agent/v1/v1/models",
        "/agent/g/v1/models",
        "/v1/models/policy",
    ],
)
async def test_a_path_may_begin_with_attempt_and_agent(attempt_session: Open, path: str) -> None:
    case = attempt_session()
    assert (await case.http.get(case.gateway.url + path)).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/models",
        "/v1/responses/7/cancel",
        "/v1/v1/models",
        "/rollout/r/v1/models",
        "/rollout/r/attempt/a/agent//v1/models",
        "/agent/g/rollout/r/attempt/a/v1/models",
        "/rollout/r/attempt/a/models",
    ],
)
async def test_other_paths_lead_nowhere(attempt_session: Open, path: str) -> None:
    case = attempt_session()
    answer = await case.http.get(case.gateway.url + path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/v1/messages", {}),
        ("/v1/v1/models", OF_ANTHROPIC),
        ("/v1/v1/chat/completions", {}),
        ("/chat/completions", {}),
        ("/messages", {}),
        ("/v1/embeddings", {}),
    ],
)
@pytest.mark.parametrize("attempt", [True, False])
async def test_a_path_that_leads_nowhere_says_what_to_change(
    attempt_session: Open, path: str, headers: dict[str, str], attempt: bool
) -> None:
    case = attempt_session()
    base = case.base.removesuffix("/v1") if attempt else case.gateway.url
    answer = await case.http.post(base + path, headers=headers)
    assert answer.status_code == 404
    told = answer.json()["error"]
    assert "OPENAI_BASE_URL must end in /v1, ANTHROPIC_BASE_URL must not" in told["message"]
    assert path in told["message"]
    assert "/v1/chat/completions, /v1/responses, /v1/messages, /v1/completions" in told["message"]
    assert "/v1/models, /v1/models/{model}, " in told["message"]
    by_anthropic = bool(headers) or "/messages" in path
    assert (answer.json().get("type") == "error") == by_anthropic
    assert told["type"] == ("not_found_error" if by_anthropic else "invalid_request_error")
    named = answer.json().get("request_id")
    assert named == (answer.headers["x-request-id"] if by_anthropic else None)
    assert answer.headers["x-request-id"]
    assert ("request-id" in answer.headers) == by_anthropic


async def test_a_slash_too_many_is_taken_away(attempt_session: Open) -> None:
    case = attempt_session()
    answer = await case.http.post(f"{case.base}/responses/")
    assert (answer.status_code, answer.headers["location"]) == (307, f"{case.base}/responses")


def test_the_clients_show_what_to_change(live: Callable[..., Gateway]) -> None:
    env = live().open("r", "a", ScriptedClient(["x"])).env()
    key, url = env["OPENAI_API_KEY"], env["OPENAI_BASE_URL"]
    asked: dict[str, Any] = {"model": "m", "messages": ASK}
    with pytest.raises(
        anthropic.NotFoundError, match="ANTHROPIC_BASE_URL must not end in /v1"
    ) as one:
        anthropic.Anthropic(base_url=url, api_key=key).messages.create(max_tokens=9, **asked)
    assert one.value.request_id
    without = openai.OpenAI(base_url=url.removesuffix("/v1"), api_key=key)
    with pytest.raises(openai.NotFoundError, match="OPENAI_BASE_URL must end in /v1") as other:
        without.chat.completions.create(**asked)
    assert other.value.request_id


@pytest.mark.parametrize(
    ("method", "path", "headers", "allowed", "by_anthropic"),
    [
        ("GET", "/chat/completions", {}, "POST", False),
        ("GET", "/messages", {}, "POST", True),
        ("PUT", "/messages/count_tokens", {}, "POST", True),
        ("POST", "/models", {}, "GET, HEAD", False),
        ("POST", "/models", OF_ANTHROPIC, "GET, HEAD", True),
    ],
)
async def test_a_method_that_a_path_does_not_have(
    attempt_session: Open, method: str, path: str, headers: Any, allowed: str, by_anthropic: bool
) -> None:
    case = attempt_session()
    answer = await case.http.request(method, case.base + path, headers=headers)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    told = answer.json()
    assert f"method {method} " in told["error"]["message"]
    assert f"/v1{path}'; use {allowed}" in told["error"]["message"]
    assert (told.get("type") == "error") == by_anthropic
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("name", ["messages", "x"])
async def test_an_attempt_may_be_called_as_anthropics_path(
    attempt_session: Open, name: str
) -> None:
    gateway = Gateway()
    found = gateway.open(name, name, ScriptedClient(["x"]))
    case = attempt_session(gateway=gateway)
    answer = await case.http.get(f"{found.base_url}/models/none")
    assert answer.json()["error"]["code"] == "wrong_attempt"
    assert "request-id" not in answer.headers
