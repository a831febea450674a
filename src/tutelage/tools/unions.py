"""What is wrong with an argument that may be one of several things, in a sentence.

A validator's own words for `anyOf` and `oneOf` name branches of the schema. Here the branch that
was meant is looked for, and what it lacks is told; else all that would do is. `schema.py` asks for
functions, `mcp.py` for the tools of servers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tutelage.tasks.readers import short
from tutelage.types import JSON

_DEPTH = 20
"""How deep a schema is followed."""
_ANY = "another value"
_TYPES: dict[str, tuple[str, str, type | tuple[type, ...]]] = {
    "string": ("a string", "strings", str),
    "integer": ("an integer", "integers", int),
    "number": ("a number", "numbers", (int, float)),
    "boolean": ("true or false", "booleans", bool),
    "null": ("null", "nulls", type(None)),
    "array": ("a list", "lists", list),
    "object": ("an object", "objects", dict),
}


def resolved(schema: object, root: JSON) -> JSON:
    """The schema itself behind `$ref`s into the same document; an empty one for any other."""
    for _ in range(_DEPTH):
        if not isinstance(schema, Mapping):
            return {}
        target = cast("JSON", schema).get("$ref")
        if not isinstance(target, str):
            return cast("JSON", schema)
        schema = root if target.startswith("#") else {}
        for part in target.removeprefix("#").strip("/").split("/"):
            if part and isinstance(schema, Mapping):
                schema = schema.get(part.replace("~1", "/").replace("~0", "~"))
    return {}


def union_problems(value: object, schema: object, root: JSON, path: str) -> list[str]:
    """What is wrong with a value of this schema, whose union it does not fit; nothing where only
    a bound or a pattern is broken, for which the validator has words."""
    found = _problems(value, schema, root, path, 0)
    if not found and "oneOf" in resolved(schema, root):
        branches = union_of(schema, root)
        if sum(not _problems(value, branch, root, path, 0) for branch in branches) > 1:
            found = [_expected(branches, root, path, value, "just one of ")]
    return found


def would_do(value: object, schema: object, root: JSON, path: str) -> list[str]:
    """What a union takes, where nothing better can be said; nothing for another schema."""
    branches = union_of(schema, root)
    return [_expected(branches, root, path, value)] if branches else []


def union_of(schema: object, root: JSON) -> Sequence[object]:
    """The schemas one of which a value is of, none where there is one alone."""
    return _union(resolved(schema, root))


def _union(schema: JSON) -> Sequence[object]:
    return cast("Sequence[object]", schema.get("anyOf") or schema.get("oneOf") or ())


def _problems(value: object, schema: object, root: JSON, path: str, depth: int) -> list[str]:
    here = resolved(schema, root)
    if depth > _DEPTH:
        return []
    if branches := _union(here):
        told = [_problems(value, branch, root, path, depth + 1) for branch in branches]
        return [] if not all(told) else _of_branches(value, branches, told, root, path)
    if not _of_kind(value, here):
        return [_expected([here], root, path, value)]
    found: list[str] = []
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        known = cast("JSON", here.get("properties", {}))
        more = here.get("additionalProperties", {})
        names = [name for name in here.get("required", ()) if name not in members]
        found += [f"missing argument {_at(path, name)!r}" for name in names]
        for name, item in members.items():
            if name in known or isinstance(more, Mapping):
                own = known.get(name, more)
                found += _problems(item, own, root, _at(path, name), depth + 1)
            elif more is False:
                found.append(f"unknown argument {_at(path, name)!r}")
    elif isinstance(value, list):
        first, rest = here.get("prefixItems", ()), here.get("items", {})
        if isinstance(rest, list):  # a tuple in draft 7 and before
            first, rest = cast("list[object]", rest), here.get("additionalItems", {})
        for place, item in enumerate(cast("list[object]", value)):
            own = first[place] if place < len(first) else rest
            found += _problems(item, own, root, _at(path, place), depth + 1)
    return found


def _of_branches(
    value: object, branches: Sequence[object], told: Sequence[list[str]], root: JSON, path: str
) -> list[str]:
    """What is wrong with a value that fits none of these: with the one that was meant, if any."""
    kind = [k for k, branch in enumerate(branches) if _may_be(value, branch, root)]
    meant = [k for k in kind if not _other_constants(value, resolved(branches[k], root), root)]
    if len(meant) == 1:
        return told[meant[0]]
    if kind and not meant:
        wrong = [_other_constants(value, resolved(branches[k], root), root) for k in kind]
        for name in wrong[0]:
            if all(name in each for each in wrong):
                own = cast("JSON", value)[name]
                return [_expected([each[name] for each in wrong], root, _at(path, name), own)]
    return [_expected(branches, root, path, value)]


def _may_be(value: object, schema: object, root: JSON) -> bool:
    here = resolved(schema, root)
    if branches := _union(here):
        return any(_may_be(value, branch, root) for branch in branches)
    return _of_kind(value, here)


def _other_constants(value: object, schema: JSON, root: JSON) -> dict[str, JSON]:
    """The members of an object that have another constant than a schema says."""
    if not isinstance(value, dict):
        return {}
    members = cast("JSON", value)
    known = cast("JSON", schema.get("properties", {}))
    fixed = {name: resolved(known[name], root) for name in members if name in known}
    return {
        name: each
        for name, each in fixed.items()
        if ("const" in each or "enum" in each) and not _of_kind(members[name], each)
    }


def _of_kind(value: object, schema: JSON) -> bool:
    """Whether a value is of the type, or among the constants, that a schema names itself."""
    if "const" in schema or "enum" in schema:
        return value in (schema["enum"] if "enum" in schema else [schema["const"]])
    types = [_TYPES[name][2] for name in _types(schema) if name in _TYPES]
    if isinstance(value, bool):
        return not types or bool in types
    return not types or any(isinstance(value, each) for each in types)


def _types(schema: JSON) -> list[str]:
    kind: Any = schema.get("type")
    if kind is None:
        told = {"properties": "object", "required": "object", "items": "array"}
        return [own for key, own in told.items() if key in schema][:1]
    return [kind] if isinstance(kind, str) else list(kind)


def _expected(
    schemas: Sequence[object], root: JSON, path: str, value: object, only: str = ""
) -> str:
    words = list(dict.fromkeys(word for each in schemas for word in _words(each, root, 0)))
    told = f"argument {path!r}" if path else "the arguments"
    if len(words) > 1:
        words = [each for each in words if each != _ANY]
    if "a number" in words:
        words = [each for each in words if each != "an integer"]
    if len(words) > 10:
        words = [*words[:9], f"one of {len(words) - 9} more"]
    return f"{told}: expected {only}{' or '.join(words)}, got {_shown(value)}"


def _words(schema: object, root: JSON, depth: int) -> list[str]:
    """What a schema takes, each with its article."""
    here = resolved(schema, root)
    if depth > _DEPTH:
        return []
    if branches := _union(here):
        return [word for branch in branches for word in _words(branch, root, depth + 1)]
    if "const" in here or "enum" in here:
        return [_shown(each) for each in (here["enum"] if "enum" in here else [here["const"]])]
    told: list[str] = []
    for name in _types(here):
        words = _TYPES.get(name, (name,))[0]
        if name == "string" and "format" in here:
            words = f"a string that is a {here['format']}"
        elif name == "object" and here.get("required"):
            members: list[str] = []
            for member in here["required"]:
                each = resolved(here.get("properties", {}).get(member, {}), root)
                constant = f"={_shown(each['const'])}" if "const" in each else ""
                members.append(f"{member}{constant}")
            words = f"an object with {', '.join(members)}"
        elif name == "array":
            own = _types(resolved(here.get("items", {}), root))
            words += f" of {_TYPES[own[0]][1]}" if own and own[0] in _TYPES else ""
        told.append(words)
    return told or [_ANY]


def _at(path: str, part: object) -> str:
    return f"{path}.{part}" if path else str(part)


def _shown(value: object) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool) else short(value)
