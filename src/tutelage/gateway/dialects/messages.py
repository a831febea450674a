"""Anthropic's Messages API, `POST /v1/messages`: its object and stream events.

A turn is a list of blocks. Tool results are part of the user's turn and become separate messages. A
thought is a block before the text; its `signature` encodes the sampled text, so that a client that
returns it restores the whole text of the turn. The signature of an upstream server's thought is the
field in which that server sent it.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from pydantic import BeforeValidator, Field, StrictInt, StrictStr

from tutelage.bounded import parse_arguments
from tutelage.gateway.completions import AnswerCache, Delta, PendingCompletion
from tutelage.gateway.dialects.blocks import BlockWriter, TurnBlock, turn_blocks
from tutelage.gateway.dialects.dialect import Dialect
from tutelage.gateway.dialects.field_errors import format_value
from tutelage.gateway.dialects.reading import (
    MAX_MESSAGES,
    MAX_STOPS,
    MAX_TOOLS,
    PARTS,
    UNSUPPORTED,
    FunctionTool,
    Items,
    MessageObject,
    OutputOptions,
    RequestObject,
    RequestReader,
    Stop,
    call_fields,
    reply_schema,
    validate,
)
from tutelage.gateway.errors import ApiError, bad_request
from tutelage.gateway.reply import event, finish_reason, stop_sequence
from tutelage.gateway.request import ChatRequest
from tutelage.replies import ThoughtStream
from tutelage.types import JSON, THOUGHTS, Call, Message, Sampling, ToolCall

if TYPE_CHECKING:
    from tutelage.gateway.session import AttemptSession

_SIGNATURE_PREFIX = "tutelage:"  # prefix of this server's signatures
_KEEP_ALL = {"type": "clear_thinking_20251015", "keep": "all"}
"""An edit of the context that clears nothing, which Claude Code requests."""
_STOP_REASONS = {"tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}


def _to_blocks(content: Any) -> Any:
    """Return message content as a list of blocks; a string becomes one text block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise ValueError("must be a string or an array of content blocks")
    return cast("list[Any]", content)


def _read_tool_choice(value: Any) -> str:
    """Convert Anthropic's `tool_choice` to a `Constraint` value."""
    match value:
        case {"type": "any"}:
            return "required"
        case {"type": "auto" | "none" as mode}:
            return mode
        case {"type": "tool", "name": str(name)}:
            return name
        case _:
            raise ValueError("`type` must be auto, any, none, or tool with a `name`")


class _Text(MessageObject):
    type: Literal["text"]
    text: StrictStr


_Texts = Annotated[Items[_Text], BeforeValidator(_to_blocks)]


class _ToolUse(MessageObject):
    type: Literal["tool_use"]
    id: StrictStr
    name: StrictStr
    input: JSON


class _ToolResult(MessageObject):
    type: Literal["tool_result"]
    tool_use_id: StrictStr
    content: _Texts = Field(default_factory=list[_Text])


class _Thought(MessageObject):
    type: Literal["thinking", "redacted_thinking"]
    thinking: StrictStr = ""
    signature: StrictStr = ""


_Block = _Text | _ToolUse | _ToolResult | _Thought


class _Turn(MessageObject):
    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Items[Annotated[_Block, Field(discriminator="type")]], BeforeValidator(_to_blocks)
    ]


class _Tool(FunctionTool):
    parameters: JSON = Field(alias="input_schema")


class _Thinking(RequestObject):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: StrictInt | None = Field(None, ge=1)
    display: StrictStr | None = None


class _Request(RequestReader):
    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        **UNSUPPORTED,
        "prompt_logprobs": (),
        "thread": (),
        "n": (1,),
        "context_management": ({}, {"edits": []}, {"edits": [_KEEP_ALL]}),
    }
    schema_name = "output_config.format"
    tool_type = "custom"
    messages: Items[_Turn] = Field(min_length=1, max_length=MAX_MESSAGES)
    tool_choice: Annotated[str, BeforeValidator(_read_tool_choice)] = "auto"
    system: _Texts = Field(default_factory=list[_Text])
    tools: Items[_Tool] = Field(default_factory=list[_Tool], max_length=MAX_TOOLS)
    stop_sequences: Items[Stop] = Field(default_factory=list[str], max_length=MAX_STOPS)
    thinking: _Thinking | None = None
    output_config: OutputOptions | None = None
    max_tokens: StrictInt | None = Field(None, ge=1)

    @classmethod
    def unused_fields(cls, values: JSON) -> JSON:
        """Return the ignored request fields, including those of `output_config` except `format`."""
        fields, output = super().unused_fields(values), values.get("output_config") or {}
        rest = {name: output[name] for name in output if name != "format"}
        return {**fields, "output_config": rest} if rest else fields


# ---------------------------------------------------------------- reading


def _parse(body: JSON, defaults: Sampling, cache: AnswerCache) -> ChatRequest:
    """Parse a Messages request. Raises `ApiError`, also for a prefilled assistant turn."""
    request = _parse_request(body, defaults)
    if request.messages[-1].role == "assistant":
        path = f"messages[{len(body['messages']) - 1}]"
        raise bad_request(
            f"`{path}` has the role assistant: this model does not support assistant message "
            "prefill. The conversation must end with a user message",
            path,
        )
    return request


def _count_tokens(path: Mapping[str, str], body: JSON, attempt: AttemptSession) -> JSON:
    """Count a request's prompt tokens; the conversation may end with an assistant turn."""
    parse = partial(_parse_request, body, attempt.sampling)
    return {"input_tokens": attempt.count_tokens(body.get("model"), parse)}


def _parse_request(body: JSON, defaults: Sampling) -> ChatRequest:
    request, choice = validate(_Request, body), body.get("tool_choice") or {}
    request.parallel_tool_calls &= not choice.get("disable_parallel_tool_use")
    request.stop += request.stop_sequences
    thinking, prompt = request.thinking, "\n\n".join(block.text for block in request.system)
    system = [Message("system", prompt, extra=_content_parts(request.system))] if prompt else []
    format = request.output_config and request.output_config.format
    sampling, limit = request.sampling(defaults, request.max_tokens), None
    if thinking is not None and thinking.type != "adaptive":
        limit = thinking.budget_tokens if thinking.type == "enabled" else 0
    return request.make_request(
        (*system, *_parse_messages(request.messages)),
        request.tools,
        replace(sampling, max_thinking_tokens=limit),
        reply_schema(format, "output_config.format.schema"),
        omits_thoughts=thinking is not None and thinking.display == "omitted",
    )


def _parse_messages(turns: Sequence[_Turn]) -> Iterator[Message]:
    """Convert conversation turns to messages.

    Each tool result in a user's turn becomes a message of its own, before or after the user's text.
    """
    for i, turn in enumerate(turns):
        path, blocks, fields = f"messages[{i}]", turn.content, turn.model_extra or {}
        if turn.role == "assistant":
            yield _assistant_message(turn, path)
        elif turn.role == "system":
            yield Message("system", _join(blocks, path), extra=fields | _content_parts(blocks))
        elif not blocks:
            empty = f"{path}.content"
            raise bad_request(f"`{empty}` is empty: at least one block is required", empty)
        else:
            for j, block in enumerate(blocks):
                if isinstance(block, _ToolResult):
                    text = "".join(part.text for part in block.content)
                    extra = (block.model_extra or {}) | _content_parts(block.content)
                    yield Message("tool", text, tool_call_id=block.tool_use_id, extra=extra)
                elif j == 0 or isinstance(blocks[j - 1], _ToolResult):
                    rest = blocks[j:]
                    parts = [*takewhile(lambda b: not isinstance(b, _ToolResult), rest)]
                    text = _join(parts, path)
                    yield Message("user", text, extra=fields | _content_parts(parts))


def _assistant_message(turn: _Turn, path: str) -> Message:
    """Convert an assistant turn to a message.

    Thoughts of this server are restored as sampled, those of an upstream server are sent back to
    it, and other thoughts are dropped, since no template has a place for them.
    """
    thoughts = [b for b in turn.content if isinstance(b, _Thought)]
    uses = [b for b in turn.content if isinstance(b, _ToolUse)]
    calls = tuple(ToolCall(b.id, b.name, json.dumps(b.input, ensure_ascii=False)) for b in uses)
    extra = dict(turn.model_extra or {}) | _content_parts(turn.content)
    extra |= call_fields([(b.id, b.model_extra) for b in uses])
    for thought in thoughts:
        if thought.signature in THOUGHTS:
            extra[thought.signature] = extra.get(thought.signature, "") + thought.thinking
    kinds = ("text", "tool_use", "thinking", "redacted_thinking")
    text = "".join(sampled_text(b.signature) for b in thoughts) + _join(turn.content, path, kinds)
    return Message("assistant", (text or None) if calls else text, calls, extra=extra)


def _join(blocks: Sequence[_Block], path: str, types: Sequence[str] = ("text",)) -> str:
    """Join the text of content blocks. Raises `ApiError` for types that are not in `types`."""
    for block in blocks:
        if block.type not in types:
            text = f"`{path}` has a block {format_value(block.type)}, which its role does not allow"
            raise bad_request(text, path)
    return "".join(block.text for block in blocks if isinstance(block, _Text))


def _content_parts(blocks: Sequence[_Block]) -> JSON:
    """Return text blocks as chat-completion parts, or an empty dict if all are plain text."""
    texts = [block for block in blocks if isinstance(block, _Text)]
    has_fields = any(block.model_extra for block in texts)
    return {PARTS: [block.model_dump() for block in texts]} if has_fields else {}


def sampled_text(signature: str) -> str:
    """Return the sampled text in a signature of this server, or "" for other signatures."""
    if not signature.startswith(_SIGNATURE_PREFIX):
        return ""
    try:
        return base64.b64decode(signature.removeprefix(_SIGNATURE_PREFIX), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


# ---------------------------------------------------------------- writing


def _message(reply: PendingCompletion) -> JSON:
    """Return a `message` object without content."""
    return {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(reply),
    }


def _usage(reply: PendingCompletion) -> JSON:
    prompt, sampled = reply.usage if reply.calls else (reply.prompt_tokens, 0)
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {**cached, "input_tokens": prompt, "output_tokens": sampled}


def _stop_info(reply: PendingCompletion, choice: Call) -> JSON:
    stop, reason = stop_sequence(reply, choice), finish_reason(choice)
    if reason == "stop" and choice.reply.extra.get("refusal"):
        return {"stop_reason": "refusal", "stop_sequence": None}
    if reason == "stop" and stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": _STOP_REASONS.get(reason, "end_turn"), "stop_sequence": None}


def _write_block(block: TurnBlock, stream: ThoughtStream, reply: PendingCompletion) -> JSON:
    if block.kind == "thought":
        text = "" if reply.request.omits_thoughts else block.text
        return {"type": "thinking", "thinking": text, "signature": _signature(block, stream)}
    if block.kind == "call":
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": _read_input(block)}
    return {"type": "text", "text": block.text}


def _read_input(block: TurnBlock) -> JSON:
    """Parse a tool call's arguments as a JSON object. Invalid JSON is wrapped in a field
    `arguments`."""
    if not block.text.strip():
        return {}
    try:
        values = parse_arguments(block.text)
    except ValueError:
        values = block.text
    return values if isinstance(values, dict) else {"arguments": values}


def _signature(block: TurnBlock, stream: ThoughtStream) -> str:
    return block.source or _SIGNATURE_PREFIX + base64.b64encode(stream.raw.encode()).decode()


def _write_reply(reply: PendingCompletion) -> JSON:
    """Return the reply as a `message` object."""
    (choice,) = reply.calls
    stream, blocks = reply.thought_stream(), list[TurnBlock]()
    for block in turn_blocks(reply, choice):
        if block.kind != "text":
            blocks.append(block)
            continue
        thought, text = stream.feed(block.text, final=True)
        if stream.visible:
            blocks.append(TurnBlock("thought", thought))
        blocks += [TurnBlock("text", text)] if text else []
    content = [_write_block(block, stream, reply) for block in blocks]
    return {**_message(reply), "content": content, **_stop_info(reply, choice)}


class _EventWriter(BlockWriter):
    """Writer of the stream events of a message."""

    def __init__(self, reply: PendingCompletion) -> None:
        super().__init__(reply)
        self._thoughts, self._begun = reply.thought_stream(), False

    def write(self, index: int, delta: Delta) -> bytes:
        """Return the events for a text or thinking delta."""
        if delta.thought:
            return self._begin() + self.add("thought", delta.text, source=delta.thought)
        return self._begin() + self._add_parts(*self._thoughts.feed(delta.text))

    def write_end(self, deltas: Sequence[Delta]) -> bytes:
        """Return the final events: the unsent text, the tool uses and the end of the message."""
        reply, choice = self._reply, self._reply.calls[0]
        rest = self._thoughts.feed(deltas[0].text, final=True)
        turn = turn_blocks(reply, choice)
        out = self._begin()
        if turn and turn[0].kind == "thought" and not self.blocks:
            out += self.add("thought", turn[0].text, source=turn[0].source)
        out += self._add_parts(*rest)
        out += self.add_remaining(Delta(""), [block for block in turn if block.kind == "call"])
        end = {"type": "message_delta", "delta": _stop_info(reply, choice), "usage": _usage(reply)}
        out += event(end, "message_delta")
        return out + event({"type": "message_stop"}, "message_stop")

    def write_error(self, error: ApiError) -> bytes:
        """Return the last event of a failed stream."""
        return event(error.anthropic_body(), "error")

    def begin(self, index: int, block: TurnBlock) -> bytes:
        """Return the event that starts a content block."""
        content_block: JSON
        if block.kind == "call":
            content_block = {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}
        elif block.kind == "thought":
            content_block = {"type": "thinking", "thinking": "", "signature": ""}
        else:
            content_block = {"type": "text", "text": ""}
        data = {"type": "content_block_start", "index": index, "content_block": content_block}
        return event(data, "content_block_start")

    def extend(self, index: int, block: TurnBlock, text: str, logprobs: Sequence[JSON]) -> bytes:
        """Return the event for new text of a content block. A tool's input is sent as a whole."""
        if block.kind == "call":
            arguments = json.dumps(_read_input(block), ensure_ascii=False)
            return self._write_delta(index, {"type": "input_json_delta", "partial_json": arguments})
        kind = "thinking" if block.kind == "thought" else "text"
        if not text or (kind == "thinking" and self._reply.request.omits_thoughts):
            return b""
        return self._write_delta(index, {"type": f"{kind}_delta", kind: text})

    def end(self, index: int, block: TurnBlock) -> bytes:
        """Return the events that end a content block."""
        out = b""
        if block.kind == "thought":
            signed = {"type": "signature_delta", "signature": _signature(block, self._thoughts)}
            out = self._write_delta(index, signed)
        return out + event({"type": "content_block_stop", "index": index}, "content_block_stop")

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return event({"type": "message_start", "message": _message(self._reply)}, "message_start")

    def _add_parts(self, thought: str, text: str) -> bytes:
        """Return the stream events for new thinking and text.

        An empty thought gets a block too, so that it can be restored.
        """
        empty = not (thought or self.blocks) and self._thoughts.complete
        out = self.add("thought", thought) if thought or empty else b""
        return out + (self.add("text", text) if text else b"")

    def _write_delta(self, index: int, delta: JSON) -> bytes:
        data = {"type": "content_block_delta", "index": index, "delta": delta}
        return event(data, "content_block_delta")


MESSAGES = Dialect(
    name="messages",
    path="/v1/messages",
    prefix="msg_",
    prompt_field="messages",
    request=_Request,
    read=_parse,
    write_reply=_write_reply,
    writer=_EventWriter,
    paths={"/v1/messages/count_tokens": {"POST": _count_tokens}},
)
