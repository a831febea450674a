"""Demonstrations: what is read, and what is refused with file, line and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tutelage.errors import DataError
from tutelage.tasks.demonstrations import load_demonstrations
from tutelage.types import THOUGHTS, Message

CALL = {
    "id": "c0",
    "type": "function",
    "function": {"name": "calculator", "arguments": '{"expression": "2+3"}'},
}
USER = {"role": "user", "content": "2+3?"}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "5", "tool_call_id": "c0", "name": "calculator"}
SAYS = {"role": "assistant", "content": "5"}
TOOL = {"type": "function", "function": {"name": "calculator", "parameters": {"properties": {}}}}


def write(folder: Path, *rows: Any) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_chat_rows_keep_calls_results_and_tools(tmp_path: Path) -> None:
    path = write(tmp_path, {"messages": [USER, CALLS, RESULT, SAYS], "tools": [TOOL], "reward": 1})
    (found,) = load_demonstrations([path])
    assert [m.role for m in found.messages] == ["user", "assistant", "tool", "assistant"]
    assert found.messages[1].tool_calls[0].arguments == '{"expression": "2+3"}'
    assert found.messages[2].tool_call_id == "c0"
    assert [t.name for t in found.tools] == ["calculator"]
    assert found.place == f"{path}:1"


def test_pairs_of_a_question_and_its_answer(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"question": "2+3?", "answer": 5},
        {"prompt": [{"role": "system", "content": "Add."}, USER], "response": "five"},
    )
    first, second = load_demonstrations([path])
    assert first.messages == (Message("user", "2+3?"), Message("assistant", "5"))
    assert [m.role for m in second.messages] == ["system", "user", "assistant"]


def test_arguments_may_be_an_object(tmp_path: Path) -> None:
    call = {"id": "c0", "function": {"name": "calculator", "arguments": {"expression": "2+3"}}}
    row = {"messages": [USER, {"role": "assistant", "tool_calls": [call]}, RESULT, SAYS]}
    (found,) = load_demonstrations([write(tmp_path, row)])
    assert json.loads(found.messages[1].tool_calls[0].arguments) == {"expression": "2+3"}


def test_an_answered_call_that_could_not_be_read_is_no_error(tmp_path: Path) -> None:
    wrong = {"role": "tool", "content": "Error: x", "tool_call_id": "call", "name": "unreadable"}
    row = {"messages": [USER, {"role": "assistant", "content": "<tool_call>x"}, wrong, SAYS]}
    assert len(load_demonstrations([write(tmp_path, row)])) == 1


def test_reasoning_and_weight_of_a_turn_are_kept(tmp_path: Path) -> None:
    turns = [USER, {**SAYS, "weight": 0}, USER, {**SAYS, "reasoning": "2, 3", "weight": None}]
    alone = [USER, {**SAYS, "reasoning_content": "2, 3"}]
    weighed, shown = load_demonstrations(
        [write(tmp_path, {"messages": turns}, {"messages": alone})]
    )
    assert [m.extra.get("weight") for m in weighed.messages] == [None, 0, None, None]
    for message in (weighed.messages[-1], shown.messages[-1]):
        assert [message.extra[name] for name in THOUGHTS] == ["2, 3", "2, 3"]
    assert weighed.has_reasoning
    assert weighed.file == str(tmp_path / "rows.jsonl")


def arguments(text: Any) -> list[Any]:
    """A conversation whose call has these arguments."""
    call = {"id": "c0", "function": {"name": "calculator", "arguments": text}}
    return [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, RESULT, SAYS]


@pytest.mark.parametrize(
    ("messages", "field", "told"),
    [
        ([USER], "messages", "no assistant turn"),
        ([USER, {"role": "bot", "content": "x"}], "messages[1].role", "'bot'"),
        ([USER, {"role": "assistant", "content": ["x"]}], "messages[1].content", "a valid string"),
        ([{"role": "user", "content": ""}, SAYS], "messages[0]", "content must not be empty"),
        ([SAYS], "messages[0]", "before the first user message"),
        ([USER, SAYS, SAYS], "messages[2]", "follow each other"),
        ([USER, RESULT, SAYS], "messages[1]", "without a tool call"),
        ([USER, CALLS, {**RESULT, "tool_call_id": "c9"}, SAYS], "messages[2]", "'c9'"),
        ([USER, SAYS, {"role": "system", "content": "x"}], "messages[2]", "must come first"),
        ([USER, SAYS, USER], "messages[2]", "end with a non-empty assistant"),
        ([{**USER, "tool_calls": [CALL]}, SAYS], "messages[0]", "need the role assistant"),
        (arguments("{2+3"), "messages[1].tool_calls[0].function.arguments", "invalid JSON"),
        ([USER, {**SAYS, "weight": 2}], "messages[1].weight", "got 2"),
        ([USER, {**SAYS, "weight": 0}], "messages", "nothing to train on"),
        ([USER, {**SAYS, "reasoning_content": ["x"]}], "messages[1].reasoning_content", "string"),
    ],
)
def test_what_cannot_have_happened_is_refused(
    tmp_path: Path, messages: Any, field: str, told: str
) -> None:
    path = write(tmp_path, {"messages": [USER, SAYS]}, {"messages": messages})
    with pytest.raises(DataError) as caught:
        load_demonstrations([path])
    assert f"{path}:2" in str(caught.value)
    assert field in str(caught.value)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (["x"], "an object"),
        ({"text": "x"}, "not a demonstration; the row has 'text'"),
        ({"question": "x", "answer": " "}, "'answer'"),
        ({"messages": [USER, SAYS], "tools": [{"function": {"name": "f"}}]}, "parameters"),
        ({"messages": [USER, SAYS], "tools": [{"parameters": {}}]}, "tools[0].name"),
    ],
)
def test_rows_that_are_no_demonstration_are_refused(tmp_path: Path, row: Any, told: str) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl:1") as caught:
        load_demonstrations([write(tmp_path, row)])
    assert told in str(caught.value)
