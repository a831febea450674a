"""Anthropic's Messages: `POST /v1/messages`, its object and the events of its stream.

A turn is a list of blocks here. Tool results come in the user's turn and become messages of their
own; a thought is a block before the text, whose `signature` is the text that was sampled, so that a
client that sends it back restores the turn exactly. `chat_completions.py` is the API that the
others are measured by.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, StrictStr

from tutelage.bounded import parse_json
from tutelage.gateway.dialects.dialect import Path, SessionView
from tutelage.gateway.dialects.reading import (
    MAX_STOPS,
    MAX_TOOLS,
    Items,
    MessageObject,
    Name,
    RequestObject,
    RequestReader,
    Stop,
    missing,
    read,
    tool_specs,
)
from tutelage.gateway.dialects.stored import StoredResponses
from tutelage.gateway.errors import ApiError, invalid
from tutelage.gateway.http import event
from tutelage.gateway.reply import ChatReply, Piece, finish_reason, shown_content, stopped_by
from tutelage.gateway.request import ChatRequest
from tutelage.gateway.text import ThoughtStream
from tutelage.types import JSON, Call, Message, Sampling, ToolCall

_OURS = "tutelage:"  # what a signature of this server begins with
_NO_CACHE: JSON = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
_ENDS = {"tool_calls": "tool_use", "length": "max_tokens", "stop": "end_turn"}


class _Text(MessageObject):
    type: Literal["text"]
    text: StrictStr


class _ToolUse(MessageObject):
    type: Literal["tool_use"]
    id: StrictStr
    name: StrictStr
    input: JSON


def _blocks(content: Any) -> Any:
    """Content as a list of blocks: a string is one text."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class _ToolResult(MessageObject):
    type: Literal["tool_result"]
    tool_use_id: StrictStr
    content: Annotated[Items[_Text], BeforeValidator(_blocks)] = Field(default_factory=list[_Text])


class _Thinking(MessageObject):
    type: Literal["thinking", "redacted_thinking"]
    signature: StrictStr = ""


_Block = _Text | _ToolUse | _ToolResult | _Thinking


class _Message(MessageObject):
    role: Literal["user", "assistant"]
    content: Annotated[
        Items[Annotated[_Block, Field(discriminator="type")]], BeforeValidator(_blocks)
    ]


class _Tool(RequestObject):
    harmless = ("cache_control", "eager_input_streaming", "defer_loading", "input_examples")
    neutral: ClassVar[Mapping[str, Sequence[Any]]] = {"allowed_callers": (["direct"],)}
    type: Literal["custom"] = "custom"
    name: Name
    description: StrictStr = ""
    strict: StrictBool = False
    parameters: JSON = Field(alias="input_schema")


class _Choice(RequestObject):
    type: Literal["auto", "any", "tool", "none"] = "auto"
    name: StrictStr | None = None
    disable_parallel_tool_use: StrictBool = False


class _ThinkingSetting(RequestObject):
    harmless = ("display",)
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: StrictInt | None = Field(None, ge=1)

    def limit(self) -> int | None:
        """After how many tokens a thought is closed."""
        if self.type == "disabled":
            return 0
        return self.budget_tokens if self.type == "enabled" else None


class _Format(RequestObject):
    type: Literal["json_schema"]
    wanted: JSON = Field(alias="schema")


class _Output(RequestObject):
    format: _Format | None = None


class _Request(RequestReader):
    harmless = ("metadata", "service_tier", "cache_control", "betas", "inference_geo")
    neutral: ClassVar[Mapping[str, Sequence[Any]]] = {
        "container": (),
        "mcp_servers": ([],),
        "context_management": ({}, {"edits": []}),
        "thread": (),
    }
    messages: Items[_Message] = Field(min_length=1)
    system: Annotated[Items[_Text], BeforeValidator(_blocks)] = Field(default_factory=list[_Text])
    tools: Items[_Tool] = Field(default_factory=list[_Tool], max_length=MAX_TOOLS)
    stop_sequences: Items[Stop] = Field(default_factory=list[str], max_length=MAX_STOPS)
    thinking: _ThinkingSetting | None = None
    output_config: _Output | None = None
    max_tokens: StrictInt | None = Field(None, ge=1)


class Messages:
    """The dialect; see `Dialect`."""

    name = "messages"
    path = "/v1/messages"
    prefix = "msg_"
    prompt_field = "messages"
    request = _Request

    def __init__(self) -> None:
        self.paths: Mapping[str, Mapping[str, Path]] = {
            "/v1/messages/count_tokens": {"POST": self._count}
        }

    def read(self, body: JSON, defaults: Sampling, stored: StoredResponses) -> ChatRequest:
        """The request. Raises `ApiError`."""
        choice = read(_Choice, body.get("tool_choice") or {}, "tool_choice")
        request = read(_Request, {**body, "tool_choice": None})
        request.tool_choice = _chosen(choice)
        request.parallel_tool_calls &= not choice.disable_parallel_tool_use
        request.stop += request.stop_sequences
        tools = tool_specs(request.tools)
        wanted = None if request.output_config is None else request.output_config.format
        sampling = request.sampling(defaults, request.max_tokens)
        if request.thinking is not None:
            sampling = replace(sampling, max_thinking_tokens=request.thinking.limit())
        system = "\n\n".join(block.text for block in request.system)
        return ChatRequest(
            model=request.model,
            messages=(*([Message("system", system)] if system else ()), *_messages(request)),
            sampling=sampling,
            tools=tools,
            constraint=request.constraint(tools, wanted and wanted.wanted),
            seed=request.seed,
            stream=request.stream,
        )

    def written(self, reply: ChatReply) -> JSON:
        """The `message` object."""
        (choice,) = reply.choices
        return {
            **_object(reply),
            "content": list(_written_blocks(reply, choice)),
            **_ending(choice),
        }

    def writer(self, reply: ChatReply) -> _Events:
        """The stream of a reply."""
        return _Events(reply)

    def _count(self, path: Mapping[str, str], body: JSON, attempt: SessionView) -> JSON:
        request = self.read(body, attempt.sampling, attempt.responses)
        return {"input_tokens": attempt.count(request)}

    def error(self, error: ApiError) -> JSON:
        """An error as Anthropic writes it."""
        return error.anthropics_body()


# ---------------------------------------------------------------- reading


def _chosen(choice: _Choice) -> str:
    """`tool_choice` in the words of `Constraint`."""
    if choice.type != "tool":
        return "required" if choice.type == "any" else choice.type
    if choice.name is None:
        raise missing("tool_choice.name")
    return choice.name


def _messages(request: _Request) -> Iterator[Message]:
    """The messages: a user's tool results each are one, before or after what the user says."""
    for i, turn in enumerate(request.messages):
        if turn.role == "assistant":
            yield _said(turn.content, f"messages[{i}]")
            continue
        for result, group in groupby(turn.content, lambda block: block.type == "tool_result"):
            blocks = list(group)
            if result:
                yield from (_result(b) for b in blocks if isinstance(b, _ToolResult))
            else:
                said = _text(blocks, ("text",), f"messages[{i}]")
                yield Message("user", said, extra=turn.model_extra or {})


def _text(blocks: Iterable[_Block], allowed: Sequence[str], path: str) -> str:
    """The text of blocks, all of a kind that may stand here."""
    for block in blocks:
        if block.type not in allowed:
            raise invalid(f"`{path}` has a block {block.type!r}, which is not of its role", path)
    return "".join(block.text for block in blocks if isinstance(block, _Text))


def _result(block: _ToolResult) -> Message:
    text = "".join(part.text for part in block.content)
    return Message("tool", text, tool_call_id=block.tool_use_id, extra=block.model_extra or {})


def _said(blocks: Sequence[_Block], path: str) -> Message:
    """An assistant's turn. Thoughts of this server are put back as they were sampled; another
    model's are left out, since this one's template has no place for them."""
    calls = tuple(
        ToolCall(b.id, b.name, json.dumps(b.input, ensure_ascii=False))
        for b in blocks
        if isinstance(b, _ToolUse)
    )
    kinds = ("text", "tool_use", "thinking", "redacted_thinking")
    thought = "".join(_sampled(b.signature) for b in blocks if isinstance(b, _Thinking))
    text = thought + _text(blocks, kinds, path)
    return Message("assistant", (text or None) if calls else text, calls)


def _sampled(signature: str) -> str:
    """The sampled text behind a signature of this server."""
    if not signature.startswith(_OURS):
        return ""
    try:
        return base64.b64decode(signature.removeprefix(_OURS), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


# ---------------------------------------------------------------- writing


def _object(reply: ChatReply) -> JSON:
    """The object as it begins."""
    return {
        "id": reply.answer.id,
        "type": "message",
        "role": "assistant",
        "model": reply.request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(reply),
    }


def _usage(reply: ChatReply) -> JSON:
    prompt, sampled = reply.usage if reply.choices else (reply.answer.prompt_tokens, 0)
    return {**_NO_CACHE, "input_tokens": prompt, "output_tokens": sampled}


def _ending(choice: Call) -> JSON:
    stop = stopped_by(choice)
    reason = finish_reason(choice)
    if reason == "stop" and stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": _ENDS.get(reason, "refusal"), "stop_sequence": None}


def _written_blocks(reply: ChatReply, choice: Call) -> Iterator[JSON]:
    """Thought, text and tool uses of a turn."""
    split = reply.thoughts()
    thought, text = split.feed(shown_content(choice) or "", last=True)
    if split.shown:
        yield {"type": "thinking", "thinking": thought, "signature": _signed(split)}
    if text:
        yield {"type": "text", "text": text}
    yield from _tool_uses(choice)


def _tool_uses(choice: Call) -> Iterator[JSON]:
    for call in choice.reply.tool_calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call)}


def _input(call: ToolCall) -> JSON:
    """Arguments as an object. What the model wrote and is none is one field of it."""
    try:
        values = parse_json(call.arguments)
    except ValueError:
        values = call.arguments
    return values if isinstance(values, dict) else {"arguments": values}


def _signed(split: ThoughtStream) -> str:
    return _OURS + base64.b64encode(split.raw.encode()).decode()


class _Events:
    """The events of a stream; see `Writer`."""

    def __init__(self, reply: ChatReply) -> None:
        self._reply = reply
        self._split = reply.thoughts()
        self._begun = False
        self._index = -1
        self._open: str | None = None

    def text(self, index: int, new: Piece) -> bytes:
        """More of the thought, or of the text."""
        return self._begin() + self._parts(*self._split.feed(new.text))

    def finish(self, reply: ChatReply, rests: Sequence[Piece]) -> bytes:
        """What is left, the tool uses, and the end."""
        (choice,) = reply.choices
        rest = self._split.feed(rests[0].text, last=True)
        out = self._begin() + self._parts(*rest) + self._close()
        for block in _tool_uses(choice):
            said = json.dumps(block["input"], ensure_ascii=False)
            out += self._block({**block, "input": {}})
            out += self._delta({"type": "input_json_delta", "partial_json": said}) + self._close()
        ending = {"type": "message_delta", "delta": _ending(choice), "usage": _usage(reply)}
        out += event(ending, "message_delta")
        return out + event({"type": "message_stop"}, "message_stop")

    def failed(self, error: ApiError) -> bytes:
        """What a stream that breaks ends with."""
        return event(error.anthropics_body(), "error")

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return event({"type": "message_start", "message": _object(self._reply)}, "message_start")

    def _parts(self, thought: str, text: str) -> bytes:
        out = b""
        if not thought and self._index < 0 and self._split.ended:  # an empty one, to be restored
            out = self._block({"type": "thinking", "thinking": "", "signature": ""})
        for kind, new in (("thinking", thought), ("text", text)):
            if new and self._open != kind:
                signed: JSON = {"signature": ""} if kind == "thinking" else {}
                out += self._close() + self._block({"type": kind, kind: "", **signed})
            out += self._delta({"type": f"{kind}_delta", kind: new}) if new else b""
        return out

    def _block(self, block: JSON) -> bytes:
        self._index, self._open = self._index + 1, block["type"]
        begun = {"type": "content_block_start", "index": self._index, "content_block": block}
        return event(begun, "content_block_start")

    def _delta(self, delta: JSON) -> bytes:
        data = {"type": "content_block_delta", "index": self._index, "delta": delta}
        return event(data, "content_block_delta")

    def _close(self) -> bytes:
        """End the open block, if one is."""
        kind, self._open = self._open, None
        if kind is None:
            return b""
        signed = {"type": "signature_delta", "signature": _signed(self._split)}
        out = self._delta(signed) if kind == "thinking" else b""
        ended = {"type": "content_block_stop", "index": self._index}
        return out + event(ended, "content_block_stop")
