"""A further dialect is one class and its entry among the others: no other part knows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from starlette.types import Scope

from tutelage.gateway import app
from tutelage.gateway.clients import Clients
from tutelage.gateway.dialects import DIALECTS
from tutelage.gateway.dialects.dialect import Path
from tutelage.gateway.dialects.reading import RequestReader, read
from tutelage.gateway.dialects.stored import StoredResponses
from tutelage.gateway.errors import ApiError
from tutelage.gateway.http import request_headers
from tutelage.gateway.reply import ChatReply, Piece, shown_content
from tutelage.gateway.request import ChatRequest
from tutelage.types import JSON, Message, Sampling

from .conftest import Open


class _Ask(RequestReader):
    ask: str


class Plain:
    """One question, one answer as lines of text."""

    name, path, prefix = "plain", "/v1/plain", "plain-"
    prompt_field = "ask"
    request = _Ask
    clients = Clients("PLAIN_KEY", "PLAIN_URL", True, b"plain-key", id_header=b"plain-id")
    paths: Mapping[str, Mapping[str, Path]] = MappingProxyType(
        {"/v1/plain/models": {"GET": lambda path, body, attempt: {"names": attempt.models()}}}
    )

    def read(self, body: JSON, defaults: Sampling, stored: StoredResponses) -> ChatRequest:
        given = read(_Ask, body)
        sampling = given.sampling(defaults, None)
        asked = (Message("user", given.ask),)
        return ChatRequest(given.model, asked, sampling, stream=given.stream)

    def written(self, reply: ChatReply) -> JSON:
        return {"answer": shown_content(reply, reply.choices[0]), "id": reply.answer.id}

    def writer(self, reply: ChatReply) -> Lines:
        return Lines()

    def asked_by(self, scope: Scope) -> bool:
        return "/v1/plain/" in scope["path"] or b"plain-version" in request_headers(scope)

    def error(self, error: ApiError) -> JSON:
        return {"wrong": error.message}


class Lines:
    def text(self, index: int, new: Piece) -> bytes:
        return f"{new.text}|".encode()

    def finish(self, reply: ChatReply, rests: Sequence[Piece]) -> bytes:
        return f"{rests[0].text}.".encode()

    def failed(self, error: ApiError) -> bytes:
        return error.message.encode()


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "DIALECTS", (*DIALECTS, Plain()))


async def test_a_fifth_dialect(plain: None, attempt_session: Open) -> None:
    case = attempt_session("It is 2.", "It is 2.")
    answer = (await case.post("/plain", {"model": "m", "ask": "1 + 1?"})).json()
    assert answer["answer"] == "It is 2."
    assert answer["id"].startswith("plain-")
    assert case.client.calls[0].messages == (Message("user", "1 + 1?"),)
    streamed = await case.post("/plain", {"model": "m", "ask": "1 + 1?", "stream": True})
    assert streamed.text.replace("|", "") == "It is 2.."
    refused = await case.post("/plain", {"model": "m", "ask": "?", "frequency_penalty": 1})
    assert refused.json() == {"wrong": "`frequency_penalty` = 1: unknown parameter"}
    found = await case.http.get(case.attempt_session.base_url + "/plain/models")
    assert found.json() == {"names": ["policy"]}


async def test_errors_outside_of_its_paths_have_its_form_for_its_clients(
    plain: None, attempt_session: Open
) -> None:
    case = attempt_session("x")
    base = case.gateway.url + "/v1"
    for url, headers in ((f"{base}/plain/nowhere", {}), (f"{base}/models", {"plain-version": "1"})):
        answer = await case.http.get(url, headers=headers | {"authorization": "Bearer wrong"})
        assert answer.status_code in (401, 404)
        assert list(answer.json()) == ["wrong"]
    openais = (await case.http.get(f"{base}/nowhere")).json()
    anthropics = (await case.http.get(f"{base}/messages/nowhere")).json()
    assert (list(openais), list(anthropics)) == (["error"], ["type", "error", "request_id"])


async def test_its_clients_send_their_key_and_are_told_where_to_go_in_their_own_words(
    plain: None, attempt_session: Open
) -> None:
    case = attempt_session("It is 2.")
    url, session = case.gateway.url, case.attempt_session
    body = {"model": "m", "ask": "1 + 1?"}
    sent = {"authorization": "", "plain-key": session.api_key}
    known = await case.http.post(f"{url}/v1/plain", json=body, headers=sent)
    assert known.json()["answer"] == "It is 2."
    own = {"authorization": "", "plain-version": "1"}
    unknown = await case.http.post(f"{url}/v1/plain", json=body, headers=own | {"plain-key": "x"})
    assert unknown.json()["wrong"].startswith("unknown API key in `plain-key: KEY`")
    assert "PLAIN_KEY" in unknown.json()["wrong"]
    assert unknown.headers["plain-id"] == unknown.headers["x-request-id"]
    assert "request-id" not in unknown.headers
    twice = await case.http.post(f"{url}/v1/v1/plain", json=body, headers=own)
    assert "PLAIN_URL must not end in /v1, which its client adds" in twice.json()["wrong"]
    nowhere = await case.http.get(f"{url}/v1/nowhere", headers=own)
    both = "ANTHROPIC_BASE_URL must not end in /v1, PLAIN_URL must not end in /v1"
    assert both in nowhere.json()["wrong"]


async def test_without_its_entry_there_is_none(attempt_session: Open) -> None:
    answer: Any = await attempt_session("x").post("/plain", {"model": "m", "ask": "?"})
    assert answer.status_code == 404
