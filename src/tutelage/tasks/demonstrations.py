"""Demonstrations: finished conversations for supervised training, read from files and checked.

Two kinds of row are read: chat rows, `{"messages": [...], "tools": [...]}` in the OpenAI form,
which is what `tutelage export RUN --format sft` writes, and pairs of a question and its answer. A
row without a turn of the assistant is refused with file, line and field, before any model is there,
as is one whose messages `messages.py` refuses. Files become rows in `readers.py`;
`weights/inputs.py` makes token rows of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter

from tutelage.errors import DataError
from tutelage.tasks.messages import check_order, read_field, read_messages
from tutelage.tasks.overlap import Overlap, content_of, count_overlap
from tutelage.tasks.readers import RawRow, read_rows, short
from tutelage.types import INPUT_FIELDS, JSON, THOUGHTS, Message, Task, ToolSpec

ANSWER_FIELDS = ("answer", "response")
"""The field of a pair that the assistant says: the first of these that the row has."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A conversation that ends with the assistant, and the tools that it was given."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    place: str = ""
    """Where it stands, such as `train.jsonl:17`."""
    file: str = ""

    @property
    def has_reasoning(self) -> bool:
        """True if a turn came with reasoning beside its content."""
        return any(message.extra.get(THOUGHTS[0]) for message in self.messages)


def _prompt_of(messages: Sequence[Message]) -> list[Message]:
    """What a conversation asks: all before the first turn of the assistant but the system's."""
    first = next((i for i, m in enumerate(messages) if m.role == "assistant"), len(messages))
    return [m for m in messages[:first] if m.role != "system"]


def load_demonstrations(paths: Sequence[str | Path]) -> list[Demonstration]:
    """The demonstrations of some files (JSON, JSONL, CSV, Parquet), in order.

    Raises `DataError` naming file, line and field of the first bad row.
    """
    return [read_demonstration(row, str(path)) for path in paths for row in read_rows(path)]


def read_demonstration(row: RawRow, file: str) -> Demonstration:
    """Check one raw row and make it a demonstration. Raises `DataError` with place and field."""
    place, value = row
    if not isinstance(value, Mapping):
        raise DataError(f"{place}: a row must be an object of named fields, not {short(value)}")
    fields = cast("Mapping[str, Any]", value)
    if "messages" in fields:
        messages = read_messages(place, "messages", fields["messages"])
    else:
        messages = _pair(place, fields)
    _check_trainable(place, messages)
    told = read_field(_TOOLS, place, "tools", fields.get("tools")) or ()
    tools = tuple(ToolSpec(t.name, t.description or "", t.parameters) for t in told)
    return Demonstration(tuple(messages), tools, place, file)


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
        raise DataError(f"{place}: field {text!r} must be a string, not {short(answer)}")
    if isinstance(question, str) and question.strip():
        before = [Message("user", question)]
    elif isinstance(question, list):
        before = read_messages(place, asked, question)
    else:
        raise DataError(
            f"{place}: field {asked!r} must be a string or list of messages, not {short(question)}"
        )
    return [*before, Message("assistant", answer)]


class _Told(BaseModel):
    """A tool, without or within OpenAI's `function`."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: JSON


def _within_function(value: Any) -> Any:
    return cast("JSON", value).get("function", value) if isinstance(value, dict) else value


_TOOLS = TypeAdapter(list[Annotated[_Told, BeforeValidator(_within_function)]] | None)


def _check_trainable(place: str, messages: Sequence[Message]) -> None:
    """Refuse a conversation that cannot have happened, or that has nothing to train."""
    if not any(m.role == "assistant" and m.extra.get("weight") != 0 for m in messages):
        raise DataError(
            f"{place}: field 'messages' has no assistant turn with a nonzero weight, so there "
            "is nothing to train on"
        )
    check_order(place, "messages", messages)
    last = len(messages) - 1
    if messages[-1].role != "assistant":
        raise DataError(
            f"{place}: field 'messages[{last}]': a demonstration must end with an assistant turn, "
            f"not {messages[-1].role!r}"
        )
    if not messages[-1].content and not messages[-1].tool_calls:
        raise DataError(f"{place}: field 'messages[{last}].content' must not be empty")


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
