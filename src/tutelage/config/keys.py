"""The schema as a flat list of dotted keys, with fields, defaults and allowed values.

Overrides, flags, presets, origins and the reference page use keys such as `actor.optim.lr`; only
this module walks the nested sections. `aliases.py` has the other spellings.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, reduce
from types import MappingProxyType
from typing import Any, cast

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tutelage.config.fields import Section
from tutelage.config.issues import ConfigIssue
from tutelage.config.schema import RunConfig

Names = Mapping[str, Sequence[str]]
"""Registered names by key."""
NO_NAMES: Names = MappingProxyType({})
_BOUNDS = {
    **{"minimum": "at least", "exclusiveMinimum": "above"},
    **{"maximum": "at most", "exclusiveMaximum": "below"},
}


@cache
def leaf_fields() -> Mapping[str, FieldInfo]:
    """Return the pydantic field of every key, in the order of the schema."""
    return MappingProxyType(dict(_walk_fields(RunConfig, "")))


@cache
def metadata(key: str) -> tuple[object, ...]:
    """Return the annotations of a key and of the sections that contain it."""
    items, model = list[object](), RunConfig
    for name in key.split("."):
        field = model.model_fields[name]
        items, model = [*items, *field.metadata], cast("Any", field.annotation)
    return tuple(items)


@cache
def section_names() -> frozenset[str]:
    """Return the dotted names of all sections, such as `actor` and `actor.optim`."""
    return frozenset(
        key.rsplit(".", depth)[0] for key in leaf_fields() for depth in range(1, key.count(".") + 1)
    )


@cache
def defaults() -> Mapping[str, Any]:
    """Return the default value of every key."""
    config = RunConfig()
    return MappingProxyType({key: get(config, key) for key in leaf_fields()})


def get(config: RunConfig, key: str) -> Any:
    """Return the value of a dotted key. Raises `AttributeError` for an unknown key."""
    return reduce(getattr, key.split("."), cast("Any", config))


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Convert dotted keys to nested dicts: `{"a.b": 1}` becomes `{"a": {"b": 1}}`."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, last = key.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return tree


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys with values: `("a.b", 1)` for `{"a": {"b": 1}}`; keep empty dicts."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            yield from flatten(cast("Mapping[str, Any]", value), f"{key}.")
        else:
            yield key, value


def value_issue(key: str, value: Any, names: Names = NO_NAMES) -> ConfigIssue:
    """Return the `ConfigIssue` for an invalid value of a key, with the expected values and the most
    similar choice or the help of the key.

    `names` are registered names that keys take in addition to the schema (`extensions.py`).
    """
    schema, fix = json_schema(key), " ".join((leaf_fields()[key].description or "").split())
    if choices := _list_choices(schema):
        values = cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else [value]
        invalid = [str(item) for item in values if item not in choices][:1]
        matches = difflib.get_close_matches("".join(invalid), choices, n=1, cutoff=0.4)
        # `algorithm=grpo`: the value is right and the key is its neighbour.
        taken = ((k, (*_list_choices(json_schema(k)), *names.get(k, ()))) for k in leaf_fields())
        homes = [f"{k}={value}" for k, known in taken if isinstance(value, str) and value in known]
        fix = f"Did you mean {[*homes, *map(repr, matches)][0]}?" if homes or matches else fix
    return ConfigIssue(key, value, f"expected {value_text(schema)}", fix)


def field_issue(model: type[Section], error: ErrorDetails, prefix: str = "") -> ConfigIssue:
    """Convert a validation error of a field of `model` into a `ConfigIssue`; `prefix` is `--` for
    an option."""
    name = str(error["loc"][0])
    message = " ".join((model.model_fields[name].description or "").split())
    reason = f"expected {value_text(model.model_json_schema()['properties'][name])}"
    if prefix or error["input"] == "null":  # an option takes no null: it is left out
        reason = reason.removesuffix(", or null")
    if error["type"] == "value_error":
        reason = str(error.get("ctx", {})["error"])
    key = f"{prefix}{name.replace('_', '-')}" if prefix else name
    return ConfigIssue(key, error["input"], reason, message)


@cache
def json_schema(key: str) -> Mapping[str, Any]:
    """Return the JSON schema of one key."""
    *parents, last = key.split(".")
    model = type(get(RunConfig(), ".".join(parents))) if parents else RunConfig
    return model.model_json_schema()["properties"][last]


def value_text(schema: Mapping[str, Any]) -> str:
    """Describe the values that a schema allows, such as `an integer, at least 1, or null`."""
    if "anyOf" in schema:
        return ", or ".join(value_text(part) for part in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(repr(choice) for choice in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        items: Sequence[Mapping[str, Any]] = schema.get("prefixItems", ())
        size = f" of {len(items)}" * bool(items)
        return f"a list{size}, each {value_text([*items, schema.get('items', {})][0])}"
    names = {"integer": "an integer", "number": "a number", "boolean": "true or false"}
    message = {**names, "string": "text", "null": "null"}[str(kind)]
    if "examples" in schema:
        message += f" such as {' or '.join(schema['examples'])}"
    limits = [f"{text} {schema[name]:g}" for name, text in _BOUNDS.items() if name in schema]
    return ", ".join([message, *limits])


def _walk_fields(model: type[Section], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _walk_fields(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _list_choices(schema: Mapping[str, Any]) -> list[str]:
    parts = [schema, *schema.get("anyOf", ()), schema.get("items", {})]
    return [choice for part in parts for choice in part.get("enum", ())]
