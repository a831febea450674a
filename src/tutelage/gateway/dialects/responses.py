"""Responses: `POST /v1/responses`, read; `responses_written.py` has its object and the events of
its stream.

A conversation is kept by the response that ended it, so `previous_response_id` brings the messages
back exactly as they were recorded. Items that come back instead are put together again
(`responses_items.py`). `chat_completions.py` is the other API of OpenAI, in whose words requests
are passed on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, StrictStr, ValidationInfo
from pydantic_core import PydanticCustomError

from tutelage.gateway.dialects.beyond import read_beyond
from tutelage.gateway.dialects.dialect import Path, SessionView
from tutelage.gateway.dialects.parts import counted
from tutelage.gateway.dialects.reading import (
    MAX_TOOLS,
    FunctionTool,
    Items,
    RequestObject,
    TopLogprobs,
    TurnReader,
    passed_on,
    read,
    reply_schema,
    tool_specs,
    unsupported,
)
from tutelage.gateway.dialects.responses_items import read_items
from tutelage.gateway.dialects.responses_written import PREFIX, ResponseEvents, written
from tutelage.gateway.dialects.stored import (
    StoredResponses,
    list_input_items,
    read_response,
    unknown_response,
)
from tutelage.gateway.errors import ApiError, invalid
from tutelage.gateway.passing import chat_body_of, function_tool, schema_format
from tutelage.gateway.reply import ChatReply
from tutelage.gateway.request import ChatRequest
from tutelage.types import JSON, Message, Sampling

_LOGPROBS = "message.output_text.logprobs"
_Include = Literal[
    "message.output_text.logprobs", "reasoning.encrypted_content",
    "web_search_call.action.sources", "code_interpreter_call.outputs",
    "computer_call_output.output.image_url", "file_search_call.results",
    "message.input_image.image_url",
]  # fmt: skip
"""What may be asked for where there can be none: then none is sent."""


class _Format(RequestObject):
    harmless = ("name", "description", "strict")
    type: Literal["text", "json_object", "json_schema"]
    wanted: JSON | None = Field(None, alias="schema")


class _Text(RequestObject):
    harmless = ("verbosity",)
    format: _Format | None = None


class _StreamOptions(RequestObject):
    harmless = ("include_obfuscation",)


class _Reasoning(RequestObject):
    harmless = ("summary", "generate_summary")
    effort: StrictStr = "none"

    @classmethod
    def prepared(cls, values: JSON, passing: bool) -> JSON:
        """An effort is made by another server only."""
        if not passing and values.get("effort", "none") != "none":
            raise unsupported("effort")
        return values


class _Tool(FunctionTool):
    type: Literal["function", "custom"] = "function"  # pyright: ignore[reportIncompatibleVariableOverride]
    format: JSON | None = None

    @classmethod
    def prepared(cls, values: JSON, passing: bool) -> JSON:
        """A tool without a schema is another server's."""
        custom = values.get("type") == "custom"
        if "format" in values and not custom:
            raise unsupported("format")
        return values


def _of_a_type(tool: Any, info: ValidationInfo) -> Any:
    """A tool of a type that can go on, or be called here; of others no field is read."""
    known = ("function", "custom") if passed_on(info) else ("function",)
    kind = cast("JSON", tool).get("type") if isinstance(tool, dict) else None
    if kind is not None and kind not in known:
        words = "must be " + " or ".join(map(repr, known))
        raise PydanticCustomError("literal_error", "{words}", {"name": "type", "words": words})
    return tool


class _Request(TurnReader):
    harmless = (
        "user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "max_tool_calls",
    )  # fmt: skip
    neutral: ClassVar[Mapping[str, Sequence[Any]]] = {
        "background": (False,),
        "conversation": (),
        "prompt": (),
        "context_management": ([],),
        "messages": (),
        "n": (1,),
    }
    own = tuple(neutral)
    schema_name = "text.format"
    input: Annotated[
        list[Any],
        BeforeValidator(counted),
        BeforeValidator(lambda v: [{"role": "user", "content": v}] if isinstance(v, str) else v),
    ] = Field(default_factory=list[Any])
    instructions: StrictStr | None = None
    previous_response_id: StrictStr | None = None
    tools: Items[Annotated[_Tool, BeforeValidator(_of_a_type)]] = Field(
        default_factory=list[_Tool], max_length=MAX_TOOLS
    )
    text: _Text | None = None
    reasoning: _Reasoning | None = None
    max_output_tokens: StrictInt | None = Field(None, ge=1)
    stream_options: _StreamOptions | None = None
    store: StrictBool = True
    truncation: Literal["auto", "disabled"] = "disabled"
    top_logprobs: TopLogprobs = 0
    include: Items[_Include] = Field(default_factory=list[_Include])


class Responses:
    """The dialect; see `Dialect`."""

    name = "responses"
    path = "/v1/responses"
    prefix = PREFIX
    prompt_field = "input"
    request = _Request

    def __init__(self) -> None:
        counting: Mapping[str, Path] = {"POST": self._count}
        self.paths: Mapping[str, Mapping[str, Path]] = {
            "/v1/responses/input_tokens": counting,
            "/v1/responses/{response}": {"GET": read_response},
            "/v1/responses/{response}/input_items": {"GET": list_input_items},
        }

    def read(self, body: JSON, defaults: Sampling, stored: StoredResponses) -> ChatRequest:
        """The request. Raises `ApiError`."""
        return self._read(read(_Request, body), body, defaults, stored)

    def read_passed(self, body: JSON, defaults: Sampling, stored: StoredResponses) -> ChatRequest:
        """The request, and what it is in the words of chat completions. Raises `ApiError`."""
        request = read_beyond(_Request, body)
        asked = self._read(request, body, defaults, stored, passing=True)
        return replace(
            asked,
            logprobs=False,
            top_logprobs=0,
            passed=chat_body_of(body, _OWN, _told(request, body)),
        )

    def _read(
        self,
        request: _Request,
        body: JSON,
        defaults: Sampling,
        stored: StoredResponses,
        *,
        passing: bool = False,
    ) -> ChatRequest:
        if request.top_logprobs and _LOGPROBS not in request.include:
            raise invalid(f"`top_logprobs` requires `include`: [{_LOGPROBS!r}]", "top_logprobs")
        tools = tool_specs([tool for tool in request.tools if tool.type == "function"])
        wanted = None if request.text is None else request.text.format
        schema = wanted and reply_schema(wanted.type, wanted.wanted, "text.format.schema")
        conversation = _conversation(request, stored, passing=passing)
        instructions = request.instructions
        return ChatRequest(
            model=request.model,
            # Instructions hold for one request only.
            messages=conversation
            if instructions is None
            else (Message("system", instructions), *conversation),
            sampling=request.sampling(defaults, request.max_output_tokens),
            tools=tools,
            strict=tuple(tool.name for tool in request.tools if tool.strict),
            constraint=request.constraint(tools, schema, passing=passing),
            schema_field=request.schema_field,
            seed=request.seed,
            template=request.chat_template_kwargs,
            stream=request.stream,
            truncate=request.truncation == "auto",
            logprobs=_LOGPROBS in request.include,
            top_logprobs=request.top_logprobs,
            conversation=conversation if request.store else None,
            items=tuple(i for i in request.input if i.get("type") != "item_reference"),
            echo=_echo(request, body),
        )

    def written(self, reply: ChatReply) -> JSON:
        """The `response` object."""
        return written(reply)

    def writer(self, reply: ChatReply) -> ResponseEvents:
        """The stream of a reply."""
        return ResponseEvents(reply)

    async def _count(self, path: Mapping[str, str], body: JSON, attempt: SessionView) -> JSON:
        """Tokens of a prompt; a model need not be named here."""
        body = body if body.get("model") else {**body, "model": attempt.models()[0]}

        def asked() -> ChatRequest:
            return self.read(body, attempt.sampling, attempt.responses)

        counted = await attempt.count(body["model"], asked)
        return {"object": "response.input_tokens", "input_tokens": counted}


# ---------------------------------------------------------------- passing on


_OWN = frozenset(_Request.__annotations__) | {"max_tool_calls", "tool_choice", *_Request.own}
"""What of a request chat completions say otherwise, or not at all."""


def _told(request: _Request, body: JSON) -> JSON:
    """The fields of a chat completion that say what this API has other words for."""
    text, effort = request.text, request.reasoning and request.reasoning.effort
    given = body.get("reasoning") or {}
    logprobs = _LOGPROBS in request.include
    forced = request.tool_choice not in ("auto", "none")
    return {
        "reasoning_effort": effort if given.get("effort") else None,
        "verbosity": (body.get("text") or {}).get("verbosity"),
        "response_format": text and text.format and _format(text.format, body["text"]["format"]),
        "tools": [_tool(tool) for tool in request.tools] or None,
        "tool_choice": _choice(body.get("tool_choice")) if request.tools or forced else None,
        "max_tokens": body.get("max_output_tokens"),
        "logprobs": logprobs or None,
        "top_logprobs": (logprobs and body.get("top_logprobs")) or None,
    }


def _format(wanted: _Format, given: JSON) -> JSON | None:
    if wanted.type != "json_schema":
        return {"type": wanted.type} if wanted.type != "text" else None
    more = {k: given[k] for k in ("description", "strict") if given.get(k) is not None}
    return schema_format(given.get("name") or "reply", wanted.wanted or {}, more)


def _tool(tool: _Tool) -> JSON:
    if tool.type == "function":
        more = {"strict": True} if tool.strict else {}
        return function_tool(tool.name, tool.description, tool.parameters, more)
    told: JSON = {"name": tool.name}
    if tool.description:
        told["description"] = tool.description
    match tool.format:
        case {"type": "grammar", **grammar}:
            told["format"] = {"type": "grammar", "grammar": grammar}
        case None:
            pass
        case other:
            told["format"] = other
    return {"type": "custom", "custom": told}


def _choice(choice: Any) -> Any:
    """`tool_choice`, where a name is a field of the tool."""
    match choice:
        case {"type": "allowed_tools", "tools": list(named), **rest}:
            tools = [_choice(tool) for tool in cast("list[Any]", named)]
            return {"type": "allowed_tools", "allowed_tools": {**rest, "tools": tools}}
        case {"type": "function" | "custom" as kind, "name": name}:
            return {"type": kind, kind: {"name": name}}
        case _:
            return choice


# ---------------------------------------------------------------- reading


def _echo(request: _Request, body: JSON) -> JSON:
    """What the answer repeats."""
    out: JSON = {
        "instructions": request.instructions,
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": request.previous_response_id,
        "store": request.store,
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": _named(body.get("tool_choice") or "auto"),
        "tools": body.get("tools") or [],
        "truncation": request.truncation,
        "user": body.get("user"),
    }
    given = body.get("reasoning") or {}
    told = {"effort": given.get("effort"), "summary": given.get("summary")}
    return out | ({"reasoning": told} if given else {})


def _named(choice: Any) -> Any:
    """A tool that is named as in chat completions, in the words of this API."""
    match choice:
        case {"type": "function", "function": {"name": name}}:
            return {"type": "function", "name": name}
        case _:
            return choice


def _conversation(
    given: _Request, stored: StoredResponses, *, passing: bool
) -> tuple[Message, ...]:
    before: tuple[Message, ...] = ()
    previous = given.previous_response_id
    if previous is not None:
        found = stored.find(previous)
        if found is None:
            where, code = "previous_response_id", "previous_response_not_found"
            raise ApiError(404, unknown_response(previous), param=where, code=code)
        before = found.conversation
    if whole := before + read_items(given.input, stored, passing=passing):
        return whole
    raise invalid("`input` must not be empty", "input")
