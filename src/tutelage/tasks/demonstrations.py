"""Demonstrations: finished conversations for supervised training, read from files and checked.

Two kinds of row are read: chat rows, `{"messages": [...], "tools": [...]}` in the OpenAI form,
which is what `tutelage export RUN --format sft` writes, and pairs of a question and its answer. A
row that no agent could have lived through (a result that nobody asked for, arguments that are no
JSON, no turn of the assistant) is refused with file, line and field, before any model is there.
Files become rows in `readers.py`; `weights/inputs.py` makes token rows of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from tutelage.bounded import parse_json
from tutelage.errors import DataError
from tutelage.tasks.overlap import Overlap, content_of, count_overlap
from tutelage.tasks.readers import RawRow, read_rows, short
from tutelage.types import INPUT_FIELDS, JSON, Message, Task, ToolCall, ToolSpec

ANSWER_FIELDS = ("answer", "response")
"""The field of a pair that the assistant says: the first of these that the row has."""

UNREADABLE = "unreadable"
"""Name of the results by which the built-in agent answers calls that it could not read."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A conversation that ends with the assistant, and the tools that it was given."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    place: str = ""
    """Where it stands, such as `train.jsonl:17`."""


def _prompt_of(messages: Sequence[Message]) -> list[Message]:
    """What a conversation asks: all before the first turn of the assistant but the system's."""
    first = next((i for i, m in enumerate(messages) if m.role == "assistant"), len(messages))
    return [m for m in messages[:first] if m.role != "system"]


def load_demonstrations(paths: Sequence[str | Path]) -> list[Demonstration]:
    """The demonstrations of some files (JSON, JSONL, CSV, Parquet), in order.

    Raises `DataError` naming file, line and field of the first bad row.
    """
    return [_read_demonstration(row) for path in paths for row in read_rows(path)]


def _read_demonstration(row: RawRow) -> Demonstration:
    """Check one raw row and make it a demonstration. Raises `DataError` with place and field."""
    place, value = row
    if not isinstance(value, Mapping):
        raise DataError(f"{place}: a row must be an object of named fields, not {short(value)}")
    fields = cast("Mapping[str, Any]", value)
    if "messages" in fields:
        messages = _messages(place, "messages", fields["messages"])
    else:
        messages = _pair(place, fields)
    _check_order(place, messages)
    return Demonstration(tuple(messages), _tools(place, fields.get("tools")), place)


def _pair(place: str, fields: Mapping[str, Any]) -> list[Message]:
    """A question and what the assistant answers."""
    asked = next((name for name in INPUT_FIELDS if name in fields), None)
    text = next((name for name in ANSWER_FIELDS if name in fields), None)
    if asked is None or text is None:
        there = ", ".join(repr(name) for name in fields) or "nothing"
        raise DataError(
            f"{place}: no demonstration; the row has {there}, and needs 'messages', or one of "
            f"{', '.join(INPUT_FIELDS[:-1])} with one of {', '.join(ANSWER_FIELDS)}"
        )
    question, answer = fields[asked], fields[text]
    if isinstance(answer, (int, float)) and not isinstance(answer, bool):
        answer = str(answer)
    if not isinstance(answer, str) or not answer.strip():
        raise DataError(f"{place}: field {text!r} must be a text, not {short(answer)}")
    if isinstance(question, str) and question.strip():
        before = [Message("user", question)]
    elif isinstance(question, list):
        before = _messages(place, asked, question)
    else:
        raise DataError(
            f"{place}: field {asked!r} must be a text or a list of messages, not {short(question)}"
        )
    return [*before, Message("assistant", answer)]


def _json_object(value: Any) -> Any:
    """Arguments as the JSON text of an object."""
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if not isinstance(value, str):
        raise ValueError("JSON text or an object is needed")
    try:
        read = parse_json(value)
    except ValueError as error:
        raise ValueError(f"it is no JSON: {error}") from error
    if not isinstance(read, dict):
        raise ValueError("it must be a JSON object")
    return value


class _Function(BaseModel):
    """What of a call is the model's own."""

    name: str = Field(min_length=1)
    arguments: Annotated[str, BeforeValidator(_json_object)]


class _DemonstratedCall(BaseModel):
    """A call of a tool, as OpenAI writes it."""

    id: Any = None
    function: _Function


class _Said(BaseModel):
    """A message, as OpenAI writes it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: list[_DemonstratedCall] | None = None
    tool_call_id: Any = None
    name: Any = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only the assistant calls tools")
        if not self.content and self.role in ("system", "user"):
            raise ValueError(f"content is empty; the {self.role} says nothing")
        return self

    def read(self) -> Message:
        """The same as a built-in one."""
        calls = [
            ToolCall(str(call.id or f"call_{i}"), call.function.name, call.function.arguments)
            for i, call in enumerate(self.tool_calls or ())
        ]
        call_id = None if self.tool_call_id is None else str(self.tool_call_id)
        name = None if self.name is None else str(self.name)
        return Message(self.role, self.content, tuple(calls), call_id, name)


class _Told(BaseModel):
    """A tool, without or within OpenAI's `function`."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: JSON


def _within_function(value: Any) -> Any:
    return cast("JSON", value).get("function", value) if isinstance(value, dict) else value


_MESSAGES = TypeAdapter(Annotated[list[_Said], Field(min_length=1)])
_TOOLS = TypeAdapter(list[Annotated[_Told, BeforeValidator(_within_function)]] | None)
Read = TypeVar("Read")


def _read(adapter: TypeAdapter[Read], place: str, field: str, value: Any) -> Read:
    """A field by its types. Raises `DataError` with what is wrong first."""
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError as misfit:
        error = misfit.errors()[0]
        steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in error["loc"]]
        message = f"{error['msg']}, not {short(error['input'])}"
        raise DataError(f"{place}: field {field + ''.join(steps)!r}: {message}") from misfit


def _messages(place: str, field: str, value: Any) -> list[Message]:
    return [said.read() for said in _read(_MESSAGES, place, field, value)]


def _tools(place: str, value: Any) -> tuple[ToolSpec, ...]:
    items = _read(_TOOLS, place, "tools", value) or ()
    return tuple(ToolSpec(t.name, t.description or "", t.parameters) for t in items)


def _check_order(place: str, messages: Sequence[Message]) -> None:
    """Refuse a conversation that cannot have happened in this order."""
    if not any(m.role == "assistant" for m in messages):
        raise DataError(
            f"{place}: field 'messages' has no turn of the assistant, so nothing can be learned"
        )
    open_calls: list[str] = []
    before = ""
    for i, message in enumerate(messages):
        wrong = _misplaced(message, before, open_calls)
        if wrong is not None:
            raise DataError(f"{place}: field 'messages[{i}]': {wrong}")
        if message.role == "assistant":
            open_calls = [call.id for call in message.tool_calls]
        elif message.role == "tool" and message.name != UNREADABLE:
            open_calls.remove(message.tool_call_id or open_calls[0])
        before = message.role
    last = len(messages) - 1
    if before != "assistant":
        raise DataError(
            f"{place}: field 'messages[{last}]': a demonstration ends with the assistant, not "
            f"with {before!r}"
        )
    if not messages[-1].content and not messages[-1].tool_calls:
        raise DataError(f"{place}: field 'messages[{last}].content' is empty; nothing is said")


def _misplaced(message: Message, before: str, open_calls: Sequence[str]) -> str | None:
    """What is wrong with a message after one of the role `before`, None when nothing is."""
    role = message.role
    if role == "tool":
        if message.name == UNREADABLE and before:
            return None
        if not open_calls:
            return "a result of a tool that nobody called"
        text = message.tool_call_id
        if text is not None and text not in open_calls:
            return f"tool_call_id {text!r} is not among the open calls {list(open_calls)!r}"
        return None
    if role == "assistant" and open_calls and before == "tool":
        return f"the assistant goes on before the call {open_calls[0]!r} has its result"
    if role == "system" and before not in ("", "system"):
        return f"'system' follows {before!r}; it stands first"
    if role == "assistant" and before in ("", "system"):
        return "the assistant speaks before the user"
    if role == "assistant" and before == "assistant":
        return "the assistant speaks twice in a row"
    return None


def overlap_of(
    train: Sequence[Demonstration], val: Sequence[Demonstration], test: Sequence[Task]
) -> Overlap:
    """How many demonstrations repeat, and how many test tasks ask what one of them answers."""
    shown = count_overlap(train, val, (), key=lambda one: content_of(_said(one.messages)))
    known = {content_of(_said(_prompt_of(one.messages))) for one in train}
    asks = [content_of(_said(_prompt_of(task.messages()))) for task in test if task.has_input]
    return replace(
        shown,
        test=len(test),
        test_in_train=sum(one in known for one in asks),
        test_repeated=len(asks) - len({*asks}),
    )


def _said(messages: Sequence[Message]) -> list[object]:
    return [
        [m.role, m.content, [[call.name, call.arguments] for call in m.tool_calls]]
        for m in messages
    ]
