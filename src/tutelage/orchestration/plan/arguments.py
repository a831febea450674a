"""Arguments of a plan's nodes: replacement of references, parsing by schema, and checks.

`<node-3>` in an argument is replaced by the output of node 3; an argument may have several
references. If the output is JSON, `<node-3>.title` is replaced by that member of an object,
`<node-3>.0` or `<node-3>[0]` by that entry of a list, and `<node-3>.pages[0].title` by the value at
that path. Outputs are text. If the schema of a tool's parameter does not accept text, the text is
parsed as JSON. `call_key` identifies equal calls. `dag.py` finds the references,
`execution/pools/tools.py` calls tools with the resulting arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from tutelage.bounded import parse_json
from tutelage.errors import DataError
from tutelage.orchestration.plan.dag import Plan, find_references, map_strings
from tutelage.tools.schema import ArgumentError, resolve_ref
from tutelage.tools.tool import Tool
from tutelage.types import JSON

STEP = r"\.[A-Za-z_]\w*|\.\d+|\[\d+\]"
"""Pattern of one step of a path: a member of an object, or an entry of a list."""
_REFERENCE = re.compile(rf"<node-(\d+)>((?:{STEP})*)")
_NEARLY = re.compile(rf"<\s*nodes?[-_ ]?(\d{{1,9}})((?:{STEP})*)\s*>", re.IGNORECASE)
"""Pattern of references and of text that looks like a misspelled reference."""
_DEPTH = 8
"""Maximum depth of nested unions."""


def fill_references(value: object, lookup: Callable[[re.Match[str]], str]) -> object:
    """Replace the references in an argument, also inside lists and objects."""
    return map_strings(value, lambda text: _REFERENCE.sub(lookup, text))


def get_member(output: str, path: str) -> tuple[object, str]:
    """Return the value at a path in a JSON output, and the rest of the path if the value does not
    exist."""
    steps = re.findall(STEP, path)
    try:
        value: Any = parse_json(output) if steps else output
    except ValueError:
        return output, path
    taken = 0
    for step in steps:
        name = step.strip(".[]")
        try:
            value = value[int(name) if isinstance(value, list) else name]
        except (ValueError, KeyError, TypeError, IndexError):
            break
        taken += 1
    return value if taken else output, "".join(steps[taken:])


def as_text(value: object) -> str:
    """Convert a value to text for a prompt. Values other than strings are written as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def resolve_arguments(args: Mapping[str, object], outputs: Mapping[int, str], tool: Tool) -> JSON:
    """Resolve the references in the arguments of a tool call. Text is parsed as JSON if the schema
    does not accept text. Raises `ArgumentError` if a reference cannot be resolved. Values are not
    validated."""

    def resolve(match: re.Match[str]) -> str:
        number, path = int(match[1]), match[2]
        if number not in outputs:
            raise ArgumentError(f"node {number}, which it takes a value from, has no output")
        value, left = get_member(outputs[number], path)
        inside = path.removesuffix(left).removeprefix(".")
        place = f"{inside!r} in the output" if inside else "the output"
        name = re.findall(STEP, left)[0].strip(".[]") if left else ""
        if left:
            whole: object = value
            with suppress(ValueError):
                whole = parse_json(value) if left == path and isinstance(value, str) else value
            if match.group() == match.string or isinstance(whole, (dict, list)):
                raise ArgumentError(f"{place} of node {number} has no member {name!r}")
        if value is None or (value == "null" and path == left):
            raise ArgumentError(f"{place} of node {number} is null: there is no value to take")
        # The rest of the path is text, such as a file extension or the next word of a sentence.
        return f"{as_text(value)}{left}"

    root = tool.parameters

    def convert(value: object, branches: Sequence[JSON]) -> object:
        if isinstance(value, str):
            kinds: set[str] = set()  # empty if the types are unknown
            for each in branches:
                kind = each.get("type", ())
                kinds |= {kind} if isinstance(kind, str) else {*kind}
            whole = _REFERENCE.fullmatch(value) is not None
            return _parse_text(_REFERENCE.sub(resolve, value), kinds, whole=whole)
        if isinstance(value, (list, tuple)):
            listed = cast("Sequence[object]", value)
            inner = [part for each in branches for part in _branches(each.get("items"), root)]
            return [convert(item, inner) for item in listed]
        if isinstance(value, Mapping):
            named = cast("Mapping[str, object]", value)
            return {n: convert(item, _members(branches, n, root)) for n, item in named.items()}
        return value

    return cast("JSON", convert(args, _branches(root, root)))


def call_key(name: str, arguments: object, tools: Mapping[str, Tool]) -> str:
    """Return a key that is the same for equal calls of a tool. The order of members is ignored. 3
    equals 3.0, but true does not equal 1. Arguments may be JSON text. Missing arguments have the
    defaults of the tool's schema."""

    def parse_number(text: str) -> float:
        return int(float(text)) if float(text).is_integer() else float(text)

    if isinstance(arguments, str):
        with suppress(ValueError):
            arguments = parse_json(arguments)
    if isinstance(arguments, Mapping) and name in tools:
        known = tools[name].parameters.get("properties", {}).items()
        defaults = {n: e["default"] for n, e in known if isinstance(e, dict) and "default" in e}
        arguments = {**defaults, **cast("Mapping[str, object]", arguments)}
    text = json.dumps(map_strings([name, arguments], str), default=str)
    return json.dumps(json.loads(text, parse_float=parse_number), sort_keys=True)


def check_arguments(plan: Plan, tools: Mapping[str, Tool], first: int = 0) -> None:
    """Raise `DataError` for the first invalid argument of a plan. See `find_errors`."""
    for message in find_errors(plan, tools, first).values():
        raise DataError(message)


def find_errors(plan: Plan, tools: Mapping[str, Tool], first: int = 0) -> dict[int, str]:
    """Return error messages by node, starting at node `first`: unknown and missing arguments,
    constant values that do not match the schema, and invalid references."""
    messages = {index: _find_error(plan, index, tools) for index in range(first, len(plan.nodes))}
    return {index: message for index, message in messages.items() if message}


def _find_error(plan: Plan, index: int, tools: Mapping[str, Tool]) -> str:
    node = plan.nodes[index]
    where, tool = f"node {index} ({node.tool})", tools.get(node.tool)
    # Without executable tools, arguments are free text for models.
    count = len(plan.nodes) if tools else 0
    for name, value in node.arguments.items():
        texts: list[str] = []
        map_strings(value, lambda text, kept=texts: kept.append(text) or text)
        for near in (near for text in texts for near in _NEARLY.finditer(text)):
            if near.group() != (meant := f"<node-{near[1]}>") and int(near[1]) < count:
                looks = f"{near.group()!r} looks like a reference and is none; write"
                text = f"argument {name!r} is {near.string!r:.80}"
                return f"{where}: {text}, and {looks} {meant + near[2]!r}"
    if tool is None:
        return ""
    root = tool.parameters
    known = dict.fromkeys(n for each in _branches(root, root) for n in each.get("properties", {}))
    parts = [root, *(resolve_ref(part, root) for part in root.get("allOf", ()))]
    needed = dict.fromkeys(name for part in parts for name in part.get("required", ()))
    words = [f"unknown argument {n!r}" for n in node.arguments if n not in known]
    words += [f"missing argument {n!r}" for n in needed if n not in node.arguments]
    if words:
        return f"{where}: {'; '.join(words)}; it takes {', '.join(known) or 'nothing'}"
    if not find_references(node.arguments):
        try:
            tool.signature.read(as_text(resolve_arguments(node.arguments, {}, tool)))
        except ArgumentError as error:
            return f"{where}: {error}"
    return ""


def _parse_text(text: str, kinds: set[str], *, whole: bool) -> object:
    """Parse a text for a schema with these types. `whole` is True if the text is an entire result.
    A list of one string is converted to the string if only strings are accepted (such as a search
    with one hit)."""
    takes_text = not kinds or "string" in kinds
    if takes_text and not (whole and text[:1] in ("[", "{")):
        return text
    try:
        value: object = parse_json(text)
    except ValueError:
        return text
    listed = cast("list[object]", value) if isinstance(value, list) else []
    kind = "object" if isinstance(value, dict) else "array"
    if not takes_text or kind in kinds:
        return value
    one = kinds and kinds <= {"string", "null"} and len(listed) == 1
    return listed[0] if one and isinstance(listed[0], str) else text


def _branches(schema: object, root: JSON, depth: int = 0) -> list[JSON]:
    """Return a schema with all schemas in its `$ref`, `anyOf`, `oneOf` and `allOf`."""
    here = resolve_ref(schema, root)
    parts = [each for key in ("anyOf", "oneOf", "allOf") for each in here.get(key, ())]
    below = [_branches(each, root, depth + 1) for each in parts if depth < _DEPTH]
    return [here, *(each for branches in below for each in branches)]


def _members(branches: Sequence[JSON], name: str, root: JSON) -> list[JSON]:
    """Return the schemas of a member of an object schema."""
    listed = [each["properties"][name] for each in branches if name in each.get("properties", {})]
    listed = listed or [each.get("additionalProperties") for each in branches]
    return [schema for each in listed for schema in _branches(each, root)]
