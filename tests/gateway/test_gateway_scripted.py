"""What a request demands of a model holds for a script too, in every dialect's words."""

from __future__ import annotations

from typing import Any

import pytest

from tutelage.engine.script import ScriptedReply
from tutelage.types import Constraint

from .conftest import ASK, CALCULATOR, FLAT_CALCULATOR, TOOL_TURN, Open

SCRIPT = ["It is 2.", TOOL_TURN]
FUNCTION = {"type": "function", "function": {"name": "calculator"}}
ANTHROPIC = {"name": "calculator", "input_schema": {"type": "object"}}
CHAT = ("/chat/completions", {"messages": ASK, "tools": [CALCULATOR]})
RESPONSES = ("/responses", {"input": "hi", "tools": [FLAT_CALCULATOR]})
MESSAGES = ("/messages", {"messages": ASK, "tools": [ANTHROPIC], "max_tokens": 200})
COMPLETIONS = ("/completions", {"prompt": "hi", "max_tokens": 200})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("asked", "more"),
    [
        (CHAT, {"tool_choice": "required"}),
        (CHAT, {"tool_choice": FUNCTION}),
        (RESPONSES, {"tool_choice": "required"}),
        (MESSAGES, {"tool_choice": {"type": "any"}}),
        (MESSAGES, {"tool_choice": {"type": "tool", "name": "calculator"}}),
    ],
)
async def test_a_line_that_the_request_allows(
    attempt_session: Open, asked: Any, more: Any, stream: bool
) -> None:
    (path, body), case = asked, attempt_session(*SCRIPT)
    answer = await case.post(path, {"model": "m", **body, **more, "stream": stream})
    assert answer.status_code == 200, answer.text
    assert [call.name for call in case.client.calls[0].reply.tool_calls] == ["calculator"]


@pytest.mark.parametrize("stream", [False, True])
async def test_no_line_that_the_request_allows(attempt_session: Open, stream: bool) -> None:
    case = attempt_session("It is 2.")
    answer = await case.chat(tools=[CALCULATOR], tool_choice="required", stream=stream)
    assert answer.status_code == 404
    message = answer.json()["error"]["message"]
    assert "tool_choice='required'" in message
    assert "tools calculator" in message
    assert '"content":"It is 2."' in message


OTHER = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("asked", "more"),
    [
        (CHAT, {}),
        (RESPONSES, {}),
        (MESSAGES, {}),
        (COMPLETIONS, {}),
        (CHAT, {"tool_choice": "none"}),
        (RESPONSES, {"tool_choice": "none"}),
        (MESSAGES, {"tool_choice": {"type": "none"}}),
        (CHAT, {"tools": [OTHER]}),
    ],
)
async def test_without_its_tools_no_line_of_calls_answers(
    attempt_session: Open, asked: Any, more: Any, stream: bool
) -> None:
    """A line of calls comes first, and stays for a request that has its tools."""
    (path, body), case = asked, attempt_session(TOOL_TURN, "It is 2.")
    bare = {k: v for k, v in body.items() if k != "tools"}
    answer = await case.post(path, {"model": "m", **bare, **more, "stream": stream})
    assert answer.status_code == 200, answer.text
    reply = case.client.calls[0].reply
    assert (reply.content, reply.tool_calls) == ("It is 2.", ())
    await case.chat(tools=[CALCULATOR])
    assert case.client.calls[1].reply.tool_calls


def test_a_policy_is_free_where_there_is_no_call_to_forbid(tiny: Any) -> None:
    """`tool_choice` none without tools needs no grammar, and changes no draw."""
    codec = tiny("qwen2").codec
    assert codec.grammar((), Constraint("none")) is None
    assert codec.grammar((), Constraint("none", parallel_tool_calls=False)) is None


async def test_an_error_of_a_script_has_a_code_of_its_own(attempt_session: Open) -> None:
    answer = await attempt_session(ScriptedReply(error=(429, "slow down"))).chat()
    told = answer.json()["error"]
    assert (answer.status_code, told["code"]) == (429, "scripted_error")
    assert told["message"] == "slow down"
