"""Paths, the endpoints that they lead to, and what is said of those that lead nowhere."""

from __future__ import annotations

import pytest

from .conftest import Open

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
    ("path", "headers"),
    [
        ("/v1/v1/messages", {}),
        ("/v1/v1/models", OF_ANTHROPIC),
        ("/chat/completions", {}),
        ("/v1/embeddings", {}),
    ],
)
async def test_a_path_that_leads_nowhere_says_what_to_change(
    attempt_session: Open, path: str, headers: dict[str, str]
) -> None:
    case = attempt_session()
    for base in (case.base.removesuffix("/v1"), case.gateway.url):
        answer = await case.http.post(base + path, headers=headers)
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert "OPENAI_BASE_URL must end in /v1, ANTHROPIC_BASE_URL must not" in error["message"]
        assert path in error["message"]
        by_anthropic = bool(headers) or "/messages" in path
        kind = "not_found_error" if by_anthropic else "invalid_request_error"
        assert error["type"] == kind
        assert ("request-id" in answer.headers) == by_anthropic
