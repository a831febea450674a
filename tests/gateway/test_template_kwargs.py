"""`chat_template_kwargs` may say what is in force anyway: a template has one way to be rendered."""

from __future__ import annotations

from typing import Any

import pytest

from tutelage.engine.chat import ChatSession
from tutelage.policy.codec import Codec
from tutelage.policy.named_templates import put_template
from tutelage.policy.tokenizer import train_tokenizer

from .conftest import ASK, Open, scripted_chat

PATHS: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": ASK},
    "/responses": {"input": "What is 1 + 1?"},
    "/messages": {"messages": ASK, "max_tokens": 9},
}
IN_FORCE: list[dict[str, Any]] = [{"enable_thinking": True}, {"what_no_template_reads": [1]}]
OTHERS: list[dict[str, Any]] = [{"enable_thinking": False}, {"messages": []}]


def session() -> ChatSession:
    tokenizer = train_tokenizer(["text 42 calculator"], vocab_size=400)
    put_template(tokenizer, "qwen3")
    codec = Codec(tokenizer)
    return scripted_chat(codec, *["It is 2."] * 9)


@pytest.mark.parametrize("path", PATHS)
async def test_what_is_in_force_is_accepted_and_all_else_refused_by_name(
    attempt_session: Open, path: str
) -> None:
    chat = session()
    case = attempt_session(chat)
    for given in IN_FORCE:
        body = {"model": "m", **PATHS[path], "chat_template_kwargs": given}
        answer = await case.post(path, body)
        assert answer.status_code == 200, answer.text
    prompts = {call.prompt_ids for call in chat.calls}
    assert (len(prompts), len(chat.calls)) == (1, len(IN_FORCE))
    for given in OTHERS:
        body = {"model": "m", **PATHS[path], "chat_template_kwargs": given}
        answer = await case.post(path, body)
        assert answer.status_code == 400
        words = answer.json()["error"]["message"]
        assert "`chat_template_kwargs`" in words
        assert "leave these options out" in words
    assert len(chat.calls) == len(IN_FORCE)


async def test_without_a_template_there_is_nothing_to_say(attempt_session: Open) -> None:
    answer = await attempt_session("x", "x").chat(chat_template_kwargs={})
    assert answer.status_code == 200
    answer = await attempt_session("x").chat(chat_template_kwargs={"enable_thinking": True})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "chat_template_kwargs"
