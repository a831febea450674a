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
from functools import cache
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
MAX_MESSAGES = 10_000
"""Messages of a request."""
PARTS, CALL_FIELDS = "content_parts", "tool_call_fields"
"""The names under which a message on record has its content in parts, and by the ids of its tool
calls what came beside them."""
_SEED = 1 << 63
_TEXTS = (None, "text", "input_text", "output_text", "refusal")


class RequestObject(BaseModel):
    """An object of a request. A null counts as absent, as in OpenAI's API."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """Fields that would change the reply and cannot be honoured, with the values of each that ask
    for nothing."""

    @model_validator(mode="before")
    @classmethod
    def _present(cls, data: Any) -> Any:
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


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("must contain only printable characters")
    return name


def _parsed(schema: Any) -> Any:
    """A schema, also as JSON text, which vLLM takes too."""
    return parse_json(schema) if isinstance(schema, str) else schema


def _chosen(value: Any) -> str:
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
Name = Annotated[StrictStr, Field(min_length=1, max_length=MAX_NAME), AfterValidator(_printable)]
Stop = Annotated[StrictStr, Field(min_length=1)]


class FunctionTool(RequestObject):
    """What a request says of a function. `strict` is a promise that constrained decoding keeps
    where it applies."""

    name: Name
    description: StrictStr = ""
    parameters: JSON = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: StrictBool = False


_NEVER = dict.fromkeys((
    "guided_regex", "guided_choice", "guided_grammar", "grammar", "json_schema", "regex", "ebnf",
    "bad_words", "allowed_token_ids", "logits_processors", "truncate_prompt_tokens", "mirostat",
    "typical_p", "top_a", "tfs_z", "xtc_probability", "dry_multiplier", "dynatemp_range",
    "max_new_tokens", "n_predict",
), ())  # fmt: skip
UNHONOURED: Mapping[str, Sequence[Any]] = {
    **_NEVER,
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
    wanted: JSON | None = Field(None, alias="json")


class SamplingReader(RequestObject):
    """What the requests of all dialects have."""

    refused = UNHONOURED
    schema_name: ClassVar[str] = "response_format"
    """The dialect's own field for a schema of the reply."""
    model: StrictStr
    temperature: Annotated[float, Strict()] | None = Field(None, ge=0, le=2)
    top_p: Annotated[float, Strict()] | None = Field(None, gt=0, le=1)
    top_k: StrictInt | None = Field(None, ge=-1)
    stop: Annotated[Items[Stop], BeforeValidator(_listed)] = Field(
        default_factory=lambda: [], max_length=MAX_STOPS
    )
    seed: StrictInt | None = Field(None, ge=-_SEED, lt=_SEED)
    stream: StrictBool = False
    min_tokens: StrictInt = Field(0, ge=0)
    guided_json: Annotated[JSON | None, BeforeValidator(_parsed)] = None
    structured_outputs: StructuredOutputs | None = None

    @classmethod
    def unused(cls, values: JSON) -> JSON:
        """Return the fields that change nothing here, for the record."""
        rest = values.keys() - _known(cls)
        return {name: values[name] for name in values if name in rest and values[name] is not None}

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

    def schemas(self, own: JSON | None) -> dict[str, JSON]:
        """Return the schema of the reply by its field; `own` is that of the dialect's own field.

        Raises `ApiError` where there are several.
        """
        wanted = self.structured_outputs and self.structured_outputs.wanted
        fields = (self.schema_name, "guided_json", "structured_outputs.json")
        found = dict(zip(fields, (own, self.guided_json, wanted), strict=True))
        schemas = {name: schema for name, schema in found.items() if schema is not None}
        if len(schemas) > 1:
            names = " and ".join(f"`{name}`" for name in schemas)
            raise invalid(f"{names} are both set: pass only one schema", [*schemas][1])
        return schemas

    def plain_constraint(self) -> Constraint | None:
        """Return the constraint of a reply that can call no tool."""
        schema = next(iter(self.schemas(None).values()), None)
        if schema is None:
            return Constraint(min_tokens=self.min_tokens) if self.min_tokens else None
        if self.min_tokens:
            raise invalid("`min_tokens` cannot be combined with a schema", "min_tokens")
        return Constraint(json_schema=schema)


_CONSTRAINING = frozenset(
    ("tool_choice", "parallel_tool_calls", "min_tokens", "guided_json", "structured_outputs")
)
"""The fields that a constraint is made of, beside a dialect's own schema."""


@cache
def _known(model: type[SamplingReader]) -> frozenset[str]:
    """The names of the fields that are read or refused."""
    read = (field.alias or name for name, field in model.model_fields.items())
    return frozenset((*read, *model.refused))


class RequestReader(SamplingReader):
    """What those of conversations have."""

    tool_type: ClassVar[str] = "function"
    """The type of tools that the agent runs. Those that a server runs it can do without."""
    tool_choice: Annotated[str, BeforeValidator(_chosen)] = "auto"
    parallel_tool_calls: StrictBool = True
    chat_template_kwargs: JSON = Field(default_factory=lambda: {})

    @field_validator("tools", mode="before", check_fields=False)
    @classmethod
    def _callable(cls, tools: Any) -> Any:
        if tools.__class__ is not list:
            return tools
        each, kind = cast("list[Any]", tools), cls.tool_type
        return [t for t in each if not isinstance(t, dict) or t.get("type", kind) == kind]

    @classmethod
    def unused(cls, values: JSON) -> JSON:
        """See `SamplingReader`; tools of other types too."""
        found, kind = super().unused(values), cls.tool_type
        if others := [t for t in values.get("tools") or () if t.get("type", kind) != kind]:
            found["tools"] = others
        return found

    def asked(
        self,
        messages: tuple[Message, ...],
        functions: Sequence[FunctionTool],
        sampling: Sampling,
        schema: JSON | None,
        **more: Any,
    ) -> ChatRequest:
        """Return the request; `schema` is that of the dialect's own field, and `more` are fields
        that not all dialects have. Raises `ApiError`."""
        tools = _tool_specs(functions)
        return ChatRequest(
            model=self.model,
            messages=messages,
            sampling=sampling,
            tools=tools,
            strict=tuple(each.name for each in functions if each.strict),
            constraint=self._constraint(tools, schema),
            schema_field=next(iter(self.schemas(schema)), ""),
            seed=self.seed,
            template=self.chat_template_kwargs,
            stream=self.stream,
            **more,
        )

    def _constraint(self, tools: Sequence[ToolSpec], schema: JSON | None) -> Constraint | None:
        """The constraint of the reply, None when there is nothing to enforce."""
        if schema is None and self.model_fields_set.isdisjoint(_CONSTRAINING):
            return None
        choice, schema = self.tool_choice, next(iter(self.schemas(schema).values()), None)
        if choice == "required" and not tools:
            raise invalid("`tool_choice` 'required' needs `tools`", "tool_choice")
        if choice not in ("auto", "none", "required", *(tool.name for tool in tools)):
            words = f"`tool_choice` names {choice!r}, which is not in `tools`"
            raise invalid(words, "tool_choice")
        free = choice != "none" and not tools
        if schema is None and (free or (choice == "auto" and self.parallel_tool_calls)):
            return Constraint(min_tokens=self.min_tokens) if self.min_tokens else None
        if self.min_tokens:
            words = "`min_tokens` requires `tool_choice`: auto and no schema"
            raise invalid(words, "min_tokens")
        return Constraint(choice, self.parallel_tool_calls, schema)


def _tool_specs(functions: Sequence[FunctionTool]) -> tuple[ToolSpec, ...]:
    """Return the function tools. Raises `ApiError` for two of one name."""
    names = [each.name for each in functions]
    if len(set(names)) != len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise invalid(f"duplicate tool name in `tools`: {twice!r}", "tools")
    return tuple(ToolSpec(each.name, each.description, each.parameters) for each in functions)


def reply_schema(kind: str, schema: JSON | None, path: str) -> JSON | None:
    """Return the schema that the reply must have: none for `text`, any object's for
    `json_object`."""
    if kind == "json_schema":
        if schema is None:
            raise missing(path)
        return schema
    return {"type": "object"} if kind == "json_object" else None


# ---------------------------------------------------------------- the content of messages


class _Part(BaseModel):
    type: Literal["text", "input_text", "output_text", "refusal"] | None = None
    text: StrictStr = Field(validation_alias=AliasChoices("text", "refusal"))


def _joined(value: Any, parts: ValidatorFunctionWrapHandler) -> str:
    """The text of a message: a string, or a list of text parts, which are joined."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or an array of parts")
    listed = [{"text": v} if isinstance(v, str) else v for v in cast("list[Any]", value)]
    return "".join(part.text for part in parts(listed))


def _readable(text: str) -> str:
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
    GetPydanticSchema(lambda _, schema: schema(Annotated[Items[_Part], WrapValidator(_joined)])),
]
Arguments = Annotated[StrictStr, AfterValidator(_readable)]


class CallObject(BaseModel):
    """A tool call; what nobody reads of it stays with its message."""

    model_config = ConfigDict(extra="allow")


def with_parts(message: JSON, field: str) -> JSON:
    """Return what came beside the text of a message in `field`, as its message keeps it: its parts,
    where one says more than its text."""
    content = message.get(field)
    if not isinstance(content, list):
        return {}
    parts = [
        {"type": "text", "text": p} if isinstance(p, str) else p for p in cast("list[Any]", content)
    ]
    plain = all(part.keys() <= {"type", "text", "refusal"} for part in parts)
    return {} if plain else {PARTS: [{**part, "type": _kind(part)} for part in parts]}


def _kind(part: JSON) -> str:
    """The type of a part in the words of chat completions."""
    kind = part.get("type")
    return kind if kind not in (None, "input_text", "output_text") else "text"


def call_fields(calls: Sequence[tuple[str, Mapping[str, Any] | None]]) -> JSON:
    """Return what came beside tool calls, as their message keeps it; nothing where nothing did."""
    found = {id: dict(fields) for id, fields in calls if fields}
    return {CALL_FIELDS: found} if found else {}
