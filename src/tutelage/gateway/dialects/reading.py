"""Request parsing, and the request parts that several dialects share.

A request is a pydantic model of the supported fields, validated from the parsed JSON; an invalid
field is a 400 that names its full path (`field_errors.py`). One rule holds for all other fields:
fields that would change the reply but are unsupported are rejected by name (`refused`), and the
rest are ignored and recorded. The dialects beside this file define their fields.

A policy reads text only. Other fields of a message or of its parts (annotations, citations, cache
control) are recorded with the message; images, audio and files are rejected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    GetPydanticSchema,
    Strict,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tutelage.bounded import parse_json
from tutelage.gateway.dialects.field_errors import missing_field, to_api_error
from tutelage.gateway.errors import bad_request
from tutelage.gateway.request import ChatRequest
from tutelage.types import JSON, Constraint, Message, Sampling, ToolSpec

T = TypeVar("T", bound=BaseModel)
MAX_TOOLS = 1024
MAX_STOPS = 16
MAX_NAME = 256
MAX_TOP = 20
MAX_CHOICES = 128
MAX_MESSAGES = 10_000
"""Maximum number of messages of a request."""
PARTS, CALL_FIELDS = "content_parts", "tool_call_fields"
"""Keys of a recorded message for its content as parts, and for extra fields of its tool calls by
call id."""
_SEED = 1 << 63


class RequestObject(BaseModel):
    """Base class of objects in a request. Null fields count as absent, as in OpenAI's API."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """Unsupported fields that would change the reply, with the values of each that have no
    effect."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        values = cast("JSON", data)
        if None in values.values():
            values = {k: v for k, v in values.items() if v is not None}
        for name in values.keys() & cls.refused.keys():
            if values[name] not in cls.refused[name]:
                message = "not supported by this server; leave it out"
                raise PydanticCustomError("unsupported_parameter", message, {"name": name})
        return values


class MessageObject(RequestObject):
    """Base class of messages, message parts and tool calls.

    Clients may return fields of their own or of other servers, which stay with the message.
    """

    model_config = ConfigDict(extra="allow")


def validate(model: type[T], data: Any, path: str = "") -> T:
    """Validate the object at a path of the request. An empty path means the whole request.

    Raises `ApiError` that names the first invalid field.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise to_api_error(error.errors(include_url=False)[0], data, path) from None


# ---------------------------------------------------------------- values


def _check_name(name: str) -> str:
    if not name.isprintable():
        raise ValueError("must contain only printable characters")
    return name


def _read_tool_choice(value: Any) -> str:
    """Convert OpenAI's `tool_choice`, with a nested or flat function, to a `Constraint` value."""
    match value:
        case "auto" | "none" | "required":
            return value
        case {"type": "function", "function": {"name": str(name)}} | {
            "type": "function",
            "name": str(name),
        }:
            return name
        case _:
            raise ValueError("must be auto, none, required or an object that names a function")


Item = TypeVar("Item")
TopLogprobs = Annotated[StrictInt, Field(ge=0, le=MAX_TOP)]
Items = Annotated[list[Item], FailFast()]
Name = Annotated[StrictStr, Field(min_length=1, max_length=MAX_NAME), AfterValidator(_check_name)]
Stop = Annotated[StrictStr, Field(min_length=1)]


class FunctionTool(RequestObject):
    """The definition of a function that the model may call.

    `strict` is ensured by constrained decoding where that applies.
    """

    name: Name
    description: StrictStr = ""
    parameters: JSON = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: StrictBool = False


_ALWAYS_REFUSED = dict.fromkeys((
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
    "grammar", "json_schema", "regex", "ebnf", "bad_words", "allowed_token_ids",
    "logits_processors", "truncate_prompt_tokens", "mirostat", "typical_p", "top_a", "tfs_z",
    "xtc_probability", "dry_multiplier", "dynatemp_range", "max_new_tokens", "n_predict",
), ())  # fmt: skip
UNSUPPORTED: Mapping[str, Sequence[Any]] = {
    **_ALWAYS_REFUSED,
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "repeat_penalty": (1,),
    "length_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "chat_template_kwargs": ({},),
    "ignore_eos": (False,),
    "use_beam_search": (False,),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
}
"""Sampling fields of OpenAI, vLLM, SGLang and llama.cpp that are unsupported, with the values of
each that have no effect."""


class RequestReader(RequestObject):
    """Request fields shared by all dialects."""

    refused = UNSUPPORTED
    schema_name: ClassVar[str] = "response_format"
    """The dialect's own field for a reply schema."""
    tool_type: ClassVar[str] = "function"
    """The type of tools that the agent runs. Tools run by a server are ignored."""
    model: StrictStr
    temperature: Annotated[float, Strict()] | None = Field(None, ge=0, le=2)
    top_p: Annotated[float, Strict()] | None = Field(None, gt=0, le=1)
    top_k: StrictInt | None = Field(None, ge=-1)
    stop: Annotated[
        Items[Stop], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
    ] = Field(default_factory=lambda: [], max_length=MAX_STOPS)
    seed: StrictInt | None = Field(None, ge=-_SEED, lt=_SEED)
    stream: StrictBool = False
    tool_choice: Annotated[str, BeforeValidator(_read_tool_choice)] = "auto"
    parallel_tool_calls: StrictBool = True

    @field_validator("tools", mode="before", check_fields=False)
    @classmethod
    def _drop_server_tools(cls, tools: Any) -> Any:
        if tools.__class__ is not list:
            return tools
        each, kind = cast("list[Any]", tools), cls.tool_type
        return [t for t in each if not isinstance(t, dict) or t.get("type", kind) == kind]

    @classmethod
    def unused_fields(cls, values: JSON) -> JSON:
        """Return the ignored request fields, including unsupported tools, for the record."""
        names = {field.alias or name for name, field in cls.model_fields.items()}
        unknown, kind = values.keys() - names - cls.refused.keys(), cls.tool_type
        unused = {n: values[n] for n in values if n in unknown and values[n] is not None}
        if server_tools := [t for t in values.get("tools") or () if t.get("type", kind) != kind]:
            unused["tools"] = server_tools
        return unused

    def sampling(self, defaults: Sampling, max_tokens: int | None) -> Sampling:
        """Return the sampling parameters, with omitted fields from `defaults`."""
        return Sampling(
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            top_p=self.top_p or defaults.top_p,
            top_k=max(0, self.top_k or defaults.top_k),
            max_tokens=max_tokens or defaults.max_tokens,
            stop=tuple(self.stop) or defaults.stop,
        )

    def make_request(
        self,
        messages: tuple[Message, ...],
        functions: Sequence[FunctionTool],
        sampling: Sampling,
        schema: JSON | None,
        **fields: Any,
    ) -> ChatRequest:
        """Build the internal `ChatRequest`. Raises `ApiError`.

        `schema` is the JSON schema of the reply, `fields` are fields that not all dialects have.
        """
        names = [each.name for each in functions]
        if len(set(names)) != len(names):
            duplicate = next(n for n in names if names.count(n) > 1)
            raise bad_request(f"duplicate tool name in `tools`: {duplicate!r}", "tools")
        choice, parallel, constraint = self.tool_choice, self.parallel_tool_calls, None
        if choice == "required" and not names:
            raise bad_request("`tool_choice` 'required' needs `tools`", "tool_choice")
        if choice not in ("auto", "none", "required", *names):
            message = f"`tool_choice` names {choice!r}, which is not in `tools`"
            raise bad_request(message, "tool_choice")
        forced = choice == "none" or (names and not (choice == "auto" and parallel))
        if forced or schema is not None:
            constraint = Constraint(choice, parallel, schema)
        return ChatRequest(
            model=self.model,
            messages=messages,
            sampling=sampling,
            tools=tuple(ToolSpec(f.name, f.description, f.parameters) for f in functions),
            strict=tuple(each.name for each in functions if each.strict),
            constraint=constraint,
            schema_field=self.schema_name,
            seed=self.seed,
            stream=self.stream,
            **fields,
        )


class StreamOptions(RequestObject):
    """Options of a streaming request."""

    include_usage: StrictBool = False


class ChoicesReader(RequestReader):
    """Request fields shared by the Chat Completions and Completions APIs."""

    n: StrictInt = Field(1, ge=1, le=MAX_CHOICES)
    prompt_logprobs: TopLogprobs | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: StrictBool = False

    def choice_fields(self, prompt_logprobs: int | None) -> JSON:
        """Return these request fields as arguments of `ChatRequest`. Raises `ApiError`.

        `prompt_logprobs` is the number of alternatives per prompt token.
        """
        if self.stream_options is not None and not self.stream:
            raise bad_request("`stream_options` requires `stream`: true", "stream_options")
        if prompt_logprobs is not None and self.stream:
            raise bad_request("log-probabilities of a prompt cannot be streamed", "stream")
        return {
            "n": self.n,
            "include_usage": self.stream_options is not None and self.stream_options.include_usage,
            "token_ids": self.return_token_ids,
            "scored": prompt_logprobs,
        }


class ReplyFormat(RequestObject):
    """Requested format of the reply."""

    type: Literal["text", "json_object", "json_schema"]
    definition: JSON | None = Field(
        None, validation_alias=AliasChoices("schema", AliasPath("json_schema", "schema"))
    )
    """The schema; chat completions wrap it in an object."""


class OutputOptions(RequestObject):
    """Output options of a request, of which only the format is supported."""

    format: ReplyFormat | None = None


def reply_schema(format: ReplyFormat | None, path: str) -> JSON | None:
    """Return the JSON schema of a reply format: None for `text`, any object for `json_object`."""
    if format is None or format.type == "text":
        return None
    if format.type == "json_schema" and format.definition is None:
        raise missing_field(path)
    return format.definition if format.type == "json_schema" else {"type": "object"}


# ---------------------------------------------------------------- the content of messages


class _Part(BaseModel):
    type: Literal["text", "input_text", "output_text", "refusal"] | None = None
    text: StrictStr = Field(validation_alias=AliasChoices("text", "refusal"))


def _join_parts(value: Any, handler: ValidatorFunctionWrapHandler) -> str:
    """Return the content of a message as text, joining a list of parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or an array of parts")
    items = [{"text": v} if isinstance(v, str) else v for v in cast("list[Any]", value)]
    return "".join(part.text for part in handler(items))


def _check_arguments(text: str) -> str:
    """Check that a tool call's arguments can be rendered.

    Text that is not JSON is accepted, since a model may write it and must get it back unchanged.
    """
    try:
        parse_json(text)
    except json.JSONDecodeError:
        return text
    except ValueError as error:
        raise ValueError(f"cannot be parsed: {error}") from None
    return text


Content = Annotated[
    str,
    GetPydanticSchema(lambda _, get: get(Annotated[Items[_Part], WrapValidator(_join_parts)])),
]
Arguments = Annotated[StrictStr, AfterValidator(_check_arguments)]


def read_parts(message: JSON, field: str) -> JSON:
    """Return the content parts of a message field, or an empty dict if all are plain text."""
    content = message.get(field)
    if not isinstance(content, list):
        return {}
    parts = [
        {"type": "text", "text": p} if isinstance(p, str) else p for p in cast("list[Any]", content)
    ]
    text_only = all(part.keys() <= {"type", "text", "refusal"} for part in parts)
    text_types = (None, "input_text", "output_text")
    typed = [part | {"type": "text"} if part.get("type") in text_types else part for part in parts]
    return {} if text_only else {PARTS: typed}


def call_fields(calls: Sequence[tuple[str, Mapping[str, Any] | None]]) -> JSON:
    """Return the extra fields of tool calls by call id, or an empty dict."""
    extra = {id: dict(fields) for id, fields in calls if fields}
    return {CALL_FIELDS: extra} if extra else {}
