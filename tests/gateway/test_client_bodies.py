"""What real clients sent over four turns, sent again: each is answered, in the clients' own types,
and makes the training rows that it made then.

`python -m benchmarks.gateway.matrix --record tests/gateway/bodies` writes the bodies. The model is
the same script, and identifiers come from the name of the attempt, so what a client handed back is
what it is answered here.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import anthropic.types
import httpx2
import pytest
from benchmarks.gateway.conversation import handed_back, scripted, turns_of
from benchmarks.gateway.recording import whole
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tutelage.gateway import Gateway
from tutelage.rollouts.rows import build_rows
from tutelage.types import Call

from .conftest import events
from .test_openai_types import parsed

FOLDER = Path(__file__).parent / "bodies"
FILES = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))}
CELLS = {id: cell for file in FILES.values() for id, cell in file["cells"].items()}
TYPES: dict[str, tuple[Any, Any]] = {
    "/v1/chat/completions": (ChatCompletion, ChatCompletionChunk),
    "/v1/responses": (Response, TypeAdapter(ResponseStreamEvent)),
    "/v1/messages": (
        anthropic.types.Message,
        TypeAdapter(anthropic.types.RawMessageStreamEvent),
    ),
    "/v1/completions": (Completion, Completion),
}
"""Of an answer, and of an event of its stream. Chunks of completions are Completions too, but that
the type does not know that a choice has not ended."""


@pytest.mark.parametrize("id", CELLS)
async def test_a_recorded_conversation_is_answered_and_recorded_as_it_was(id: str) -> None:
    cell = CELLS[id]
    chat, gateway = scripted(cell["model"], id), Gateway()
    attempt = gateway.open("matrix", id, chat)
    try:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=gateway.app)) as http:
            for request in whole(cell["requests"]):
                answer = await http.request(
                    request["method"],
                    attempt.base_url + request["path"].removeprefix("/v1"),
                    json=request["body"],
                    headers=request["headers"] | key_of(request, attempt.api_key),
                )
                assert answer.status_code == request["status"], answer.text
                if answer.status_code == 200:
                    check_types(request, answer)
    finally:
        await attempt.aclose()
    assert len(chat.calls) == 4
    assert len(build_rows(chat.calls)) == cell["rows"]
    if cell["rows"] == 1:
        check_continued(chat.calls)


def key_of(request: dict[str, Any], key: str) -> dict[str, str]:
    name = request["key"]
    return {name: f"Bearer {key}" if name == "authorization" else key}


def check_types(request: dict[str, Any], answer: httpx2.Response) -> None:
    """The answer is what the clients' packages say it is, field by field."""
    whole_type, event_type = TYPES[request["path"]]
    if not request["body"].get("stream"):
        parsed(whole_type, answer.json())
        return
    data = [each for each in events(answer.text) if each != "[DONE]"]
    assert data
    for each in data:
        event = json.loads(each)
        if event_type is Completion:
            for choice in event["choices"]:
                choice["finish_reason"] = choice["finish_reason"] or "stop"
        parsed(event_type, event)


def check_continued(calls: list[Call]) -> None:
    """Each prompt begins with the one before and what was sampled after it, token for token, and
    the turns that the client handed back are those that were said."""
    for before, after in pairwise(calls):
        known = before.prompt_ids + before.sampled.token_ids
        assert after.prompt_ids[: len(known)] == known
    assert [handed_back(turn) for turn in turns_of(calls[-1].messages)] == [
        handed_back(call.reply) for call in calls[:-1]
    ]


# ---------------------------------------------------------------- the fixtures


def test_every_client_and_every_api_is_among_them() -> None:
    clients = {file["client"] for file in FILES.values()}
    assert clients >= {"openai", "anthropic", "litellm", "agno", "openai-agents", "langgraph"}
    assert clients >= {"agent-framework", "pydantic-ai", "smolagents"}
    for client in ("openai", "anthropic", "litellm"):
        found = [id for id in CELLS if id.startswith(client)]
        assert any(id.endswith("tools") for id in found)
        assert any(id.endswith("tools-stream") for id in found)
        # Only prompts that are texts, and come back encoded again, may be rows of their own.
        assert all(CELLS[id]["rows"] == 1 for id in found if "completions-text" not in id)
    requests = [r for cell in CELLS.values() for r in whole(cell["requests"])]
    assert {r["path"] for r in requests} == set(TYPES)
    # What is refused is a thread that a tool runner asks for, before it goes on without one.
    refused = [r["body"] for r in requests if r["status"] != 200]
    assert all("thread" in body for body in refused)


def test_they_are_small_and_name_no_machine_and_no_key() -> None:
    texts = [path.read_text("utf-8") for path in FOLDER.glob("*.json")]
    assert sum(len(text.encode()) for text in texts) < 400_000
    for words in ("127.0.0.1", "localhost", "Bearer", "x-stainless-os", "x-stainless-arch"):
        assert not [text for text in texts if words in text]
