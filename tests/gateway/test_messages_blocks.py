"""The turns of messages: which may end a conversation, and what of their blocks is text."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from tutelage.engine.chat import ChatSession
from tutelage.gateway.completions import KeptAnswers
from tutelage.gateway.dialects.messages import Messages
from tutelage.policy.codec import Codec
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine
from tutelage.types import Message, Sampling

from .conftest import ASK, Open
from .test_gateway_messages import ask, client

BASE64 = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
}
BEGUN: list[dict[str, Any]] = [*ASK, {"role": "assistant", "content": "It is"}]
FOUND = {"type": "search_result", "source": "http://x", "title": "Sums",
         "content": [{"type": "text", "text": "2 it is."}]}  # fmt: skip
DOCUMENT = {"type": "document", "source": {"type": "text", "data": "One and one."}}


def messages(*turns: Any, **more: Any) -> tuple[Message, ...]:
    given = {"model": "m", "max_tokens": 9, "messages": list(turns), **more}
    return Messages().read(given, Sampling(), KeptAnswers()).messages


# ---------------------------------------------------------------- the turn that is to be sampled


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_that_has_begun_is_refused_for_a_script(
    attempt_session: Open, stream: bool
) -> None:
    case = attempt_session("x")
    answer = await ask(case, messages=BEGUN, stream=stream)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("`messages[1]` has the role assistant: ")
    assert "must end with a user message" in error["message"]
    assert not case.client.calls


async def test_a_turn_that_has_begun_is_refused_for_a_policy(
    attempt_session: Open, tiny: Any
) -> None:
    codec: Codec = tiny("qwen2").codec
    chat = ChatSession(ScriptedEngine(codec, ("It is 2.",)), codec, seeds=SeedTree(0), name="att")
    case = attempt_session(chat)
    assert (await ask(case, messages=BEGUN)).status_code == 400
    assert not chat.calls
    counted = await case.post("/messages/count_tokens", {"model": "m", "messages": BEGUN})
    assert counted.json()["input_tokens"] > 0, "a history may be counted wherever it ends"


def test_the_sdk_says_why_a_prefill_is_refused(live: Any) -> None:
    api, _ = client(live, "x")
    with pytest.raises(anthropic.BadRequestError, match="must end with a user message"):
        api.messages.create(model="m", max_tokens=9, messages=BEGUN)


async def test_in_openais_apis_a_new_turn_follows_the_assistants(attempt_session: Open) -> None:
    case = attempt_session("Two.", "Two.")
    assert (await case.chat(messages=BEGUN)).status_code == 200
    assert (await case.respond(input=BEGUN)).status_code == 200
    assert [call.messages[-1].role for call in case.client.calls] == ["assistant"] * 2


# ---------------------------------------------------------------- system messages


def test_a_system_message_stands_where_it_is_sent() -> None:
    begin = {"role": "system", "content": "Be brief."}
    later = {"role": "system", "content": [{"type": "text", "text": "Be kind."}]}
    found = messages(begin, *ASK, BEGUN[1], later, system="You count.")
    assert [(m.role, m.content) for m in found] == [
        ("system", "You count."),
        ("system", "Be brief."),
        ("user", "What is 1 + 1?"),
        ("assistant", "It is"),
        ("system", "Be kind."),
    ]


@pytest.mark.parametrize("place", [0, 1])
async def test_a_system_message_is_rendered_as_that_of_a_chat_completion(
    attempt_session: Open, tiny: Any, place: int
) -> None:
    codec: Codec = tiny("qwen2").codec
    engine = ScriptedEngine(codec, ("It is 2.", "It is 2."))
    chat = ChatSession(engine, codec, seeds=SeedTree(0), name="att")
    turns: list[Any] = [*ASK, *ASK]
    turns.insert(place, {"role": "system", "content": "Be brief."})
    case = attempt_session(chat)
    assert (await ask(case, messages=turns)).status_code == 200
    assert (await case.chat(messages=turns)).status_code == 200
    assert chat.calls[0].prompt_ids == chat.calls[1].prompt_ids
    assert "Be brief." in codec.decode(list(chat.calls[0].prompt_ids))


# ---------------------------------------------------------------- what is no text


@pytest.mark.parametrize("block", [BASE64, FOUND, DOCUMENT])
@pytest.mark.parametrize("role", ["system", "user", "assistant"])
async def test_what_is_no_text_is_refused_by_name(
    attempt_session: Open, block: Any, role: str
) -> None:
    answer = await ask(attempt_session("x"), messages=[{"role": role, "content": [block]}])
    assert answer.status_code == 400
    said = f"`messages[0].content[0].type` = '{block['type']}'"
    assert said in answer.json()["error"]["message"]


@pytest.mark.parametrize("block", [BASE64, FOUND, DOCUMENT])
async def test_so_is_that_in_the_result_of_a_tool(attempt_session: Open, block: Any) -> None:
    result = {"type": "tool_result", "tool_use_id": "c", "content": [block]}
    answer = await ask(attempt_session("x"), messages=[{"role": "user", "content": [result]}])
    assert answer.status_code == 400
    said = f"`messages[0].content[0].content[0].type` = '{block['type']}'"
    assert said in answer.json()["error"]["message"]
