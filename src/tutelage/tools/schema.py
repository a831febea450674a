"""Create JSON schemas from function signatures, and validate a model's arguments against them.

Pydantic creates the schema and validates the arguments in strict mode: arguments either match the
schema in the prompt or are answered with an error, and are never converted silently. Descriptions
come from a Google-style docstring. `tool.py` wraps the result in a `Tool`.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import PydanticUndefined, SchemaError

from tutelage.bounded import RepeatedKeyError, parse_json, reject_repeats
from tutelage.errors import ConfigError, MissingExtraError, ToolDefinitionError
from tutelage.tasks.readers import short_repr
from tutelage.types import JSON

_SECTION = re.compile(r"^(args|arguments|parameters|returns?|raises|yields|examples?|notes?):\s*$")
_PARAMETER = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


class ArgumentError(ValueError):
    """Raised for tool arguments that are not a JSON object or violate the schema; the model sees
    the message."""


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """JSON schema of a tool's parameters, with a function that validates arguments."""

    schema: JSON
    check: Callable[[str], dict[str, Any]] = field(repr=False)
    """Convert the text of a JSON object to keyword arguments. Raises `ArgumentError`."""

    def read(self, arguments: str) -> dict[str, Any]:
        """Parse and validate a tool call's arguments. Raises `ArgumentError`."""
        text = arguments.strip() or "{}"
        _check_json(text)
        return self.check(text)


def read_signature(
    fn: Callable[..., Any], namespace: Mapping[str, Any] | None = None
) -> tuple[str, Signature]:
    """Return a function's description and signature, without a leading `self`.

    `namespace` resolves annotations that refer to names local to the definition of `fn`. Raises
    `ToolDefinitionError` if the signature has no JSON schema.
    """
    name = getattr(fn, "__name__", repr(fn))
    try:
        parameters = list(inspect.signature(fn).parameters.values())
        hints = typing.get_type_hints(fn, localns=dict(namespace or {}), include_extras=True)
    except (NameError, TypeError, ValueError, AttributeError, SyntaxError) as error:
        raise ToolDefinitionError(
            f"tool {name!r}: cannot resolve its type hints: {error}; "
            "use types that can be imported where the tool is defined"
        ) from error
    if parameters and parameters[0].name in ("self", "cls") and parameters[0].name not in hints:
        parameters = parameters[1:]
    description, about = _parse_docstring(inspect.getdoc(fn) or "")
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    for index, parameter in enumerate(parameters):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ToolDefinitionError(
                f"tool {name!r}: {parameter} cannot be described by a JSON schema; "
                "declare each parameter by name"
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ToolDefinitionError(
                f"tool {name!r}: parameter {parameter.name!r} is positional-only; a model passes "
                "arguments by name, so remove the '/'"
            )
        if parameter.name not in hints:
            raise ToolDefinitionError(
                f"tool {name!r}: parameter {parameter.name!r} has no type hint; "
                f"add one, for example `{parameter.name}: str`"
            )
        default: Any = parameter.default
        if default is inspect.Parameter.empty:
            default = PydanticUndefined
        # Fields have neutral names, since a parameter may be called `schema` or `_x`.
        names[f"p{index}"] = parameter.name
        fields[f"p{index}"] = (
            hints[parameter.name],
            Field(default, alias=parameter.name, description=about.get(parameter.name)),
        )
    try:
        model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
        made = model.model_json_schema(by_alias=True, schema_generator=_QuietSchema)
        schema = cast("JSON", remove_titles(made))
        schema.setdefault("properties", {})
    except (PydanticUserError, SchemaError, TypeError, NameError) as error:
        reason = str(error).split("\n")[0]
        raise ToolDefinitionError(
            f"tool {name!r}: cannot create a JSON schema from its signature: {reason}"
        ) from error

    def check(text: str) -> dict[str, Any]:
        try:
            base_model = model.model_validate_json(text, strict=True)
        except ValidationError as error:
            problems = _describe_errors(error, json.loads(text))
            raise ArgumentError("; ".join(problems) + f"; expected {summary(schema)}") from None
        # Pass only explicit arguments, so that the function applies its own defaults.
        return {names[name]: getattr(base_model, name) for name in base_model.model_fields_set}

    return description, Signature(schema, check)


def schema_validator(schema: Mapping[str, Any], owner: str) -> Any:
    """Create a jsonschema validator in the dialect of the schema's `$schema`, by default draft
    2020-12. Remote references are not fetched.

    Raises `ConfigError` with the schema's `owner` if it is invalid or has a reference to another
    document, and `MissingExtraError` without jsonschema.
    """
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.validators import validator_for
        from referencing import Registry, Resource
        from referencing.jsonschema import DRAFT202012
    except ImportError as error:
        raise MissingExtraError(f"{owner} needs jsonschema: pip install 'tutelage[mcp]'") from error
    registry: Any = Registry()
    try:
        dialect: Any = validator_for(schema, default=Draft202012Validator)
        dialect.check_schema(schema)
        root: Any = Resource.from_contents(schema, default_specification=DRAFT202012)
        _check_references(root, registry.resolver_with_root(root))
    except Exception as error:
        reason = getattr(error, "message", f"unresolved reference {getattr(error, 'ref', error)!r}")
        raise ConfigError(f"invalid schema of {owner}: {reason:.300}") from error
    return dialect(schema, registry=registry)


def _check_references(resource: Any, resolver: Any) -> None:
    """Raise `Unresolvable` if a JSON schema refers to another document."""
    resolver = resolver.in_subresource(resource)
    for name in ("$ref", "$dynamicRef", "$recursiveRef"):
        if isinstance(resource.contents, Mapping) and name in resource.contents:
            resolver.lookup(resource.contents[name])
    for child in resource.subresources():
        _check_references(child, resolver)


def resolve_ref(schema: object, root: JSON) -> JSON:
    """Follow `$ref`s within a JSON schema, and return {} if one cannot be resolved."""
    for _ in range(20):
        here = cast("JSON", schema) if isinstance(schema, Mapping) else {}
        target = here.get("$ref")
        if not isinstance(target, str):
            return here
        schema = root if target.startswith("#") else {}
        for part in target.removeprefix("#").strip("/").split("/"):
            if part and isinstance(schema, Mapping):
                schema = schema.get(part.replace("~1", "/").replace("~0", "~"))
    return {}


def union_branches(schema: object, root: JSON) -> Sequence[object]:
    """Return the `anyOf` or `oneOf` branches of a JSON schema, or an empty sequence."""
    here = resolve_ref(schema, root)
    return cast("Sequence[object]", here.get("anyOf") or here.get("oneOf") or ())


def summary(schema: JSON) -> str:
    """Return a tool's parameter names, with `?` after optional ones."""
    required = schema.get("required", [])
    names = [n if n in required else f"{n}?" for n in schema.get("properties", {})]
    return "{" + ", ".join(names) + "}"


def _parse_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into its description and its `Args:` entries by parameter name."""
    lead: list[str] = []
    about: dict[str, str] = {}
    section, current, indent = "", "", 0
    for line in doc.split("\n"):
        stripped = line.strip()
        here = len(line) - len(line.lstrip())
        heading = _SECTION.match(stripped.lower()) if here == 0 else None
        if heading:
            section, current, indent = heading.group(1), "", 0
        elif not section:
            lead.append(stripped)
        elif section in ("args", "arguments", "parameters") and stripped:
            entry = _PARAMETER.match(stripped)
            if entry and (not indent or here <= indent):
                current, indent = entry.group(1), here
                about[current] = entry.group(2)
            elif current:
                about[current] = f"{about[current]} {stripped}".strip()
    paragraphs = " ".join(line or "\n" for line in lead).split("\n")
    return "\n".join(p.strip() for p in paragraphs if p.strip()), about


class _QuietSchema(GenerateJsonSchema):
    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        # A default that JSON cannot express is omitted from the schema without a warning.
        if kind != "non-serializable-default":
            super().emit_warning(kind, detail)


def remove_titles(schema: Any) -> Any:
    """Remove the titles that pydantic adds to a schema, which only lengthen the prompt."""
    if isinstance(schema, list):
        return [remove_titles(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    out: JSON = {}
    for key, value in cast("JSON", schema).items():
        if key in ("properties", "$defs"):
            out[key] = {name: remove_titles(inner) for name, inner in value.items()}
        elif key in ("default", "enum", "const", "examples"):
            out[key] = value
        elif key != "title":
            out[key] = remove_titles(value)
    return out


def _check_json(text: str) -> None:
    """Raise `ArgumentError`, with the position of the error, unless the text is a JSON object."""

    def reject(constant: str) -> Any:
        raise ArgumentError(f"invalid JSON: {constant} is not a JSON number")

    loads = functools.partial(json.loads, object_pairs_hook=reject_repeats, parse_constant=reject)
    try:
        value = parse_json(text, loads=loads)
    except ArgumentError:
        raise
    except RepeatedKeyError as error:
        raise ArgumentError(f"argument {error.key[:60]!r} is given twice") from None
    except json.JSONDecodeError as error:
        raise ArgumentError(f"invalid JSON at character {error.pos + 1}: {error.msg}") from None
    except ValueError as error:
        raise ArgumentError(f"JSON that cannot be read: {error}") from None
    if not isinstance(value, dict):
        kind = {list: "an array", str: "a string", type(None): "null"}.get(type(value), "a number")
        raise ArgumentError(f"arguments must be a JSON object, not {kind}")


def _describe_errors(error: ValidationError, values: JSON) -> list[str]:
    """Return a message for each invalid argument, with pydantic's wording.

    For a union pydantic reports the errors of every branch; only those of the closest branch are
    returned: the one with the fewest errors, deepest in the value.
    """
    arguments: dict[str, dict[object, list[dict[str, Any]]]] = {}
    for each in error.errors(include_url=False):
        if not each["loc"]:  # the error is in no argument: a lone surrogate
            return [str(each["msg"])]
        name, missing = str(each["loc"][0]), each["loc"][-1:] if each["type"] == "missing" else ()
        value = cast("Any", values)
        path, branch = list[Any](), None
        for part in each["loc"][: len(each["loc"]) - len(missing)]:
            try:
                value = value[part]
                path.append(part)
            except (LookupError, TypeError):  # the path includes the branch name
                branch = branch or part
        errors = arguments.setdefault(name, {}).setdefault(branch, [])
        errors.append({**each, "loc": (*path, *missing)})
    phrases: list[str] = []
    for branches in arguments.values():
        phrases += map(_describe_error, branches.pop(None, ()))
        fewest = min(map(len, branches.values()), default=0)
        close = [each for errors in branches.values() if len(errors) == fewest for each in errors]
        deepest = max((len(each["loc"]) for each in close), default=0)
        for place in dict.fromkeys(each["loc"] for each in close if len(each["loc"]) == deepest):
            same = [each for each in close if each["loc"] == place]
            words = " or ".join(dict.fromkeys(str(each["msg"]) for each in same))
            words = words.replace(" or Input should be", " or")
            phrases.append(_describe_error({**same[0], "msg": words}))
    return phrases


def _describe_error(error: Mapping[str, Any]) -> str:
    """Format a pydantic error as a phrase with the argument's name."""
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return f"missing argument {path!r}"
    if error["type"] == "extra_forbidden":
        return f"unknown argument {path!r}"
    return f"argument {path!r}: {error['msg']}, got {short_repr(error['input'])}"
