"""A further dialect is one class and its entry among the others: no other part knows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest

from tutelage.gateway import app
from tutelage.gateway.completions import KeptAnswers, PendingCompletion, Piece
from tutelage.gateway.dialects import DIALECTS
from tutelage.gateway.dialects.dialect import Path
from tutelage.gateway.dialects.reading import RequestReader, read
from tutelage.gateway.errors import ApiError
from tutelage.gateway.reply import visible_content
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
    paths: Mapping[str, Mapping[str, Path]] = MappingProxyType(
        {"/v1/plain/models": {"GET": lambda path, body, attempt: {"names": attempt.models()}}}
    )

    def read(self, body: JSON, defaults: Sampling, stored: KeptAnswers) -> ChatRequest:
        given = read(_Ask, body)
        sampling = given.sampling(defaults, None)
        asked = (Message("user", given.ask),)
        return ChatRequest(given.model, asked, sampling, stream=given.stream)

    def write_reply(self, reply: PendingCompletion) -> JSON:
        return {"answer": visible_content(reply, reply.calls[0]), "id": reply.id}

    def writer(self, reply: PendingCompletion) -> Lines:
        return Lines()


class Lines:
    def text(self, index: int, new: Piece) -> bytes:
        return f"{new.text}|".encode()

    def finish(self, rests: Sequence[Piece]) -> bytes:
        return f"{rests[0].text}.".encode()

    def write_error(self, error: ApiError) -> bytes:
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
    assert refused.status_code == 400
    assert "`frequency_penalty` = 1" in refused.json()["error"]["message"]
    found = await case.http.get(case.attempt_session.base_url + "/plain/models")
    assert found.json() == {"names": ["policy"]}


async def test_without_its_entry_there_is_none(attempt_session: Open) -> None:
    answer: Any = await attempt_session("x").post("/plain", {"model": "m", "ask": "?"})
    assert answer.status_code == 404
