"""How a request is read, and what the requests of several dialects have in common.

A request is a pydantic model of what is honoured in it, straight from the parsed JSON; whatever
does not fit is a 400 that names the whole path of the field (`field_errors.py`). One rule holds for
all other fields: what would change the reply and cannot be honoured is refused by its name
(`refused`), and everything else is left alone and recorded. The dialects beside this file say which
fields they have.

A policy reads text. What else a message or a part of it has (annotations, citations, cache control)
stays on record with its message; images, sounds and files are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

from pydantic import (
    AfterValidator,
    AliasChoices,
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
from tutelage.gateway.dialects.field_errors import missing, refusal
from tutelage.gateway.errors import invalid
from tutelage.gateway.request import ChatRequest
from tutelage.types import JSON, Constraint, Message, Sampling, ToolSpec

T = TypeVar("T", bound=BaseModel)
MAX_TOOLS = 1024
MAX_STOPS = 16
MAX_NAME = 256
MAX_TOP = 20
MAX_CHOICES = 128
MAX_MESSAGES = 10_000
"""Messages of a request."""
PARTS, CALL_FIELDS = "content_parts", "tool_call_fields"
"""The names under which a message on record has its content in parts, and by the ids of its tool
calls what came beside them."""
_SEED = 1 << 63


class RequestObject(BaseModel):
    """An object of a request. A null counts as absent, as in OpenAI's API."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """Fields that would change the reply and cannot be honoured, with the values of each that ask
    for nothing."""

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
                words = "not supported by this server; leave it out"
                raise PydanticCustomError("unsupported_parameter", words, {"name": name})
        return values


class MessageObject(RequestObject):
    """A message, or a part of one. Clients send back what they were sent, with fields of their own
    and of others' servers: they stay with the message."""

    model_config = ConfigDict(extra="allow")


def read(model: type[T], data: Any, path: str = "") -> T:
    """Return the object at a path of the request, the whole request where it is empty.

    Raises `ApiError` that names the first field which does not fit.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise refusal(error.errors(include_url=False)[0], data, path) from None


# ---------------------------------------------------------------- values


def _check_name(name: str) -> str:
    if not name.isprintable():
        raise ValueError("must contain only printable characters")
    return name


def _read_tool_choice(value: Any) -> str:
    """`tool_choice` in the words of `Constraint`; both of OpenAI's ways to name a function."""
    match value:
        case "auto" | "none" | "required":
            return value
        case {"type": "function", "function": {"name": str(name)}} | {
            "type": "function",
            "name": str(name),
        }:
            return name
        case _:
            raise ValueError("must be auto, none, required or name one function")


Item = TypeVar("Item")
TopLogprobs = Annotated[StrictInt, Field(ge=0, le=MAX_TOP)]
Items = Annotated[list[Item], FailFast()]
Name = Annotated[StrictStr, Field(min_length=1, max_length=MAX_NAME), AfterValidator(_check_name)]
Stop = Annotated[StrictStr, Field(min_length=1)]


class FunctionTool(RequestObject):
    """What a request says of a function. `strict` is a promise that constrained decoding keeps
    where it applies."""

    name: Name
    description: StrictStr = ""
    parameters: JSON = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: StrictBool = False


_ALWAYS_REFUSED = dict.fromkeys((
    "guided_regex", "guided_choice", "guided_grammar", "grammar", "json_schema", "regex", "ebnf",
    "bad_words", "allowed_token_ids", "logits_processors", "truncate_prompt_tokens", "mirostat",
    "typical_p", "top_a", "tfs_z", "xtc_probability", "dry_multiplier", "dynatemp_range",
    "max_new_tokens", "n_predict",
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
    "ignore_eos": (False,),
    "use_beam_search": (False,),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
}
"""Fields by which OpenAI, vLLM, SGLang and llama.cpp change what is sampled, each with the values
that ask for nothing."""


class StructuredOutputs(RequestObject):
    """vLLM's words for a constraint, of which a JSON schema is honoured."""

    refused = dict.fromkeys(("regex", "choice", "grammar", "json_object", "structural_tag"), ())
    definition: JSON | None = Field(None, alias="json")


class RequestReader(RequestObject):
    """What the requests of all dialects have."""

    refused = UNSUPPORTED
    schema_name: ClassVar[str] = "response_format"
    """The dialect's own field for a schema of the reply."""
    tool_type: ClassVar[str] = "function"
    """The type of tools that the agent runs. Those that a server runs it can do without."""
    model: StrictStr
    temperature: Annotated[float, Strict()] | None = Field(None, ge=0, le=2)
    top_p: Annotated[float, Strict()] | None = Field(None, gt=0, le=1)
    top_k: StrictInt | None = Field(None, ge=-1)
    stop: Annotated[
        Items[Stop], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
    ] = Field(default_factory=lambda: [], max_length=MAX_STOPS)
    seed: StrictInt | None = Field(None, ge=-_SEED, lt=_SEED)
    stream: StrictBool = False
    min_tokens: StrictInt = Field(0, ge=0)
    guided_json: Annotated[
        JSON | None, BeforeValidator(lambda v: parse_json(v) if isinstance(v, str) else v)
    ] = None
    """A schema, also as JSON text, which vLLM takes too."""
    structured_outputs: StructuredOutputs | None = None
    tool_choice: Annotated[str, BeforeValidator(_read_tool_choice)] = "auto"
    parallel_tool_calls: StrictBool = True
    chat_template_kwargs: JSON = Field(default_factory=lambda: {})

    @field_validator("tools", mode="before", check_fields=False)
    @classmethod
    def _client_tools(cls, tools: Any) -> Any:
        if tools.__class__ is not list:
            return tools
        each, kind = cast("list[Any]", tools), cls.tool_type
        return [t for t in each if not isinstance(t, dict) or t.get("type", kind) == kind]

    @classmethod
    def unused(cls, values: JSON) -> JSON:
        """Return the fields that change nothing here, for the record; tools of other types too."""
        read = {field.alias or name for name, field in cls.model_fields.items()}
        rest, kind = values.keys() - read - cls.refused.keys(), cls.tool_type
        found = {name: values[name] for name in values if name in rest and values[name] is not None}
        if others := [t for t in values.get("tools") or () if t.get("type", kind) != kind]:
            found["tools"] = others
        return found

    def sampling(self, defaults: Sampling, limit: int | None) -> Sampling:
        """Return how to sample; `defaults` says what holds where the request is silent."""
        most = limit or defaults.max_tokens
        if self.min_tokens > most:
            words = f"`min_tokens` = {self.min_tokens} exceeds the maximum of {most} reply tokens"
            raise invalid(words, "min_tokens")
        return Sampling(
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            top_p=self.top_p or defaults.top_p,
            top_k=max(0, self.top_k or defaults.top_k),
            max_tokens=most,
            stop=tuple(self.stop) or defaults.stop,
        )

    def make_request(
        self,
        messages: tuple[Message, ...],
        functions: Sequence[FunctionTool],
        sampling: Sampling,
        schema: JSON | None,
        **more: Any,
    ) -> ChatRequest:
        """Return the request; `schema` is that of the dialect's own field, and `more` are fields
        that not all dialects have. Raises `ApiError`."""
        names = [each.name for each in functions]
        if len(set(names)) != len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise invalid(f"duplicate tool name in `tools`: {twice!r}", "tools")
        outputs = self.structured_outputs and self.structured_outputs.definition
        found = {
            self.schema_name: schema,
            "guided_json": self.guided_json,
            "structured_outputs.json": outputs,
        }
        schemas = {field: schema for field, schema in found.items() if schema is not None}
        if len(schemas) > 1:
            words = " and ".join(f"`{field}`" for field in schemas)
            raise invalid(f"{words} are both set: pass only one schema", [*schemas][1])
        schema_field, schema = next(iter(schemas.items()), ("", None))
        choice, parallel, constraint = self.tool_choice, self.parallel_tool_calls, None
        if choice == "required" and not names:
            raise invalid("`tool_choice` 'required' needs `tools`", "tool_choice")
        if choice not in ("auto", "none", "required", *names):
            words = f"`tool_choice` names {choice!r}, which is not in `tools`"
            raise invalid(words, "tool_choice")
        forced = choice == "none" or (names and not (choice == "auto" and parallel))
        if self.min_tokens and (forced or schema is not None):
            words = "`min_tokens` requires `tool_choice`: auto and no schema"
            raise invalid(words, "min_tokens")
        if forced or schema is not None:
            constraint = Constraint(choice, parallel, schema)
        elif self.min_tokens:
            constraint = Constraint(min_tokens=self.min_tokens)
        return ChatRequest(
            model=self.model,
            messages=messages,
            sampling=sampling,
            tools=tuple(ToolSpec(f.name, f.description, f.parameters) for f in functions),
            strict=tuple(each.name for each in functions if each.strict),
            constraint=constraint,
            schema_field=schema_field,
            seed=self.seed,
            template=self.chat_template_kwargs,
            stream=self.stream,
            **more,
        )


class StreamOptions(RequestObject):
    """What a stream carries beside its choices."""

    include_usage: StrictBool = False


class ChoicesReader(RequestReader):
    """What requests for chat completions and for completions have."""

    n: StrictInt = Field(1, ge=1, le=MAX_CHOICES)
    prompt_logprobs: TopLogprobs | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: StrictBool = False

    def choices(self, scored: int | None) -> JSON:
        """Return these fields of the request; `scored` says how its prompt is. Raises `ApiError`"""
        if self.stream_options is not None and not self.stream:
            raise invalid("`stream_options` requires `stream`: true", "stream_options")
        if scored is not None and self.stream:
            raise invalid("log-probabilities of a prompt cannot be streamed", "stream")
        return {
            "n": self.n,
            "include_usage": self.stream_options is not None and self.stream_options.include_usage,
            "token_ids": self.return_token_ids,
            "scored": scored,
        }


class ReplyFormat(RequestObject):
    """The form that a reply must have."""

    type: Literal["text", "json_object", "json_schema"]
    definition: JSON | None = Field(None, alias="schema")


def reply_schema(kind: str, schema: JSON | None, path: str) -> JSON | None:
    """Return the schema that the reply must have: none for `text`, any object's for
    `json_object`."""
    if kind == "json_schema" and schema is None:
        raise missing(path)
    own = {"type": "object"} if kind == "json_object" else None
    return schema if kind == "json_schema" else own


# ---------------------------------------------------------------- the content of messages


class _Part(BaseModel):
    type: Literal["text", "input_text", "output_text", "refusal"] | None = None
    text: StrictStr = Field(validation_alias=AliasChoices("text", "refusal"))


def _join(value: Any, parts: ValidatorFunctionWrapHandler) -> str:
    """The text of a message: a string, or a list of text parts, which are joined."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or an array of parts")
    listed = [{"text": v} if isinstance(v, str) else v for v in cast("list[Any]", value)]
    return "".join(part.text for part in parts(listed))


def _check_arguments(text: str) -> str:
    """A tool call's arguments: text, of JSON where the model wrote it so, that can be rendered.

    A model may write what is no JSON, and gets it back unchanged.
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
    GetPydanticSchema(lambda _, schema: schema(Annotated[Items[_Part], WrapValidator(_join)])),
]
Arguments = Annotated[StrictStr, AfterValidator(_check_arguments)]


class CallObject(BaseModel):
    """A tool call; what nobody reads of it stays with its message."""

    model_config = ConfigDict(extra="allow")


def read_parts(message: JSON, field: str) -> JSON:
    """Return what came beside the text of a message in `field`, as its message keeps it: its parts,
    where one says more than its text."""
    content = message.get(field)
    if not isinstance(content, list):
        return {}
    parts = [
        {"type": "text", "text": p} if isinstance(p, str) else p for p in cast("list[Any]", content)
    ]
    plain = all(part.keys() <= {"type", "text", "refusal"} for part in parts)
    texts = (None, "input_text", "output_text")
    kept = [part | {"type": "text"} if part.get("type") in texts else part for part in parts]
    return {} if plain else {PARTS: kept}


def call_fields(calls: Sequence[tuple[str, Mapping[str, Any] | None]]) -> JSON:
    """Return what came beside tool calls, as their message keeps it; nothing where nothing did."""
    found = {id: dict(fields) for id, fields in calls if fields}
    return {CALL_FIELDS: found} if found else {}
