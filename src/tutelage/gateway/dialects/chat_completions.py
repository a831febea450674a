"""Chat completions: `POST /v1/chat/completions`. `chat_written.py` has its object and the chunks of
its stream, `responses.py` is the other API of OpenAI.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
)

from tutelage.gateway.dialects.beyond import read_beyond
from tutelage.gateway.dialects.chat_written import Chunks, written
from tutelage.gateway.dialects.dialect import Path
from tutelage.gateway.dialects.field_errors import missing, shown
from tutelage.gateway.dialects.parts import (
    Arguments,
    CallObject,
    Content,
    call_fields,
    counted,
    with_parts,
)
from tutelage.gateway.dialects.reading import (
    MAX_TOOLS,
    UNHONOURED,
    FunctionTool,
    Items,
    MessageObject,
    RequestObject,
    TopLogprobs,
    TurnReader,
    read,
    reply_schema,
    tool_specs,
)
from tutelage.gateway.dialects.stored import StoredResponses
from tutelage.gateway.errors import invalid
from tutelage.gateway.passing import chat_body
from tutelage.gateway.reply import ChatReply
from tutelage.gateway.request import ChatRequest
from tutelage.types import JSON, Message, Sampling, ToolCall

MAX_CHOICES = 128
_NO_ITEMS: Callable[[], list[Any]] = list
_ROLES = ("system", "developer", "user", "assistant", "tool")
_THEIRS = frozenset({"logprobs", "top_logprobs"})
"""What another server tells in its own words, which go back as they are."""


class _Tool(BaseModel):
    type: Literal["function"]
    function: FunctionTool


class _CalledFunction(BaseModel):
    name: StrictStr
    arguments: Arguments


class _CustomCall(BaseModel):
    name: StrictStr
    input: StrictStr


class _ToolCall(CallObject):
    type: Literal["function", "custom"] | None = None
    id: StrictStr
    function: _CalledFunction | None = None
    custom: _CustomCall | None = None

    def made(self, path: str, *, passing: bool) -> ToolCall:
        """The call. Raises `ApiError` where it is none, or of a tool that only others have."""
        if self.type == "custom":
            if not passing:
                raise invalid(f"`{path}.type` = 'custom': must be 'function'", f"{path}.type")
            if self.custom is None:
                raise missing(f"{path}.custom")
            return ToolCall(self.id, self.custom.name, self.custom.input, custom=True)
        if self.function is None:
            raise missing(f"{path}.function")
        return ToolCall(self.id, self.function.name, self.function.arguments)


class _Message(MessageObject):
    passes = True
    neutral: ClassVar[Mapping[str, Sequence[Any]]] = {
        "prefix": (False,),
        "partial": (False,),
        "audio": (),
        "function_call": (),
    }
    role: StrictStr
    content: Content | None = None
    name: StrictStr | None = None
    refusal: StrictStr | None = None
    tool_calls: Items[_ToolCall] = Field(default_factory=_NO_ITEMS)
    tool_call_id: StrictStr | None = None

    @classmethod
    def prepared(cls, values: JSON, passing: bool) -> JSON:
        """Content that is text, with its parts where they say more."""
        listed = values.get("content").__class__ is list
        return with_parts(values, "content", passing) if listed else values


class _Schema(RequestObject):
    harmless = ("type", "name", "description", "strict")
    wanted: JSON = Field(alias="schema")


class _Format(BaseModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None


class StreamOptions(RequestObject):
    """What a stream carries beside its choices."""

    harmless = ("include_obfuscation",)
    include_usage: StrictBool = False


class _Request(TurnReader):
    harmless = (
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "prediction", "verbosity",
    )  # fmt: skip
    neutral: ClassVar[Mapping[str, Sequence[Any]]] = {
        **UNHONOURED,
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "modalities": (["text"],),
        "reasoning_effort": ("none",),
        "audio": (),
        "web_search_options": (),
        "functions": ([],),
        "function_call": ("auto", "none"),
    }
    messages: Annotated[Items[_Message], BeforeValidator(counted)] = Field(min_length=1)
    tools: Items[_Tool] = Field(default_factory=_NO_ITEMS, max_length=MAX_TOOLS)
    response_format: _Format | None = None
    max_tokens: StrictInt | None = Field(None, ge=1)
    max_completion_tokens: StrictInt | None = Field(None, ge=1)
    n: StrictInt = Field(1, ge=1, le=MAX_CHOICES)
    logprobs: StrictBool = False
    top_logprobs: TopLogprobs = 0
    stream_options: StreamOptions | None = None
    return_token_ids: StrictBool = False

    @classmethod
    def prepared(cls, values: JSON, passing: bool) -> JSON:
        """Of a request that is passed on, what of its tools and log-probabilities is read here."""
        if not passing:
            return values
        read = {name: value for name, value in values.items() if name not in _THEIRS}
        if isinstance(values.get("tools"), list):
            read["tools"] = [tool for tool in values["tools"] if not _is_theirs(tool)]
        return read


class ChatCompletions:
    """The dialect; see `Dialect`."""

    name = "chat.completions"
    path = "/v1/chat/completions"
    prefix = "chatcmpl-"
    prompt_field = "messages"
    request = _Request
    paths: Mapping[str, Mapping[str, Path]] = MappingProxyType({})

    def read(self, body: JSON, defaults: Sampling, stored: StoredResponses) -> ChatRequest:
        """The request. Raises `ApiError`."""
        return self._read(read(_Request, body), defaults)

    def read_passed(self, body: JSON, defaults: Sampling, stored: StoredResponses) -> ChatRequest:
        """The request, which is passed on as it came. Raises `ApiError`."""
        request = self._read(read_beyond(_Request, body), defaults, passing=True)
        return replace(request, passed=chat_body(body))

    def _read(self, request: _Request, defaults: Sampling, *, passing: bool = False) -> ChatRequest:
        if request.stream_options is not None and not request.stream:
            raise invalid("`stream_options` requires `stream`: true", "stream_options")
        if request.top_logprobs and not request.logprobs:
            raise invalid("`top_logprobs` requires `logprobs`: true", "top_logprobs")
        tools = tool_specs([tool.function for tool in request.tools])
        return ChatRequest(
            model=request.model,
            messages=tuple(
                _message(each, i, passing=passing) for i, each in enumerate(request.messages)
            ),
            sampling=request.sampling(
                defaults, request.max_completion_tokens or request.max_tokens
            ),
            tools=tools,
            strict=tuple(t.function.name for t in request.tools if t.function.strict),
            constraint=request.constraint(tools, _schema(request.response_format), passing=passing),
            schema_field=request.schema_field,
            seed=request.seed,
            template=request.chat_template_kwargs,
            n=request.n,
            stream=request.stream,
            include_usage=request.stream_options is not None
            and request.stream_options.include_usage,
            logprobs=request.logprobs,
            top_logprobs=request.top_logprobs,
            token_ids=request.return_token_ids,
        )

    def written(self, reply: ChatReply) -> JSON:
        """The `chat.completion` object."""
        return written(reply)

    def writer(self, reply: ChatReply) -> Chunks:
        """The stream of a reply."""
        return Chunks(reply)


# ---------------------------------------------------------------- reading


def _is_theirs(tool: Any) -> bool:
    """Whether a tool is none that is known here."""
    return isinstance(tool, Mapping) and cast("JSON", tool).get("type") not in ("function", None)


def _message(given: _Message, position: int, *, passing: bool) -> Message:
    # Templates know a developer's message as a system message.
    role = "system" if given.role == "developer" else given.role
    text = given.content
    if role not in _ROLES and not (passing and role == "function"):
        at = f"messages[{position}].role"
        reason = f"must be one of {', '.join(map(repr, _ROLES))}"
        reason = "use the role 'tool' for results" if role == "function" else reason
        raise invalid(f"`{at}` = {shown(role)}: {reason}", at, "unsupported_value")
    if text is None and role in ("system", "user") and not passing:
        raise missing(f"messages[{position}].content")
    if role == "tool" and given.tool_call_id is None:
        raise missing(f"messages[{position}].tool_call_id")
    if role != "assistant":
        answered = given.tool_call_id if role == "tool" else None
        return Message(
            role, text or "", tool_call_id=answered, name=given.name, extra=given.model_extra or {}
        )
    if text is None:
        text = given.refusal
    at = f"messages[{position}].tool_calls"
    calls = tuple(
        each.made(f"{at}[{i}]", passing=passing) for i, each in enumerate(given.tool_calls)
    )
    beside = call_fields([(each.id, each.model_extra) for each in given.tool_calls])
    # An empty string beside calls is what some SDKs make of the null that they were sent.
    said = (text or None) if calls else text or ""
    return Message(
        role, said, calls, name=given.name, extra={**(given.model_extra or {}), **beside}
    )


def _schema(wanted: _Format | None) -> JSON | None:
    if wanted is None:
        return None
    named = wanted.json_schema
    schema = None if named is None else named.wanted
    return reply_schema(wanted.type, schema, "response_format.json_schema")
