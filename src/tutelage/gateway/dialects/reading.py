"""How a request is read, and what the requests of several dialects have in common.

A request is a pydantic model of what is honoured in it, straight from the parsed JSON; whatever
does not fit is a 400 that names the whole path of the field (`field_errors.py`). Every field is
honoured, known to be harmless, or refused; what another server may honour is read as it comes where
the request is passed on (`parts.py` has images and the like). The dialects beside this file say
which fields they have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    Strict,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tutelage.bounded import parse_json
from tutelage.gateway.dialects.field_errors import missing, refusal
from tutelage.gateway.errors import invalid
from tutelage.types import JSON, Constraint, Sampling, ToolSpec

T = TypeVar("T", bound=BaseModel)
MAX_TOOLS = 1024
MAX_STOPS = 16
MAX_NAME = 256
MAX_TOP = 20
_SEED = 1 << 63
PASSING = MappingProxyType({"passing": True})


class RequestObject(BaseModel):
    """An object of a request. A null counts as absent, as in OpenAI's API, and what nobody would
    read is refused."""

    harmless: ClassVar[Collection[str]] = ()
    """Fields that may be there and change nothing."""
    neutral: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """Fields that cannot be honoured, with the values of each that ask for nothing."""
    known: ClassVar[frozenset[str]] = frozenset()
    liberal: ClassVar[bool] = False
    """Whether what nobody would read may be there too: it is in `model_extra`."""
    passes: ClassVar[bool] = False
    """Whether a request that is passed on may have what is not honoured here, but for `own`."""
    prepares: ClassVar[bool] = False
    """Whether it has a `prepared` of its own."""
    own: ClassVar[Collection[str]] = ()
    """Of `neutral`, what no chat completion has."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        fields = cls.__pydantic_fields__.items()
        cls.known = frozenset((*(field.alias or name for name, field in fields), *cls.harmless))
        cls.prepares = cls.prepared.__func__ is not RequestObject.prepared.__func__

    @model_validator(mode="before")
    @classmethod
    def _present(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict):
            return data
        values = cast("JSON", data)
        if None in values.values():
            values = {k: v for k, v in values.items() if v is not None}
        if values.keys() <= cls.known:
            return cls.prepared(values, info.context is not None) if cls.prepares else values
        passing = passed_on(info)
        for name in (name for name in values if name not in cls.known):
            if passing and cls.passes and name not in cls.own:
                continue
            if name not in cls.neutral:
                if cls.liberal:
                    continue
                words = "unknown parameter"
                raise PydanticCustomError("unknown_parameter", words, {"name": name})
            if values[name] not in cls.neutral[name]:
                raise unsupported(name)
        return cls.prepared(values, passing) if cls.prepares else values

    @classmethod
    def prepared(cls, values: JSON, passing: bool) -> JSON:
        """The fields as they are read; `passing` where the request is passed on."""
        return values


class MessageObject(RequestObject):
    """A message, or a part of one. Clients send back what they were sent, with fields of their own
    and of others' servers: what cannot change the prompt stays with the message."""

    model_config = ConfigDict(extra="allow")
    liberal = True


def unsupported(name: str) -> PydanticCustomError:
    """The refusal of a field of an object."""
    words = "not supported by this server; leave it out"
    return PydanticCustomError("unsupported_parameter", words, {"name": name})


def passed_on(info: ValidationInfo) -> bool:
    """Whether what is read is passed on to another server."""
    return info.context is not None


def read(model: type[T], data: Any, path: str = "", *, passing: bool = False) -> T:
    """The object at a path of the request, the whole request where it is empty.

    Raises `ApiError` that names the first field which does not fit. With `passing` another server
    will read it too, and may know what this one does not.
    """
    try:
        return model.model_validate(data, context=PASSING if passing else None)
    except ValidationError as error:
        raise refusal(error.errors(include_url=False)[0], data, path) from None


# ---------------------------------------------------------------- values


def _listed(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("must contain only printable characters")
    return name


def _parsed(schema: Any) -> Any:
    """A schema, also as JSON text, which vLLM takes too."""
    return parse_json(schema) if isinstance(schema, str) else schema


def _chosen(value: Any, info: ValidationInfo) -> str:
    """`tool_choice` in the words of `Constraint`; both dialects' ways to name a function."""
    match value:
        case "auto" | "none" | "required":
            return value
        case {"type": "function", "function": {"name": str(name)}} | {
            "type": "function",
            "name": str(name),
        }:
            return name
        case {"type": "allowed_tools" | "custom"} if passed_on(info):
            return "auto"
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

    type: Literal["function"] = "function"
    name: Name
    description: StrictStr = ""
    parameters: JSON = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: StrictBool = False


UNHONOURED: Mapping[str, Sequence[Any]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "ignore_eos": (False,),
    "use_beam_search": (False,),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (0,),
}
"""Fields of OpenAI's and vLLM's sampling, each with the values that ask for nothing."""


class StructuredOutputs(RequestObject):
    """vLLM's words for a constraint, of which a JSON schema is honoured."""

    harmless = ("disable_any_whitespace", "disable_additional_properties")
    wanted: JSON | None = Field(None, alias="json")


class SamplingReader(RequestObject):
    """What the requests of all dialects have."""

    passes = True
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

    def sampling(self, defaults: Sampling, limit: int | None) -> Sampling:
        """How to sample; `defaults` says what holds where the request is silent."""
        most = limit or defaults.max_tokens
        if self.min_tokens > most:
            words = f"`min_tokens` = {self.min_tokens} exceeds the maximum of {most} reply tokens"
            raise invalid(words, "min_tokens")
        return Sampling(
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            top_p=self.top_p or defaults.top_p,
            top_k=max(0, self.top_k or defaults.top_k),
            max_tokens=limit or defaults.max_tokens,
            stop=tuple(self.stop) or defaults.stop,
        )

    def schema_of(self, own: JSON | None) -> JSON | None:
        """The schema of the reply; `own` is that of the dialect's own field."""
        given = self._vllms_schemas()
        if own is not None:
            given = {self.schema_name: own, **given}
        if len(given) > 1:
            names = " and ".join(f"`{name}`" for name in given)
            raise invalid(f"{names} are both set: pass only one schema", [*given][1])
        return next(iter(given.values()), None)

    @property
    def schema_field(self) -> str:
        """The field that has the schema, where one has."""
        return next(iter(self._vllms_schemas()), self.schema_name)

    def _vllms_schemas(self) -> dict[str, JSON]:
        if self.guided_json is None and self.structured_outputs is None:
            return {}
        wanted = self.structured_outputs and self.structured_outputs.wanted
        found = {"guided_json": self.guided_json, "structured_outputs.json": wanted}
        return {name: schema for name, schema in found.items() if schema is not None}

    def plain_constraint(self) -> Constraint | None:
        """The constraint of a reply that can call no tool."""
        schema = self.schema_of(None)
        if schema is None:
            return Constraint(min_tokens=self.min_tokens) if self.min_tokens else None
        if self.min_tokens:
            raise invalid("`min_tokens` cannot be combined with a schema", "min_tokens")
        return Constraint(json_schema=schema)


_CONSTRAINING = frozenset(
    ("tool_choice", "parallel_tool_calls", "min_tokens", "guided_json", "structured_outputs")
)
"""The fields that a constraint is made of, beside a dialect's own schema."""


class RequestReader(SamplingReader):
    """What those of conversations have."""

    tool_choice: Annotated[str, BeforeValidator(_chosen)] = "auto"
    parallel_tool_calls: StrictBool = True

    def constraint(
        self, tools: Sequence[ToolSpec], schema: JSON | None, *, passing: bool = False
    ) -> Constraint | None:
        """The constraint of the reply, None when there is nothing to enforce. `schema` is that of
        the dialect's own field. Another server, to which the request is passed on, enforces it
        itself, and may know tools that are not known here."""
        if schema is None and self.model_fields_set.isdisjoint(_CONSTRAINING):
            return None
        choice, schema = self.tool_choice, self.schema_of(schema)
        if choice == "required" and not (tools or passing):
            raise invalid("`tool_choice` 'required' needs `tools`", "tool_choice")
        if choice not in ("auto", "none", "required", *(tool.name for tool in tools)):
            words = f"`tool_choice` names {choice!r}, which is not in `tools`"
            raise invalid(words, "tool_choice")
        free = choice != "none" and not tools
        if schema is None and (free or (choice == "auto" and self.parallel_tool_calls)):
            least = None if passing else self.min_tokens
            return Constraint(min_tokens=least) if least else None
        if self.min_tokens and not passing:
            words = "`min_tokens` requires `tool_choice`: auto and no schema"
            raise invalid(words, "min_tokens")
        return Constraint(choice, self.parallel_tool_calls, schema)


class TurnReader(RequestReader):
    """What the requests of all dialects have that a chat template renders."""

    chat_template_kwargs: JSON = Field(default_factory=lambda: {})


class NamedTool(Protocol):
    """A function, whatever its dialect calls the schema."""

    name: str
    description: str
    parameters: JSON


def tool_specs(functions: Sequence[NamedTool]) -> tuple[ToolSpec, ...]:
    """The function tools. Refuses two of one name."""
    if not functions:
        return ()
    names = [each.name for each in functions]
    if len(set(names)) != len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise invalid(f"duplicate tool name in `tools`: {twice!r}", "tools")
    return tuple(ToolSpec(each.name, each.description, each.parameters) for each in functions)


def reply_schema(kind: str, schema: JSON | None, path: str) -> JSON | None:
    """The schema that the reply must have: none for `text`, any object's for `json_object`."""
    if kind == "json_schema":
        if schema is None:
            raise missing(path)
        return schema
    return {"type": "object"} if kind == "json_object" else None
