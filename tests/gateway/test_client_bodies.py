"""What real clients sent over four turns, sent again: each is answered, in the clients' own types,
and makes the training rows that it made then.

`python -m benchmarks.gateway.matrix --record tests/gateway/bodies` writes the bodies. The model is
the same script, and identifiers come from the name of the attempt, so what a client handed back is
what it is answered here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
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
from pydantic import BaseModel, TypeAdapter

from tutelage.gateway import Gateway
from tutelage.rollouts.rows import build_rows
from tutelage.types import Call

from .conftest import events

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
FURTHER = {"token_ids", "prompt_token_ids", "store", "name", "bytes"}
"""What vLLM adds where it is asked for; what OpenAI's servers send and this version of the package
leaves out: whether a response is stored, and in events a function's name and a token's bytes."""


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


def parsed(of: TypeAdapter[Any] | type[BaseModel], data: Any) -> Any:
    """The value, without any field that its types do not know."""
    made = of.validate_python(data) if isinstance(of, TypeAdapter) else of.model_validate(data)
    assert set(strangers(made)) <= FURTHER, data
    return made


def strangers(value: Any) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from value.model_extra or {}
        for name in type(value).model_fields:
            yield from strangers(getattr(value, name))
    elif isinstance(value, list):
        for each in value:
            yield from strangers(each)
