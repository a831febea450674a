"""Anthropic's Messages: `POST /v1/messages`, read; `messages_written.py` has its object and the
events of its stream.

A turn is a list of blocks here (`messages_blocks.py`). Tool results come in the user's turn and
become messages of their own; a thought is a block before the text, whose `signature` is the text
that was sampled, so that a client that sends it back gives the turn's whole text back.
`chat_completions.py` is the API that the others are measured by, in whose words requests are passed
on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, StrictStr

from tutelage.gateway.dialects.beyond import read_beyond
from tutelage.gateway.dialects.dialect import Path, SessionView
from tutelage.gateway.dialects.field_errors import missing
from tutelage.gateway.dialects.messages_blocks import (
    MessageTurn,
    Text,
    as_blocks,
    read_turns,
    system_message,
)
from tutelage.gateway.dialects.messages_written import MessageEvents, written
from tutelage.gateway.dialects.parts import counted
from tutelage.gateway.dialects.reading import (
    MAX_STOPS,
    MAX_TOOLS,
    Items,
    Name,
    RequestObject,
    Stop,
    TurnReader,
    read,
    tool_specs,
    unsupported,
)
from tutelage.gateway.dialects.stored import StoredResponses
from tutelage.gateway.errors import invalid
from tutelage.gateway.passing import chat_body_of, function_tool, schema_format
from tutelage.gateway.reply import ChatReply
from tutelage.gateway.request import ChatRequest
from tutelage.types import JSON, Sampling

_LEVELS = ((1024, "low"), (8192, "medium"))
"""The most thinking tokens of a `reasoning_effort`, as Gemini's API maps them; else `high`."""


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
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: StrictInt | None = Field(None, ge=1)
    display: StrictStr | None = None

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
        "speed": ("standard",),
        "diagnostics": ({}, {"previous_message_id": None}),
        "fallbacks": ([],),
        "n": (1,),
        "stream_options": (),
    }
    own = tuple(neutral)
    schema_name = "output_config.format"
    messages: Annotated[Items[MessageTurn], BeforeValidator(counted)] = Field(min_length=1)
    system: Annotated[Items[Text], BeforeValidator(counted), BeforeValidator(as_blocks)] = Field(
        default_factory=list[Text]
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
        """The request. Raises `ApiError`, for one that begins the turn to be sampled too."""
        request = _request(body)
        last = len(request.messages) - 1
        if request.messages[last].role == "assistant":
            at = f"messages[{last}]"
            raise invalid(
                f"`{at}` has the role assistant: this model does not support assistant message "
                "prefill. The conversation must end with a user message",
                at,
            )
        asked = _asked(request, defaults)
        if request.thinking is None:
            return asked
        thinking = request.thinking
        sampling = replace(asked.sampling, max_thinking_tokens=thinking.limit())
        return replace(asked, sampling=sampling, omits_thoughts=thinking.display == "omitted")

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

    async def _count(self, path: Mapping[str, str], body: JSON, attempt: SessionView) -> JSON:
        """Clients count conversations that end with a reply too."""

        def asked() -> ChatRequest:
            return _asked(_request(body), attempt.sampling)

        return {"input_tokens": await attempt.count(body.get("model"), asked)}


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
    forced = choice not in ("auto", "none")
    if forced and choice != "required":
        choice = {"type": "function", "function": {"name": choice}}
    return {
        "max_tokens": body.get("max_tokens"),
        "stop": _stops(body) or None,
        "tools": [_function(tool) for tool in request.tools] or None,
        "tool_choice": choice if body.get("tool_choice") and (request.tools or forced) else None,
        "parallel_tool_calls": None if request.parallel_tool_calls else False,
        "reasoning_effort": (output and output.effort) or _effort(request.thinking),
        "response_format": schema and schema_format("reply", schema, {"strict": True}),
        "user": metadata.get("user_id") if isinstance(metadata, dict) else None,
        "service_tier": next((v for k, v in _TIERS if k == body.get("service_tier")), None),
    }


def _stops(body: JSON) -> list[str]:
    """Stop strings, in the words of both APIs."""
    stop = body.get("stop") or []
    return [*([stop] if isinstance(stop, str) else stop), *(body.get("stop_sequences") or ())]


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
    rest = {**body, "tool_choice": None}
    request = read_beyond(_Request, rest) if passing else read(_Request, rest)
    request.tool_choice = _chosen(choice)
    request.parallel_tool_calls &= not choice.disable_parallel_tool_use
    request.stop += request.stop_sequences
    return request


def _asked(request: _Request, defaults: Sampling, *, passing: bool = False) -> ChatRequest:
    tools = tool_specs(request.tools)
    wanted = None if request.output_config is None else request.output_config.format
    system = system_message(request.system)
    return ChatRequest(
        model=request.model,
        messages=(*([] if system is None else [system]), *read_turns(request.messages)),
        sampling=request.sampling(defaults, request.max_tokens),
        tools=tools,
        strict=tuple(tool.name for tool in request.tools if tool.strict),
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
