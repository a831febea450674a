"""Where a refusal says that something is wrong: a path of the request's own keys, its value, and
both ends of a long one."""

from __future__ import annotations

from typing import Any

import pytest

from tutelage.gateway.completions import KeptAnswers
from tutelage.gateway.dialects import DIALECTS
from tutelage.gateway.errors import ApiError
from tutelage.types import Sampling

from .conftest import ASK, Open, scripted_chat

BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
LONG = "x" * 300


def block(**fields: Any) -> dict[str, Any]:
    """A request of messages with one block."""
    return {"messages": [{"role": "user", "content": [fields]}]}


def refusal(dialect: str, body: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        BY_NAME[dialect].read({"model": "m", **body}, Sampling(), KeptAnswers())
    return caught.value


HI: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
AT = "messages[0].content[0]"
RESULT = {"type": "tool_result", "tool_use_id": "x", "content": [{"type": "image"}]}


@pytest.mark.parametrize(
    ("dialect", "body", "path", "words"),
    [
        ("messages", block(type="tool_use", id="x", name="f", input=3), f"{AT}.input", "= 3"),
        ("messages", block(type="tool_use", id="x", name="f"), f"{AT}.input", "is missing"),
        ("messages", block(**RESULT), f"{AT}.content[0].type", "= 'image'"),
        ("messages", block(text=LONG, type="imagee"), f"{AT}.type", "= 'imagee'"),
        ("messages", HI | {"tool_choice": {"type": "any"}}, "tool_choice", "needs `tools`"),
        ("completions", {"prompt": [1, -1]}, "prompt[1]", "= -1: must be a token id"),
        ("completions", {"prompt": [[1], [2, -1]]}, "prompt[1][1]", "= -1"),
        ("completions", {"prompt": "a", "stop": ["a", ""]}, "stop[1]", "= ''"),
        ("responses", {"input": ["a"]}, "input[0]", "= 'a'"),
        ("responses", {"input": [{"role": "user", "text": "x"}]}, "input[0].content", "is missing"),
        (
            "chat.completions",
            {"messages": [{"role": "robot", "content": "x"}]},
            "messages[0].role",
            "'system', 'developer', 'user', 'assistant' or 'tool'",
        ),
        (
            "chat.completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "this model accepts text only, not images",
        ),
        ("chat.completions", HI | {"top_p": 1.5}, "top_p", "less than or equal to 1"),
    ],
)
def test_the_path_is_one_of_the_request(
    dialect: str, body: dict[str, Any], path: str, words: str
) -> None:
    error = refusal(dialect, body)
    assert error.param == path
    assert error.message.startswith(f"`{path}` ")
    assert words in error.message


def test_a_call_and_the_result_of_a_tool_may_be_without_content() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": None}
    body = {"model": "m", "messages": [*HI["messages"], turn, result]}
    read = BY_NAME["chat.completions"].read(body, Sampling(), KeptAnswers())
    assert [message.content for message in read.messages] == ["x", None, ""]


def test_completions_have_no_tools() -> None:
    tools = {"tools": [{"type": "function", "function": {"name": "f"}}]}
    for body in (tools, {"tool_choice": "required"}):
        assert refusal("completions", {"prompt": "x", **body}).param in body


SCHEMA = {"type": "nothing"}
NAMED: list[tuple[str, dict[str, Any], str]] = [
    ("/chat/completions", {"messages": ASK, "response_format": {
        "type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}, "response_format"),
    ("/responses", {"input": "x", "text": {"format": {
        "type": "json_schema", "name": "x", "schema": SCHEMA}}}, "text.format"),
    ("/messages", {"messages": ASK, "output_config": {"format": {
        "type": "json_schema", "schema": SCHEMA}}}, "output_config.format"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "field"), NAMED, ids=[case[2] for case in NAMED])
async def test_a_schema_that_cannot_be_enforced_is_named_as_it_was_sent(
    attempt_session: Open, tiny: Any, path: str, body: dict[str, Any], field: str
) -> None:
    case = attempt_session(scripted_chat(tiny("qwen2").codec, "x"))
    answer = await case.post(path, {"model": "m", **body})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["message"].startswith(f"`{field}`")
    assert error.get("param", field) == field
