"""The input items of responses as messages: a thought, a message and the calls beside it make one
turn of the assistant. `responses.py` reads the rest of a request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, Field, StrictStr

from tutelage.engine.asked import CALL_FIELDS, DETAILS, PARTS
from tutelage.gateway.dialects.field_errors import missing
from tutelage.gateway.dialects.parts import Arguments, CallObject, Content, call_fields, with_parts
from tutelage.gateway.dialects.reading import Items, MessageObject, read
from tutelage.gateway.dialects.stored import StoredResponses
from tutelage.gateway.errors import ApiError, invalid
from tutelage.types import JSON, THOUGHTS, Message, ToolCall

_KINDS = Literal[
    "message", "function_call", "function_call_output", "item_reference", "reasoning",
    "custom_tool_call", "custom_tool_call_output",
]  # fmt: skip


class _Item(BaseModel):
    type: _KINDS | None = None
    id: StrictStr | None = None


class _Message(MessageObject):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content | None = None

    @classmethod
    def prepared(cls, values: JSON, passing: bool) -> JSON:
        """Content that is text, with its parts where they say more."""
        return with_parts(values, "content", passing)


class _FunctionCall(CallObject):
    call_id: StrictStr
    name: StrictStr
    arguments: Arguments


class _CustomCall(CallObject):
    call_id: StrictStr
    name: StrictStr
    input: StrictStr


class _CallOutput(MessageObject):
    call_id: StrictStr
    output: Content | None = None

    @classmethod
    def prepared(cls, values: JSON, passing: bool) -> JSON:
        """Output that is text, with its parts where they say more."""
        return with_parts(values, "output", passing)


class _ReasoningText(MessageObject):
    text: StrictStr = ""


class _Thought(MessageObject):
    content: Items[_ReasoningText] = Field(default_factory=list[_ReasoningText])


def read_items(
    items: Iterable[Any], stored: StoredResponses, *, passing: bool
) -> tuple[Message, ...]:
    """Input items as messages; a thought, a message and the calls beside it make one assistant
    turn."""
    messages: list[Message] = []
    thought: JSON = {}
    for i, item in enumerate(items):
        at = f"input[{i}]"
        head = read(_Item, item, at)
        if head.type == "item_reference":
            item = stored.item(head.id or "")
            if item is None:
                words = f"item {head.id!r} not found in this attempt"
                raise ApiError(404, words, param=f"{at}.id")
            head = read(_Item, item, at)
        if head.type == "reasoning":
            # No template of ours has a place for a thought that comes back; others' may have.
            _think(thought, read(_Thought, item, at))
            continue
        new = _message(head.type, item, at, passing)
        if new.role == "assistant" and thought:
            new = replace(new, extra={**new.extra, **thought})
        thought = {}
        last = messages[-1] if messages else new
        both = bool(messages) and last.role == new.role == "assistant"
        # LiteLLM sends the text of a turn after its calls; two messages are two turns.
        if both and (new.tool_calls or last.tool_calls):
            new = _joined(messages.pop(), new)
        messages.append(new)
    return tuple(messages)


def _think(thought: JSON, item: _Thought) -> None:
    """Add a thought to what is thought before a turn, under the name of the upstream's field."""
    more = item.model_extra or {}
    name = more.get("encrypted_content")
    field = name if name in THOUGHTS else THOUGHTS[0]
    if text := "".join(part.text for part in item.content):
        thought[field] = thought.get(field, "") + text
    if isinstance(more.get(DETAILS), list):
        thought[DETAILS] = [*thought.get(DETAILS, ()), *more[DETAILS]]


def _message(kind: str | None, item: Any, at: str, passing: bool) -> Message:
    """An item as a message, or as a part of an assistant's turn."""
    if kind == "function_call":
        called = read(_FunctionCall, item, at)
        call = ToolCall(called.call_id, called.name, called.arguments)
        return Message("assistant", None, (call,), extra=_beside(called))
    if kind == "custom_tool_call":
        made = read(_CustomCall, item, at)
        if not passing:
            raise invalid(f"`{at}` calls a custom tool, which this model does not support", at)
        call = ToolCall(made.call_id, made.name, made.input, custom=True)
        return Message("assistant", None, (call,), extra=_beside(made))
    if kind in ("function_call_output", "custom_tool_call_output"):
        answer = read(_CallOutput, item, at, passing=passing)
        kept = {k: v for k, v in (answer.model_extra or {}).items() if k != "type"}
        return Message("tool", answer.output or "", tool_call_id=answer.call_id, extra=kept)
    message = read(_Message, item, at, passing=passing)
    extra = message.model_extra or {}
    if message.content is None and message.role != "assistant" and not passing:
        raise missing(f"{at}.content")
    content = message.content or ""
    if message.role != "developer":
        return Message(message.role, content, extra=extra)
    # Templates know a developer's message as a system message.
    return Message("system", content, extra={**extra, "role": "developer"})


def _beside(call: _FunctionCall | _CustomCall) -> JSON:
    fields = {k: v for k, v in (call.model_extra or {}).items() if k != "type"}
    return call_fields([(call.call_id, fields)])


def _joined(turn: Message, new: Message) -> Message:
    """Two parts of an assistant's turn."""
    extra: JSON = {**turn.extra, **new.extra}
    for name in turn.extra.keys() & new.extra.keys():
        match turn.extra[name], new.extra[name]:
            case dict(one), dict(other) if name == CALL_FIELDS:
                extra[name] = {**one, **other}
            case str(one), str(other) if name in THOUGHTS:
                extra[name] = one + other
            case list(one), list(other) if name == PARTS:
                extra[name] = [*one, *other]
            case _:
                pass
    said = (turn.content or "") + (new.content or "")
    return Message("assistant", said or None, turn.tool_calls + new.tool_calls, extra=extra)
