"""Anthropic's Messages: every form by that SDK, its own types for all that is sent, and one row."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from anthropic.types import ErrorResponse, Message, RawMessageStreamEvent
from pydantic import BaseModel, TypeAdapter

from tutelage.engine.script import ScriptedReply
from tutelage.gateway import Gateway, ScriptedClient
from tutelage.gateway.dialects import MESSAGES
from tutelage.policy.codec import Codec
from tutelage.types import Sampling

from .conftest import ASK, TOOL_TURN, Open, events, scripted_chat

anthropic = pytest.importorskip("anthropic")
Live = Callable[..., Gateway]
TOOL: dict[str, Any] = {
    "name": "calculator",
    "description": "Compute.",
    "input_schema": {"type": "object", "properties": {"expression": {"type": "string"}}},
}
THOUGHT = "<think>\nOne and one,\n  so two.\n</think>\n\n"
REPLIES = {
    "text": "It is 2, señor.",
    "empty": ScriptedReply(""),
    "text and tools": TOOL_TURN,
    "tools": ScriptedReply(None, TOOL_TURN.tool_calls * 2),
    "thought": ScriptedReply(f"{THOUGHT}It is 2."),
    "thought alone": ScriptedReply(THOUGHT.strip()),
    "thought without end": ScriptedReply("<think>One and one"),
    "thought and tools": ScriptedReply(f"{THOUGHT}Let me see.", TOOL_TURN.tool_calls),
    "empty thought": ScriptedReply("<think>\n\n</think>\n\nIt is 2."),
    "empty thought alone": ScriptedReply("<think></think>", TOOL_TURN.tool_calls),
    "no thought": ScriptedReply("<thin> is 2"),
    "no object": ScriptedReply(None, (("calculator", "[1, 2]"), ("calculator", "1 +"))),
}
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def client(live: Live, *script: Any) -> tuple[Any, ScriptedClient]:
    scripted = ScriptedClient(script)
    found = live().open("r", "a", scripted)
    env = found.env()
    url, key = env["ANTHROPIC_BASE_URL"], env["ANTHROPIC_API_KEY"]
    return anthropic.Anthropic(base_url=url, api_key=key), scripted


async def ask(case: Any, **body: Any) -> Any:
    given = {"model": "m", "max_tokens": 400, "messages": ASK, **body}
    return await case.post("/messages", given)


def known(value: Any) -> None:
    """No field that the package's types do not know."""
    if isinstance(value, BaseModel):
        assert not value.model_extra, value
        for name in type(value).model_fields:
            known(getattr(value, name))
    elif isinstance(value, list):
        for each in value:
            known(each)


def put_together(found: list[Any]) -> list[Any]:
    """The content of a stream, block by block."""
    blocks: list[Any] = []
    for each in found:
        if each.type == "content_block_start":
            assert each.index == len(blocks)
            blocks.append(each.content_block.model_dump(exclude_none=True))
        elif each.type == "content_block_delta":
            delta, block = each.delta, blocks[each.index]
            if delta.type == "input_json_delta":
                block["input"] = json.loads(delta.partial_json)
            elif delta.type == "signature_delta":
                block["signature"] += delta.signature
            else:
                field = delta.type.removesuffix("_delta")
                block[field] += getattr(delta, field)
    return blocks


@pytest.mark.parametrize("reply", REPLIES)
async def test_every_reply_is_what_the_package_says(attempt_session: Open, reply: str) -> None:
    whole = Message.model_validate(
        (await ask(attempt_session(REPLIES[reply]), tools=[TOOL])).json()
    )
    known(whole)
    answer = await ask(attempt_session(REPLIES[reply]), tools=[TOOL], stream=True)
    found = [EVENT.validate_python(json.loads(each)) for each in events(answer.text)]
    for each in found:
        known(each)
    blocks = put_together(found)
    ids = {"id": "call"}  # of tool calls, which differ by attempt
    given = [b.model_dump(exclude_none=True) for b in whole.content]
    same = [[b | ids if "id" in b else b for b in some] for some in (blocks, given)]
    assert same[0] == same[1]
    kinds = [each.type for each in found]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == len(blocks)
    assert found[-2].delta.stop_reason == whole.stop_reason
    assert found[-2].usage.output_tokens == whole.usage.output_tokens > 0


def test_a_tool_loop_with_a_thought_restores_the_turn(live: Live) -> None:
    api, scripted = client(live, REPLIES["thought and tools"], "It is 2.", "Bye.")
    ask: list[Any] = list(ASK)
    thinking = {"type": "enabled", "budget_tokens": 1024}
    given: dict[str, Any] = {"model": "m", "max_tokens": 2000, "tools": [TOOL]}
    first = api.messages.create(
        messages=ask, thinking=thinking, system=[{"type": "text", "text": "Be brief."}], **given
    )
    assert [b.type for b in first.content] == ["thinking", "text", "tool_use"]
    assert (first.content[0].thinking, first.stop_reason) == ("One and one,\n  so two.", "tool_use")
    assert scripted.calls[0].sampling.max_thinking_tokens == 1024
    assert scripted.calls[0].messages[0].content == "Be brief."
    result = {
        "type": "tool_result",
        "tool_use_id": first.content[2].id,
        "content": [{"type": "text", "text": "2", "cache_control": {"type": "ephemeral"}}],
        "is_error": False,
    }
    turn = {"role": "assistant", "content": first.content}
    more = [*ask, turn, {"role": "user", "content": [result, {"type": "text", "text": "Go on."}]}]
    second = api.messages.create(messages=more, **given)
    seen = scripted.calls[1].messages
    assert [m.role for m in seen] == ["user", "assistant", "tool", "user"]
    part = {"type": "text", "text": "2", "cache_control": {"type": "ephemeral"}}
    assert seen[2].extra == {"is_error": False, "content_parts": [part]}, "on record"
    assert seen[1].content == scripted.calls[0].reply.content, "the thought as it was sampled"
    assert seen[1].tool_calls[0].id == seen[2].tool_call_id
    more += [{"role": "assistant", "content": second.content}, {"role": "user", "content": "Bye!"}]
    api.messages.create(messages=more, **given)
    assert scripted.calls[2].messages[-2].content == "It is 2."


def test_tokens_are_counted_by_the_sdk(live: Live) -> None:
    api, scripted = client(live, TOOL_TURN)
    given: dict[str, Any] = {"model": "m", "messages": ASK, "tools": [TOOL]}
    made = api.messages.create(max_tokens=400, **given)
    counted = api.messages.count_tokens(**given)
    assert counted.input_tokens == len(scripted.calls[0].prompt_ids) == made.usage.input_tokens


@pytest.mark.parametrize(
    ("choice", "tool_choice", "parallel"),
    [
        ({"type": "any"}, "required", True),
        ({"type": "tool", "name": "calculator"}, "calculator", True),
        ({"type": "none"}, "none", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
    ],
)
async def test_tool_choice(
    attempt_session: Open, choice: Any, tool_choice: str, parallel: bool
) -> None:
    case = attempt_session(TOOL_TURN, "It is 2.")
    answer = await ask(case, tools=[TOOL], tool_choice=choice)
    assert answer.status_code == 200, answer.text
    found = case.client.calls[0].constraint
    assert (found.tool_choice, found.parallel_tool_calls) == (tool_choice, parallel)


async def test_why_a_message_ended(attempt_session: Open) -> None:
    said = (await ask(attempt_session("It is 2. STOP more"), stop_sequences=["STOP"])).json()
    assert (said["stop_reason"], said["stop_sequence"]) == ("stop_sequence", "STOP")
    assert said["content"] == [{"type": "text", "text": "It is 2."}]
    assert (await ask(attempt_session("It is 2."), max_tokens=3)).json()[
        "stop_reason"
    ] == "max_tokens"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"top_p": 2}, "`top_p` = 2"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "clear"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "names 'x'"),
        ({"messages": []}, "`messages`"),
    ],
)
async def test_refusals_have_anthropics_form(attempt_session: Open, body: Any, words: str) -> None:
    answer = await ask(attempt_session("x"), **body)
    assert answer.status_code == 400
    error = ErrorResponse.model_validate(answer.json()).error
    assert error.type == "invalid_request_error"
    assert words in error.message, error.message


@pytest.mark.parametrize("signature", ["", "EqoBCkgIARABGAI=", "tutelage:%%%", "tutelage:/w=="])
def test_another_models_thought_is_left_out(signature: str) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": signature}
    turn = {"role": "assistant", "content": [thought, {"type": "text", "text": "It is 2."}]}
    stored: Any = None
    turns = [*ASK, turn, *ASK]
    body: dict[str, Any] = {"model": "m", "messages": turns, "thinking": {"type": "disabled"}}
    request = MESSAGES.read(body, Sampling(), stored)
    assert request.messages[1].content == "It is 2."
    assert request.sampling.max_thinking_tokens == 0


BASE64 = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
}
BEGUN: list[dict[str, Any]] = [*ASK, {"role": "assistant", "content": "It is"}]
FOUND = {"type": "search_result", "source": "http://x", "title": "Sums",
         "content": [{"type": "text", "text": "2 it is."}]}  # fmt: skip
DOCUMENT = {"type": "document", "source": {"type": "text", "data": "One and one."}}


# ---------------------------------------------------------------- the turn that is to be sampled


async def test_a_turn_that_has_begun_is_refused(attempt_session: Open, tiny: Any) -> None:
    codec: Codec = tiny("qwen2").codec
    chat = scripted_chat(codec, "It is 2.")
    case = attempt_session(chat)
    for stream in (False, True):
        answer = await ask(case, messages=BEGUN, stream=stream)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("`messages[1]` has the role assistant")
    assert not chat.calls
    counted = await case.post("/messages/count_tokens", {"model": "m", "messages": BEGUN})
    assert counted.json()["input_tokens"] > 0, "a history may be counted wherever it ends"


async def test_in_openais_apis_a_new_turn_follows_the_assistants(attempt_session: Open) -> None:
    case = attempt_session("Two.", "Two.")
    assert (await case.chat(messages=BEGUN)).status_code == 200
    assert (await case.respond(input=BEGUN)).status_code == 200
    assert [call.messages[-1].role for call in case.client.calls] == ["assistant"] * 2


# ---------------------------------------------------------------- what is no text


@pytest.mark.parametrize("block", [BASE64, FOUND, DOCUMENT])
async def test_what_is_no_text_is_refused_by_name(attempt_session: Open, block: Any) -> None:
    result = {"type": "tool_result", "tool_use_id": "c", "content": [block]}
    for content, place in ((block, ""), (result, ".content[0]")):
        turn = {"role": "user", "content": [content]}
        answer = await ask(attempt_session("x"), messages=[turn])
        assert answer.status_code == 400
        named = f"`messages[0].content[0]{place}.type` = '{block['type']}'"
        assert named in answer.json()["error"]["message"]
