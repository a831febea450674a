"""Where a refusal says that something is wrong: a path of the request's own keys, its value, and
both ends of a long one."""

from __future__ import annotations

from typing import Any

import pytest

from tutelage.gateway.dialects import DIALECTS, StoredResponses
from tutelage.gateway.errors import ApiError
from tutelage.types import Sampling

BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
LONG = "x" * 300


def block(**fields: Any) -> dict[str, Any]:
    """A request of messages with one block."""
    return {"messages": [{"role": "user", "content": [fields]}]}


def refusal(dialect: str, body: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        BY_NAME[dialect].read({"model": "m", **body}, Sampling(), StoredResponses())
    return caught.value


AT = "messages[0].content[0]"
RESULT = {"type": "tool_result", "tool_use_id": "x", "content": [{"type": "image"}]}


@pytest.mark.parametrize(
    ("dialect", "body", "path", "words"),
    [
        ("messages", block(type="tool_use", id="x", name="f", input=3), f"{AT}.input", "= 3"),
        ("messages", block(type="tool_use", id="x", name="f"), f"{AT}.input", "is missing"),
        ("messages", block(type="text", text=3), f"{AT}.text", "= 3"),
        ("messages", block(type="text"), f"{AT}.text", "is missing"),
        (
            "messages",
            block(type="thinking", thinking="x", signature=3),
            f"{AT}.signature",
            "= 3",
        ),
        ("messages", block(**RESULT), f"{AT}.content[0].type", "= 'image'"),
        ("messages", block(text=LONG, type="imagee"), f"{AT}.type", "= 'imagee'"),
        ("messages", block(text=LONG), f"{AT}.type", "is missing"),
        ("messages", block(type="text", text="x", citations=3, no=LONG), None, ""),
        ("messages", {"messages": "hi"}, "messages", "a valid array"),
        ("completions", {"prompt": [1, -1]}, "prompt[1]", "= -1: it must be a token id"),
        ("completions", {"prompt": [1, "x"]}, "prompt[1]", "= 'x'"),
        ("completions", {"prompt": [[1], [2, -1]]}, "prompt[1][1]", "= -1"),
        ("completions", {"prompt": ["a", []]}, "prompt[1]", "= []: it must be a text, or an array"),
        ("completions", {"prompt": [True]}, "prompt[0]", "= True"),
        ("completions", {"prompt": "a", "stop": ""}, "stop", "= ''"),
        ("completions", {"prompt": "a", "stop": ["a", ""]}, "stop[1]", "= ''"),
        ("responses", {"input": ["a"]}, "input[0]", "= 'a'"),
        (
            "chat.completions",
            {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]},
            "tools[0].function",
            "is missing",
        ),
    ],
)
def test_the_path_is_one_of_the_request(
    dialect: str, body: dict[str, Any], path: str | None, words: str
) -> None:
    if path is None:
        BY_NAME[dialect].read({"model": "m", **body}, Sampling(), StoredResponses())
        return
    error = refusal(dialect, body)
    assert error.param == path
    assert error.message.startswith(f"`{path}` ")
    assert words in error.message


def test_a_long_value_shows_both_ends() -> None:
    choice = {"type": "function", "function": {"description": LONG, "name": 3}}
    ask = {"messages": [{"role": "user", "content": "x"}], "tool_choice": choice}
    message = refusal("chat.completions", ask).message
    assert "{'type': 'function', 'function': {" in message
    assert "'name': 3}}: use auto" in message
    assert len(message) < 160


@pytest.mark.parametrize(
    ("field", "value", "accepted"),
    [
        ("tool_choice", "auto", True),
        ("tool_choice", "none", True),
        ("tool_choice", "required", False),
        ("parallel_tool_calls", False, True),
        ("tools", [], True),
        ("tools", [{"type": "function", "function": {"name": "f"}}], False),
    ],
)
def test_completions_have_no_tools(field: str, value: Any, accepted: bool) -> None:
    body = {"prompt": "x", field: value}
    if accepted:
        read = BY_NAME["completions"].read({"model": "m", **body}, Sampling(), StoredResponses())
        assert (read.tools, read.constraint) == ((), None)
    else:
        assert refusal("completions", body).param == field


def test_completions_have_schemas() -> None:
    body = {"model": "m", "prompt": "x", "guided_json": {"type": "object"}}
    read = BY_NAME["completions"].read(body, Sampling(), StoredResponses())
    assert read.constraint is not None
    assert read.constraint.json_schema == {"type": "object"}
