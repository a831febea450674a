"""Anthropic's Messages: `POST /v1/messages`, read; `messages_written.py` has its object and the
events of its stream.

A turn is a list of blocks here. Tool results come in the user's turn and become messages of their
own; a thought is a block before the text, whose `signature` is the text that was sampled, so that a
client that sends it back restores the turn exactly. `chat_completions.py` is the API that the
others are measured by, in whose words requests are passed on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, StrictStr
from pydantic_core import PydanticCustomError

from tutelage.engine.asked import PARTS, THOUGHTS
from tutelage.gateway.dialects.dialect import Path, SessionView
from tutelage.gateway.dialects.messages_written import MessageEvents, sampled_text, written
from tutelage.gateway.dialects.parts import call_fields, counted
from tutelage.gateway.dialects.reading import (
    MAX_STOPS,
    MAX_TOOLS,
    Items,
    MessageObject,
    Name,
    RequestObject,
    Stop,
    TurnReader,
    missing,
    read,
    tool_specs,
    unsupported,
)
from tutelage.gateway.dialects.stored import StoredResponses
from tutelage.gateway.errors import ApiError, invalid
from tutelage.gateway.passing import chat_body_of, function_tool, schema_format
from tutelage.gateway.reply import ChatReply
from tutelage.gateway.request import ChatRequest
from tutelage.types import JSON, Message, Sampling, ToolCall

_LEVELS = ((1024, "low"), (8192, "medium"))
"""The most thinking tokens of a `reasoning_effort`, as Gemini's API maps them; else `high`."""


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


def _data(source: Any) -> str:
    """What a document is, as a URL of data."""
    match source:
        case {"type": "base64", "media_type": str(kind), "data": str(data)}:
            return f"data:{kind};base64,{data}"
        case _:
            raise ValueError("it is passed on as `base64`")


def _address(source: Any) -> str:
    """Where an image is, or what it is, as a URL."""
    match source:
        case {"type": "url", "url": str(url)}:
            return url
        case _:
            return _data(source)


class _Seen(MessageObject):
    @classmethod
    def prepared(cls, values: JSON, passing: bool) -> JSON:
        """What only another server's model sees."""
        if not passing:
            raise PydanticCustomError("unsupported_value", "only text is read", {"name": "type"})
        return values


class _Image(_Seen):
    type: Literal["image"]
    source: Annotated[StrictStr, BeforeValidator(_address)]


class _Document(_Seen):
    type: Literal["document"]
    source: Annotated[StrictStr, BeforeValidator(_data)]
    title: StrictStr = "document.pdf"


_Shown = _Text | _Image | _Document


class _ToolResult(MessageObject):
    type: Literal["tool_result"]
    tool_use_id: StrictStr
    content: Annotated[
        Items[Annotated[_Shown, Field(discriminator="type")]], BeforeValidator(_blocks)
    ] = Field(default_factory=list[_Shown])


class _Thinking(MessageObject):
    type: Literal["thinking", "redacted_thinking"]
    thinking: StrictStr = ""
    signature: StrictStr = ""


_Block = _Shown | _ToolUse | _ToolResult | _Thinking


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
    effort: StrictStr | None = None

    @classmethod
    def prepared(cls, values: JSON, passing: bool) -> JSON:
        """An effort is made by another server only."""
        if "effort" in values and not passing:
            raise unsupported("effort")
        return values


class _Request(TurnReader):
    harmless = ("metadata", "service_tier", "cache_control", "betas", "inference_geo")
    neutral: ClassVar[Mapping[str, Sequence[Any]]] = {
        "container": (),
        "mcp_servers": ([],),
        "context_management": ({}, {"edits": []}),
        "thread": (),
    }
    own = tuple(neutral)
    schema_name = "output_config.format"
    messages: Annotated[Items[_Message], BeforeValidator(counted)] = Field(min_length=1)
    system: Annotated[Items[_Text], BeforeValidator(counted), BeforeValidator(_blocks)] = Field(
        default_factory=list[_Text]
    )
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
        request = _request(body)
        asked = _asked(request, defaults)
        if request.thinking is None:
            return asked
        limit = request.thinking.limit()
        return replace(asked, sampling=replace(asked.sampling, max_thinking_tokens=limit))

    def read_passed(self, body: JSON, defaults: Sampling, stored: StoredResponses) -> ChatRequest:
        """The request, and what it is in the words of chat completions. Raises `ApiError`."""
        request = _request(body, passing=True)
        return replace(
            _asked(request, defaults, passing=True),
            passed=chat_body_of(body, _OWN, _told(request, body)),
        )

    def written(self, reply: ChatReply) -> JSON:
        """The `message` object."""
        return written(reply)

    def writer(self, reply: ChatReply) -> MessageEvents:
        """The stream of a reply."""
        return MessageEvents(reply)

    def _count(self, path: Mapping[str, str], body: JSON, attempt: SessionView) -> JSON:
        request = self.read(body, attempt.sampling, attempt.responses)
        return {"input_tokens": attempt.count(request)}

    def error(self, error: ApiError) -> JSON:
        """An error as Anthropic writes it."""
        return error.anthropics_body()


# ---------------------------------------------------------------- passing on


_OWN = frozenset(
    (*_Request.__annotations__, *_Request.harmless, *_Request.own, "tool_choice", "stop")
)
"""What of a request chat completions say otherwise, or not at all."""


def _told(request: _Request, body: JSON) -> JSON:
    """The fields of a chat completion that say what this API has other words for."""
    output, metadata = request.output_config, body.get("metadata")
    schema = output and output.format and output.format.wanted
    choice: Any = request.tool_choice
    if choice not in ("auto", "required", "none"):
        choice = {"type": "function", "function": {"name": choice}}
    return {
        "max_tokens": request.max_tokens,
        "stop": request.stop or None,
        "tools": [_function(tool) for tool in request.tools] or None,
        "tool_choice": choice if request.tools and body.get("tool_choice") else None,
        "parallel_tool_calls": None if request.parallel_tool_calls else False,
        "reasoning_effort": (output and output.effort) or _effort(request.thinking),
        "response_format": schema and schema_format("reply", schema, {"strict": True}),
        "user": metadata.get("user_id") if isinstance(metadata, dict) else None,
        "service_tier": next((v for k, v in _TIERS if k == body.get("service_tier")), None),
    }


_TIERS = (("auto", "auto"), ("standard_only", "default"))


def _function(tool: _Tool) -> JSON:
    more = {"strict": True} if tool.strict else {}
    return function_tool(tool.name, tool.description, tool.parameters, more)


def _effort(thinking: _ThinkingSetting | None) -> str | None:
    """How much to think, in OpenAI's words; an adaptive model decides itself."""
    if thinking is None or thinking.type == "adaptive":
        return None
    if thinking.type == "disabled":
        return "none"
    budget = thinking.budget_tokens or 0
    return next((level for most, level in _LEVELS if budget <= most), "high")


# ---------------------------------------------------------------- reading


def _request(body: JSON, *, passing: bool = False) -> _Request:
    choice = read(_Choice, body.get("tool_choice") or {}, "tool_choice")
    request = read(_Request, {**body, "tool_choice": None}, passing=passing)
    request.tool_choice = _chosen(choice)
    request.parallel_tool_calls &= not choice.disable_parallel_tool_use
    request.stop += request.stop_sequences
    return request


def _asked(request: _Request, defaults: Sampling, *, passing: bool = False) -> ChatRequest:
    tools = tool_specs(request.tools)
    wanted = None if request.output_config is None else request.output_config.format
    system = "\n\n".join(block.text for block in request.system)
    told = Message("system", system, extra=_parts(request.system))
    return ChatRequest(
        model=request.model,
        messages=(*([told] if system else ()), *_messages(request)),
        sampling=request.sampling(defaults, request.max_tokens),
        tools=tools,
        constraint=request.constraint(tools, wanted and wanted.wanted, passing=passing),
        schema_field=request.schema_field,
        seed=request.seed,
        template=request.chat_template_kwargs,
        stream=request.stream,
    )


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
            yield _said(turn, f"messages[{i}]")
            continue
        if not turn.content:
            at = f"messages[{i}].content"
            raise invalid(f"`{at}` is empty: it needs at least one block", at)
        for result, group in groupby(turn.content, lambda block: block.type == "tool_result"):
            blocks = list(group)
            if result:
                yield from (_result(b) for b in blocks if isinstance(b, _ToolResult))
            else:
                said = _text(blocks, ("text", "image", "document"), f"messages[{i}]")
                yield Message("user", said, extra={**(turn.model_extra or {}), **_parts(blocks)})


def _text(blocks: Iterable[_Block], allowed: Sequence[str], path: str) -> str:
    """The text of blocks, all of a kind that may stand here."""
    for block in blocks:
        if block.type not in allowed:
            raise invalid(f"`{path}` has a block {block.type!r}, which is not of its role", path)
    return "".join(block.text for block in blocks if isinstance(block, _Text))


def _parts(blocks: Sequence[_Block]) -> JSON:
    """Texts and images as parts of a chat completion, where they say more than their text."""
    parts: list[JSON] = []
    for block in blocks:
        more = block.model_extra or {}
        if isinstance(block, _Text):
            parts.append({"type": "text", "text": block.text, **more})
        elif isinstance(block, _Image):
            parts.append({"type": "image_url", "image_url": {"url": block.source}, **more})
        elif isinstance(block, _Document):
            file = {"filename": block.title, "file_data": block.source}
            parts.append({"type": "file", "file": file, **more})
    plain = all(part["type"] == "text" and len(part) == 2 for part in parts)
    return {} if plain else {PARTS: parts}


def _result(block: _ToolResult) -> Message:
    text = _text(block.content, ("text", "image", "document"), "content")
    extra = {**(block.model_extra or {}), **_parts(block.content)}
    return Message("tool", text, tool_call_id=block.tool_use_id, extra=extra)


def _said(turn: _Message, path: str) -> Message:
    """An assistant's turn. Thoughts of this server are put back as they were sampled, those of a
    server behind go back to it; another model's are left out, since none here has a place for
    them."""
    blocks = turn.content
    uses = [b for b in blocks if isinstance(b, _ToolUse)]
    calls = tuple(ToolCall(b.id, b.name, json.dumps(b.input, ensure_ascii=False)) for b in uses)
    thoughts = [b for b in blocks if isinstance(b, _Thinking)]
    extra = {
        **(turn.model_extra or {}),
        **_parts(blocks),
        **call_fields([(b.id, b.model_extra) for b in uses]),
    }
    for thought in thoughts:
        if thought.signature in THOUGHTS:
            before = extra.get(thought.signature)
            more = thought.thinking
            extra[thought.signature] = before + more if isinstance(before, str) else more
    kinds = ("text", "tool_use", "thinking", "redacted_thinking")
    text = "".join(sampled_text(b.signature) for b in thoughts) + _text(blocks, kinds, path)
    return Message("assistant", (text or None) if calls else text, calls, extra=extra)
