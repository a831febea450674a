"""Paths, the endpoints that they lead to, and what is said of those that lead nowhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tutelage.gateway import Gateway, ScriptedClient
from tutelage.gateway.routes import Routes

from .conftest import ASK, Open

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")

ROUTES = Routes(
    {
        "/v1/models": "models",
        "/v1/models/{model:path}": "model",
        "/v1/responses/{response}": "response",
        "/v1/responses/{response}/cancel": "cancel",
    }
)
ATTEMPT = {"rollout": "r 1", "attempt": "a"}


@pytest.mark.parametrize(
    ("path", "endpoint", "said"),
    [
        ("/v1/models", "models", {}),
        ("/v1/models/a/b", "model", {"model": "a/b"}),
        ("/v1/responses/7", "response", {"response": "7"}),
        ("/rollout/r 1/attempt/a/v1/models", "models", ATTEMPT),
        ("/rollout/r 1/attempt/a/agent/v1/v1/models", "models", ATTEMPT | {"agent": "v1"}),
        ("/agent/g/v1/responses/7/cancel", "cancel", {"agent": "g", "response": "7"}),
    ],
)
def test_path_leads_to_its_endpoint_with_what_it_says(
    path: str, endpoint: str, said: dict[str, str]
):
    assert ROUTES.find(path) == (endpoint, said)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/v1",
        "/models",
        "/v1/responses",
        "/v1/responses/7/cancel/8",
        "/v1/models\n",
        "/v1/v1/models",
        "/rollout/r/v1/models",
        "/rollout/r/attempt/a/agent//v1/models",
        "/agent/g/rollout/r/attempt/a/v1/models",
        "/rollout/r/attempt/a/models",
    ],
)
def test_other_paths_lead_nowhere(path: str):
    assert ROUTES.find(path)[0] is None


OF_ANTHROPIC = {"anthropic-version": "2023-06-01"}


@pytest.mark.parametrize(
    ("path", "headers", "hint"),
    [
        ("/v1/v1/messages", {}, "ANTHROPIC_BASE_URL must not end in /v1"),
        ("/v1/v1/messages", OF_ANTHROPIC, "ANTHROPIC_BASE_URL must not end in /v1"),
        ("/v1/v1/models", OF_ANTHROPIC, "ANTHROPIC_BASE_URL must not end in /v1"),
        ("/v1/v1/chat/completions", {}, "OPENAI_BASE_URL must end in /v1 only once"),
        ("/chat/completions", {}, "OPENAI_BASE_URL must end in /v1."),
        ("/responses/resp_1", {}, "OPENAI_BASE_URL must end in /v1."),
        ("/models", {}, "OPENAI_BASE_URL must end in /v1."),
        ("/messages", {}, "ANTHROPIC_BASE_URL must not end in /v1, but the path must"),
        ("/v1/responses/", {}, "remove the trailing slash"),
        ("/v1/models/", {}, "remove the trailing slash"),
        ("/v1/embeddings", {}, "_BASE_URL must end in /v1, ANTHROPIC_BASE_URL must not end in /v1"),
    ],
)
@pytest.mark.parametrize("attempt", [True, False])
async def test_a_path_that_leads_nowhere_says_what_to_change(
    attempt_session: Open, path: str, headers: dict[str, str], hint: str, attempt: bool
) -> None:
    case = attempt_session()
    base = case.base.removesuffix("/v1") if attempt else case.gateway.url
    answer = await case.http.post(base + path, headers=headers)
    assert answer.status_code == 404
    told = answer.json()["error"]
    assert hint in told["message"]
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
        ("POST", "/models", {}, "GET", False),
        ("POST", "/models", OF_ANTHROPIC, "GET", True),
        ("PUT", "/responses/x", {}, "GET, DELETE", False),
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
