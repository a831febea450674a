"""Arguments of a plan's nodes: references filled in, texts read as their schema wants, and checks.

`<node-3>` in an argument becomes the output of node 3, several in one argument each their own;
`<node-3>.title` becomes that member when the output is a JSON object that has it. Outputs are text;
where the schema of a tool's parameter takes none, a text is read as JSON. `dag.py` finds the
references, `execution/pools/tools.py` runs tools with what is made here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from tutelage.bounded import parse_json
from tutelage.errors import DataError
from tutelage.orchestration.plan.dag import Plan, references
from tutelage.tools.schema import ArgumentError
from tutelage.tools.tool import Tool
from tutelage.types import JSON

_REFERENCE = re.compile(r"<node-(\d+)>(?:\.([A-Za-z_]\w*))?")
_DEPTH = 20
"""How deep a schema is followed."""

Found = Callable[[re.Match[str]], str]


def fill(value: object, found: Found) -> object:
    """An argument with its references replaced, inside lists and objects too."""
    if isinstance(value, str):
        return _REFERENCE.sub(found, value)
    if isinstance(value, Mapping):
        inner = cast("Mapping[object, object]", value)
        return {key: fill(item, found) for key, item in inner.items()}
    if isinstance(value, (list, tuple)):
        return [fill(item, found) for item in cast("Sequence[object]", value)]
    return value


def member(output: str, name: str) -> str | None:
    """A member of an output that is a JSON object, as text; None where it has none."""
    try:
        members: Any = parse_json(output)
        return as_text(members[name])
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def as_text(value: object) -> str:
    """A value in a prompt: text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def tool_arguments(given: Mapping[str, object], outputs: Mapping[int, str], tool: Tool) -> JSON:
    """What a tool is called with. Raises `ArgumentError` for a reference to what is not there;
    whether the values fit the tool's schema is checked when it is called."""

    def found(match: re.Match[str]) -> str:
        number, name = int(match[1]), match[2]
        if number not in outputs:
            raise ArgumentError(f"node {number}, which it takes a value from, has no output")
        output = outputs[number]
        if name is None:
            return output
        value = member(output, name)
        if value is None and match.group() == match.string:
            raise ArgumentError(f"the output of node {number} has no member {name!r}")
        # What looked like a member was the next word of a sentence.
        return f"{output}.{name}" if value is None else value

    schema = tool.parameters
    known = cast("JSON", schema.get("properties", {}))
    return {
        name: _read(_single(value, fill(value, found), known.get(name, {}), schema),
                    known.get(name, {}), schema)
        for name, value in given.items()
    }  # fmt: skip


def _single(given: object, value: object, schema: object, root: JSON) -> object:
    """The text in a list of one, where that list is the whole result that was referred to and the
    parameter takes a text and no list: a search that found one thing."""
    whole = isinstance(given, str) and _REFERENCE.fullmatch(given)
    if not whole or not isinstance(value, str) or not value.startswith("["):
        return value
    wanted = _resolved(schema, root)
    if wanted.get("type") != "string":
        return value
    try:
        listed: object = parse_json(value)
    except ValueError:
        return value
    inner = cast("list[object]", listed) if isinstance(listed, list) else []
    return inner[0] if len(inner) == 1 and isinstance(inner[0], str) else value


def check_arguments(plan: Plan, tools: Mapping[str, Tool]) -> None:
    """Raise `DataError`, naming the node, where a tool's arguments cannot fit: unknown and missing
    names, and values that do not depend on other nodes and are not of the schema."""
    for index, node in enumerate(plan.nodes):
        tool = tools.get(node.tool)
        if tool is None:
            continue
        known = cast("JSON", tool.parameters.get("properties", {}))
        missing = [n for n in tool.parameters.get("required", ()) if n not in node.arguments]
        unknown = [n for n in node.arguments if n not in known]
        words = [f"unknown argument {n!r}" for n in unknown]
        words += [f"missing argument {n!r}" for n in missing]
        if not words and not references(node.arguments):
            try:
                tool.signature.read(as_text(tool_arguments(node.arguments, {}, tool)))
            except ArgumentError as error:
                words.append(str(error))
        if words:
            takes = ", ".join(known) or "nothing"
            told = "; ".join(words)
            raise DataError(f"node {index} ({node.tool}): {told}; it takes {takes}")


def _read(value: object, schema: object, root: JSON, depth: int = 0) -> object:
    """A value as its schema wants it: texts that cannot be texts are read as JSON."""
    schema = _resolved(schema, root)
    if isinstance(value, str) and not _takes_text(schema, root):
        try:
            value = parse_json(value)
        except ValueError:
            return value
    if depth > _DEPTH:
        return value
    if isinstance(value, list):
        items = schema.get("items", {})
        return [_read(item, items, root, depth + 1) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        inner = cast("JSON", schema.get("properties", {}))
        return {n: _read(item, inner.get(n, {}), root, depth + 1) for n, item in value.items()}
    return value


def _takes_text(schema: JSON, root: JSON, depth: int = 0) -> bool:
    """Whether a text may be of a schema; True where that cannot be told."""
    choices = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if choices and depth < _DEPTH:
        return any(_takes_text(_resolved(each, root), root, depth + 1) for each in choices)
    kind = schema.get("type")
    if kind is not None:
        return "string" in ([kind] if isinstance(kind, str) else kind)
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return listed is None or any(isinstance(each, str) for each in listed)


def _resolved(schema: object, root: JSON) -> JSON:
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


def shown_type(output: str) -> str:
    """What kind of value an output is: text, or what it is as JSON."""
    try:
        value: object = parse_json(output)
    except ValueError:
        return "text"
    match value:
        case list():
            return f"list of {len(cast('list[object]', value))}"
        case dict():
            return "object"
        case bool() | None:
            return "truth" if value is not None else "null"
        case int() | float():
            return "number"
        case _:
            return "text"
