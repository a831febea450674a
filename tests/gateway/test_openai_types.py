"""Every reply is what OpenAI's own package says it is: each object and event, field by field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types import ErrorObject, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tutelage.engine.script import ScriptedReply
from tutelage.gateway.dialects import DIALECTS

from .conftest import CALCULATOR, FLAT_CALCULATOR, TOOL_TURN, Case, Open, events

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
FURTHER = {"token_ids", "prompt_token_ids", "store", "name", "bytes"}
"""What vLLM adds where it is asked for; what OpenAI's servers send and this version of the package
leaves out: whether a response is stored, and in events a function's name and a token's bytes."""
REPLIES = {
    "text": "It is 2, señor.",
    "empty": ScriptedReply(""),
    "text and tools": TOOL_TURN,
    "tools": ScriptedReply(None, TOOL_TURN.tool_calls * 2),
}
ALSO = {
    "tools": [ScriptedReply(None, TOOL_TURN.tool_calls)],
    "options": ['{"answer": 2}'],
}
"""What a script has besides for bodies that not every reply fits."""
CHAT_BODIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "cut": {"max_tokens": 3},
    "several": {"n": 3},
    "tools": {"tools": [CALCULATOR], "tool_choice": "required"},
    "logprobs": {"logprobs": True, "top_logprobs": 20},
    "token ids": {"logprobs": True, "return_token_ids": True},
}
RESPONSE_BODIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "cut": {"max_output_tokens": 3},
    "tools": {"tools": [FLAT_CALCULATOR], "tool_choice": "auto", "parallel_tool_calls": False},
    "logprobs": {"include": ["message.output_text.logprobs"]},
    "options": {
        "instructions": "Be brief.", "metadata": {"k": "v"}, "store": False, "user": "u",
        "text": {"format": {"type": "json_object"}}, "temperature": 0.5, "top_p": 0.5,
    },
}  # fmt: skip


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


def streamed(text: str) -> list[Any]:
    *data, done = events(text)
    assert done == "[DONE]"
    return [json.loads(each) for each in data]


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("body", CHAT_BODIES)
async def test_chat_completions(attempt_session: Open, reply: str, body: str) -> None:
    script = [REPLIES[reply], *ALSO.get(body, ())]
    asked = {"tools": [CALCULATOR], **CHAT_BODIES[body]}
    answer = await attempt_session(*script).chat(**asked)
    made = parsed(ChatCompletion, answer.json())
    assert len(made.choices) == asked.get("n", 1)
    options = {"include_usage": True}
    answer = await attempt_session(*script).chat(**asked, stream=True, stream_options=options)
    chunks = [parsed(ChatCompletionChunk, each) for each in streamed(answer.text)]
    for i, choice in enumerate(made.choices):
        deltas = [c.delta for chunk in chunks for c in chunk.choices if c.index == i]
        said = "".join(delta.content or "" for delta in deltas)
        assert said == (choice.message.content or "")
        names = [c.function.name for d in deltas for c in d.tool_calls or () if c.id is not None]
        assert names == [c.function.name for c in choice.message.tool_calls or ()]
    assert chunks[-1].usage == made.usage


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("body", RESPONSE_BODIES)
async def test_responses(attempt_session: Open, reply: str, body: str) -> None:
    script = [REPLIES[reply], *ALSO.get(body, ())]
    asked = {"tools": [FLAT_CALCULATOR], **RESPONSE_BODIES[body]}
    made = parsed(Response, (await attempt_session(*script).respond(**asked)).json())
    answer = await attempt_session(*script).respond(**asked, stream=True)
    found = [parsed(EVENT, each) for each in streamed(answer.text)]
    final = found[-1].response
    assert final.output_text == made.output_text
    assert (final.status, final.usage) == (made.status, made.usage)
    assert [item.type for item in final.output] == [item.type for item in made.output]
    said = "".join(each.delta for each in found if each.type == "response.output_text.delta")
    assert said == made.output_text


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
async def test_failures_and_models(attempt_session: Open, dialect: Any) -> None:
    case = attempt_session(ScriptedReply(error=(429, "busy")))
    chat = [{"role": "user", "content": "hi"}]
    body = {"model": "m", "input": "hi", "messages": chat, "prompt": "hi"}
    for refused in (body | {"nonsense": 1}, body | {"temperature": 9}):
        answer = await post(case, dialect.path, refused)
        error = answer.json()["error"]
        assert dialect.name == "messages" or parsed(ErrorObject, error).message
    answer = await case.http.get(case.attempt_session.base_url + "/models")
    assert [parsed(Model, each).id for each in answer.json()["data"]] == ["policy"]


async def post(case: Case, path: str, body: Any) -> Any:
    return await case.post(path.removeprefix("/v1"), body)


async def test_a_stream_that_breaks(attempt_session: Open) -> None:
    """What it ends with parses too; the failure comes after text has gone out."""

    class Breaking:
        def __init__(self, inner: Any) -> None:
            self.inner, self.codec = inner, inner.codec

        async def chat(self, *given: Any, on_token: Any = None, **more: Any) -> Any:
            await self.inner.chat(*given, on_token=on_token, **more)
            raise ValueError("a secret")

    inner = attempt_session("some words that go out before the end").client
    answer = await attempt_session(Breaking(inner)).respond(stream=True)
    found = [json.loads(each) for each in events(answer.text)]
    *_, error, failed = [parsed(EVENT, each) for each in found]
    assert (error.type, failed.type) == ("error", "response.failed")
    assert failed.response.error.message == error.message
    assert "secret" not in answer.text
