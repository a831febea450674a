"""Where a refusal says that something is wrong: a path of the request's own keys, its value, and
both ends of a long one."""

from __future__ import annotations

from typing import Any

import pytest

from tutelage.engine.chat import ChatSession
from tutelage.gateway.completions import KeptAnswers
from tutelage.gateway.dialects import DIALECTS
from tutelage.gateway.errors import ApiError
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine
from tutelage.types import Sampling

from .conftest import ASK, Open

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
        ("completions", {"prompt": [1, -1]}, "prompt[1]", "= -1: must be a token id"),
        ("completions", {"prompt": [1, "x"]}, "prompt[1]", "= 'x'"),
        ("completions", {"prompt": [[1], [2, -1]]}, "prompt[1][1]", "= -1"),
        ("completions", {"prompt": ["a", []]}, "prompt[1]", "= []: must be a string or an array"),
        ("completions", {"prompt": [True]}, "prompt[0]", "= True"),
        ("completions", {"prompt": "a", "stop": ""}, "stop", "= ''"),
        ("completions", {"prompt": "a", "stop": ["a", ""]}, "stop[1]", "= ''"),
        ("responses", {"input": ["a"]}, "input[0]", "= 'a'"),
        *(
            ("chat.completions", {"messages": [said]}, "messages[0].content", "is missing")
            for said in (
                {"role": "user", "text": "x"},
                {"role": "user", "content": None},
                {"role": "developer"},
            )
        ),
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
        ("messages", HI | {"system": 3}, "system", "a string or an array of content blocks"),
        ("messages", HI | {"tool_choice": {"type": "any"}}, "tool_choice", "needs `tools`"),
        ("chat.completions", HI | {"top_p": 1.5}, "top_p", "less than or equal to 1"),
        (
            "chat.completions",
            HI | {"min_tokens": 9, "max_tokens": 3},
            "min_tokens",
            "the maximum of 3 reply tokens",
        ),
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
        BY_NAME[dialect].read({"model": "m", **body}, Sampling(), KeptAnswers())
        return
    error = refusal(dialect, body)
    assert error.param == path
    assert error.message.startswith(f"`{path}` ")
    assert words in error.message


def test_only_what_is_too_small_is_told_how_to_sample_greedily() -> None:
    said = [refusal("chat.completions", HI | {"top_p": value}).message for value in (0, 1.5)]
    assert ["greedy" in words for words in said] == [True, False]


def test_a_call_and_the_result_of_a_tool_may_be_without_content() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": None}
    body = {"model": "m", "messages": [*HI["messages"], turn, result]}
    read = BY_NAME["chat.completions"].read(body, Sampling(), KeptAnswers())
    assert [message.content for message in read.messages] == ["x", None, ""]


def test_a_long_value_shows_both_ends() -> None:
    choice = {"type": "function", "function": {"description": LONG, "name": 3}}
    ask = {"messages": [{"role": "user", "content": "x"}], "tool_choice": choice}
    message = refusal("chat.completions", ask).message
    assert "{'type': 'function', 'function': {" in message
    assert "'name': 3}}: must be auto" in message
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
        read = BY_NAME["completions"].read({"model": "m", **body}, Sampling(), KeptAnswers())
        assert (read.tools, read.constraint) == ((), None)
    else:
        assert refusal("completions", body).param == field


def test_completions_have_schemas() -> None:
    body = {"model": "m", "prompt": "x", "guided_json": {"type": "object"}}
    read = BY_NAME["completions"].read(body, Sampling(), KeptAnswers())
    assert read.constraint is not None
    assert read.constraint.json_schema == {"type": "object"}


SCHEMA = {"type": "nothing"}
NAMED: list[tuple[str, dict[str, Any], str]] = [
    ("/chat/completions", {"messages": ASK, "response_format": {
        "type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}, "response_format"),
    ("/chat/completions", {"messages": ASK, "guided_json": SCHEMA}, "guided_json"),
    ("/completions", {"prompt": "x", "structured_outputs": {"json": SCHEMA}},
     "structured_outputs.json"),
    ("/responses", {"input": "x", "text": {"format": {
        "type": "json_schema", "name": "x", "schema": SCHEMA}}}, "text.format"),
    ("/messages", {"messages": ASK, "output_config": {"format": {
        "type": "json_schema", "schema": SCHEMA}}}, "output_config.format"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "field"), NAMED, ids=[case[2] for case in NAMED])
async def test_a_schema_that_cannot_be_enforced_is_named_as_it_was_sent(
    attempt_session: Open, tiny: Any, path: str, body: dict[str, Any], field: str
) -> None:
    codec = tiny("qwen2").codec
    engine = ScriptedEngine(codec, ["x"])
    case = attempt_session(ChatSession(engine, codec, seeds=SeedTree(0), name="att"))
    answer = await case.post(path, {"model": "m", **body})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["message"].startswith(f"`{field}`")
    assert error.get("param", field) == field


@pytest.mark.parametrize(
    ("dialect", "body", "names"),
    [
        ("completions", {"prompt": "x", "guided_json": {}, "structured_outputs": {"json": {}}},
         ("guided_json", "structured_outputs.json")),
        ("responses", {"input": "x", "text": {"format": {"type": "json_object"}},
                       "guided_json": {}}, ("text.format", "guided_json")),
    ],
)  # fmt: skip
def test_of_two_schemas_both_are_named(
    dialect: str, body: dict[str, Any], names: tuple[str, str]
) -> None:
    error = refusal(dialect, body)
    assert error.message.startswith("`{}` and `{}`".format(*names))
    assert error.param == names[1]


@pytest.mark.parametrize("prompt", ["", [999_999]])
async def test_a_prompt_that_is_none_is_named(
    attempt_session: Open, tiny: Any, prompt: Any
) -> None:
    codec = tiny("qwen2").codec
    session = ChatSession(ScriptedEngine(codec, ["x"]), codec, seeds=SeedTree(0), name="att")
    answer = await attempt_session(session).post("/completions", {"model": "m", "prompt": prompt})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "prompt")
    assert error["message"].startswith("`prompt`: ")


def test_a_turn_of_no_blocks_is_named() -> None:
    body = {"messages": [*ASK, {"role": "assistant", "content": []}, {**ASK[0], "content": []}]}
    assert refusal("messages", body).param == "messages[2].content"
