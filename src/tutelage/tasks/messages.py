"""Chat messages of rows, read and checked, for tasks and demonstrations.

The messages are OpenAI's. Impossible conversations (a tool result without a call, arguments that
are not JSON, an empty user message) are refused with file, line and field, before a model is
loaded. `dataset.py` reads the messages of tasks, `demonstrations.py` complete conversations.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

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
from tutelage.tasks.readers import short_repr
from tutelage.types import JSON, THOUGHTS, Message, ToolCall, join_text_parts

UNREADABLE = "unreadable"
"""Name of the results by which the built-in agent answers calls that it could not parse."""


def _dump_object(value: Any) -> Any:
    """Convert a call's arguments to the text of a JSON object."""
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        read = parse_json(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"invalid JSON string of an object: {error}") from error
    if not isinstance(read, dict):
        raise ValueError("must be a JSON object")
    return value


class _Function(BaseModel):
    """Name and arguments of a tool call."""

    name: str = Field(min_length=1)
    arguments: Annotated[str, BeforeValidator(_dump_object)]


class _ChatCall(BaseModel):
    """A tool call in OpenAI's form."""

    id: Any = None
    function: _Function


class _ChatMessage(BaseModel):
    """A message in OpenAI's form."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(join_text_parts)] = None
    tool_calls: list[_ChatCall] | None = None
    tool_call_id: Any = None
    name: Any = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    weight: Annotated[float | None, Field(ge=0, le=1, multiple_of=1)] = None
    """Weight in the loss: 0 for a turn that is not trained. Only assistant turns are trained."""

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        """Check fields that depend on the role."""
        own = self.tool_calls or self.reasoning_content or self.reasoning or self.weight
        if own and self.role != "assistant":
            raise ValueError("tool_calls, reasoning and weight 1 need the role assistant")
        if self.role in ("system", "developer", "user") and not (self.content or "").strip():
            raise ValueError(f"content must not be empty for the role {self.role}")
        return self

    def read(self) -> Message:
        """Convert to a `Message`, with reasoning and weight in its `extra`."""
        calls = [
            ToolCall(str(call.id or f"call_{i}"), call.function.name, call.function.arguments)
            for i, call in enumerate(self.tool_calls or ())
        ]
        call_id = None if self.tool_call_id is None else str(self.tool_call_id)
        name = None if self.name is None else str(self.name)
        thought = self.reasoning_content or self.reasoning
        extra: JSON = {"weight": self.weight, **dict.fromkeys(THOUGHTS, thought)}
        role = "system" if self.role == "developer" else self.role
        return Message(role, self.content, tuple(calls), call_id, name, extra)


_MESSAGES = TypeAdapter(Annotated[list[_ChatMessage], Field(min_length=1)])
Read = TypeVar("Read")


def read_field(adapter: TypeAdapter[Read], place: str, field: str, value: Any) -> Read:
    """Validate the value of a field. Raises `DataError` for the first error."""
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError as misfit:
        error = misfit.errors()[0]
        steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in error["loc"]]
        message = f"{error['msg'].removeprefix('Value error, ')}; got {short_repr(error['input'])}"
        raise DataError(f"{place}: field {field + ''.join(steps)!r}: {message}") from misfit


def read_messages(place: str, field: str, value: Any) -> list[Message]:
    """Return the chat messages of a row. Raises `DataError` with place and field."""
    return [message.read() for message in read_field(_MESSAGES, place, field, value)]


def check_order(
    place: str, field: str, messages: Sequence[Message], *, complete: bool = True
) -> None:
    """Raise `DataError` for messages in an invalid order. Unless `complete`, the last message must
    be one that the assistant can answer. In a task, which is context and not an example, earlier
    assistant messages may be anywhere, such as a greeting first."""
    open_calls: list[str] = []
    before = ""
    turns = messages if complete else [*messages, Message("assistant")]
    for i, message in enumerate(turns):
        problem = _order_error(message, before, open_calls)
        if problem is not None and i == len(messages):
            raise DataError(
                f"{place}: field {field!r} must end with a user message or a tool result "
                f"for the agent to answer; otherwise {problem}"
            )
        if problem is not None and (complete or message.role != "assistant"):
            raise DataError(f"{place}: field '{field}[{i}]': {problem}")
        if message.role == "assistant":
            open_calls = [call.id for call in message.tool_calls]
        elif message.role == "tool" and message.name != UNREADABLE:
            open_calls.remove(message.tool_call_id or open_calls[0])
        before = message.role


def _order_error(message: Message, previous: str, open_calls: Sequence[str]) -> str | None:
    """Return an error if a message cannot follow one of the role `previous`, else None."""
    role = message.role
    if role == "tool":
        if message.name == UNREADABLE and previous:
            return None
        if not open_calls:
            return "there is a tool result without a tool call"
        text = message.tool_call_id
        if text is not None and text not in open_calls:
            return f"tool_call_id {text!r} matches none of the open tool calls {list(open_calls)!r}"
        return None
    if role == "assistant" and open_calls and previous == "tool":
        return f"the assistant continues before the result of its call {open_calls[0]!r}"
    if role == "system" and previous not in ("", "system"):
        return f"'system' follows {previous!r}; it must come first"
    if role == "assistant" and previous in ("", "system"):
        return "an assistant message comes before the first user message"
    if role == "assistant" and previous == "assistant":
        return "two assistant messages follow each other"
    return None
