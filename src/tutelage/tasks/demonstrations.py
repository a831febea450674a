"""Demonstrations: complete conversations for supervised training, read from files and checked.

Two kinds of row are accepted: chat rows, `{"messages": [...], "tools": [...]}` in the OpenAI form,
which `tutelage export RUN --format sft` writes, and pairs of a question and its answer. A row
without an assistant turn, or with messages that `messages.py` refuses, is refused with file, line
and field before a model is loaded. `readers.py` reads files to rows; `weights/inputs.py` makes
token rows of demonstrations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter

from tutelage.errors import DataError
from tutelage.tasks.messages import check_order, read_field, read_messages
from tutelage.tasks.overlap import Overlap, count_overlap, hash_value
from tutelage.tasks.readers import RawRow, read_rows, short_repr
from tutelage.types import INPUT_FIELDS, JSON, THOUGHTS, Message, Task, ToolSpec

ANSWER_FIELDS = ("answer", "response")
"""Fields that may hold the assistant's answer of a pair; the first one present is used."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A conversation that ends with an assistant message, and the tools available in it."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    place: str = ""
    """Place of its row, such as `train.jsonl:17`."""
    file: str = ""

    @property
    def has_reasoning(self) -> bool:
        """Return True if any message has reasoning in addition to its content."""
        return any(message.extra.get(THOUGHTS[0]) for message in self.messages)


def load_demonstrations(paths: Sequence[str | Path]) -> list[Demonstration]:
    """Load demonstrations from JSON, JSONL, CSV or Parquet files, in order.

    Raises `DataError` naming file, line and field of the first invalid row.
    """
    return [read_demonstration(row, str(path)) for path in paths for row in read_rows(path)]


class _DemonstratedTool(BaseModel):
    """A tool, with or without OpenAI's `function` wrapper."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: JSON


def _unwrap_function(value: Any) -> Any:
    """Return the content of OpenAI's `function` wrapper, if present."""
    return cast("JSON", value).get("function", value) if isinstance(value, dict) else value


_TOOLS = TypeAdapter(list[Annotated[_DemonstratedTool, BeforeValidator(_unwrap_function)]] | None)


def read_demonstration(row: RawRow, file: str) -> Demonstration:
    """Create a demonstration from one raw row. Raises `DataError` with place and field."""
    place, value = row
    if not isinstance(value, Mapping):
        raise DataError(
            f"{place}: a row must be an object of named fields, not {short_repr(value)}"
        )
    fields = cast("Mapping[str, Any]", value)
    if "messages" in fields:
        messages = read_messages(place, "messages", fields["messages"])
    else:
        field = next((name for name in INPUT_FIELDS if name in fields), None)
        key = next((name for name in ANSWER_FIELDS if name in fields), None)
        if field is None or key is None:
            names = ", ".join(repr(name) for name in fields) or "nothing"
            raise DataError(
                f"{place}: not a demonstration; the row has {names}; it needs 'messages' or one of "
                f"{', '.join(INPUT_FIELDS[:-1])} and one of {', '.join(ANSWER_FIELDS)}"
            )
        question, answer = fields[field], fields[key]
        if isinstance(answer, (int, float)) and not isinstance(answer, bool):
            answer = str(answer)
        if not isinstance(answer, str) or not answer.strip():
            raise DataError(f"{place}: field {key!r} must be a string, not {short_repr(answer)}")
        if not isinstance(question, list):
            question = [{"role": "user", "content": question}]
        messages = [*read_messages(place, field, question), Message("assistant", answer)]
    if not any(m.role == "assistant" and m.extra.get("weight") != 0 for m in messages):
        raise DataError(
            f"{place}: field 'messages' has no assistant turn with a nonzero weight, so there "
            "is nothing to train on"
        )
    check_order(place, "messages", messages)
    end = messages[-1]
    if end.role != "assistant" or not (end.content or end.tool_calls):
        raise DataError(
            f"{place}: field 'messages[{len(messages) - 1}]': a demonstration must end with a "
            f"non-empty assistant message, not {short_repr(end.to_dict())}"
        )
    tools = read_field(_TOOLS, place, "tools", fields.get("tools")) or ()
    specs = tuple(ToolSpec(t.name, t.description or "", t.parameters) for t in tools)
    return Demonstration(tuple(messages), specs, place, file)


def count_demonstration_overlap(
    train: Sequence[Demonstration], val: Sequence[Demonstration], test: Sequence[Task]
) -> Overlap:
    """Count repeated demonstrations, and test tasks whose prompt occurs in a demonstration."""

    def hash_messages(messages: Sequence[Message]) -> str:
        """Return a hash of messages."""
        calls = [[[call.name, call.arguments] for call in m.tool_calls] for m in messages]
        return hash_value([[m.role, m.content, c] for m, c in zip(messages, calls, strict=True)])

    def hash_prompt(messages: Sequence[Message]) -> str:
        """Return a hash of the messages before the first assistant message, except system ones."""
        before = takewhile(lambda m: m.role != "assistant", messages)
        return hash_messages([m for m in before if m.role != "system"])

    shown = count_overlap(train, val, (), key=lambda one: hash_messages(one.messages))
    asked = [task.messages() for task in test if task.has_input]
    asks = count_overlap([one.messages for one in train], (), asked, key=hash_prompt)
    both = {"test_in_train": asks.test_in_train, "test_repeated": asks.test_repeated}
    return replace(shown, test=len(test), **both)


def demonstration_texts(demonstrations: Sequence[Demonstration]) -> Iterator[str]:
    """Yield the texts of demonstrations, to train a tokenizer."""
    for one in demonstrations:
        if one.tools:
            names = (
                f"{t.name}({', '.join(t.parameters.get('properties', {}))})" for t in one.tools
            )
            yield f"system\nTools: {' '.join(names)}\nuser\nassistant\ntool\n"
        yield from message_texts(one.messages, str)


def message_texts(messages: Iterable[Message], arguments: Callable[[str], str]) -> Iterator[str]:
    """Yield the contents and tool calls of messages; `arguments` formats a call's arguments."""
    for message in messages:
        if message.content:
            yield message.content
        for call in message.tool_calls:
            yield f'{{"name": "{call.name}", "arguments": {arguments(call.arguments)}}}'
