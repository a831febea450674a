"""Arguments of a plan's nodes: references filled in, texts read as their schema wants, and checks.

`<node-3>` in an argument becomes the output of node 3, several in one argument each their own;
`<node-3>.title` becomes that member when the output is a JSON object that has it, `<node-3>.0` or
`<node-3>[0]` that entry of a JSON list, and `<node-3>.pages[0].title` what these steps lead to.
Outputs are text; where the schema of a tool's parameter takes none, a text is read as JSON.
`call_key` tells equal calls. `dag.py` finds the references, `execution/pools/tools.py` runs tools
with what is made here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from tutelage.bounded import parse_json
from tutelage.errors import DataError
from tutelage.orchestration.plan.dag import Plan, references, with_texts
from tutelage.tools.schema import ArgumentError
from tutelage.tools.tool import Tool
from tutelage.tools.unions import resolved
from tutelage.types import JSON

STEP = r"\.[A-Za-z_]\w*|\.\d+|\[\d+\]"
"""A step into a result: to a member of an object, or to an entry of a list."""
_REFERENCE = re.compile(rf"<node-(\d+)>((?:{STEP})*)")
_STRANGE = r"\[(?:-\d+|\"[^\"]*\"|'[^']*'|\*|-?\d*:-?\d*)\]"
"""What looks like a step and is none: in a longer text it is that text's own."""
_NO_STEP = re.compile(rf"<node-\d+>(?:{STEP})*({_STRANGE})(?:{STEP}|{_STRANGE})*")
_NEARLY = re.compile(
    rf"<\s*(?:node[-_ ]?|(?:nod|nodes|noed|ndoe|nde|Node|NODE)-)(\d{{1,9}})((?:{STEP})*)\s*>"
)
"""What is or was meant to be a reference: with one typing error, or with its steps inside."""
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


class _NothingError(ArgumentError):
    """What a reference leads to is null."""


def member(output: str, path: str) -> tuple[object, str]:
    """What the steps of a path lead to in an output that is JSON, and the steps that are left where
    it has no such member or entry."""
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


def _has_steps(value: object, step: str, *, whole: bool, text: bool) -> bool:
    """Whether steps lead on from a value: an object or a list, a `whole` output read as JSON. A
    list that a tool returned as `text` has no members, and a name behind it is text."""
    if whole and isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError:
            return False
    return isinstance(value, dict if text and not step.isdecimal() else (dict, list))


def as_text(value: object) -> str:
    """A value in a prompt: text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def tool_arguments(
    given: Mapping[str, object],
    outputs: Mapping[int, str],
    tool: Tool,
    plain: Container[int] = (),
) -> JSON:
    """What a tool is called with; of the nodes in `plain` the output is text whatever it looks
    like. Raises `ArgumentError` for a reference to what is not there; whether the values fit the
    tool's schema is checked when it is called."""

    def found(match: re.Match[str]) -> str:
        number, path = int(match[1]), match[2]
        if number not in outputs:
            raise ArgumentError(f"node {number}, which it takes a value from, has no output")
        value, left = member(outputs[number], path)
        name = re.findall(STEP, left)[0].strip(".[]") if left else ""
        steps = left and _has_steps(value, name, whole=left == path, text=number in plain)
        if left and (match.group() == match.string or steps):
            inside = path.removesuffix(left)
            place = f"{inside.removeprefix('.')!r} in the output" if inside else "the output"
            raise ArgumentError(f"{place} of node {number} has no member {name!r}")
        null = value == "null" and path == left and number not in plain
        if value is None or null:
            inside = path.removesuffix(left).removeprefix(".")
            place = f"{inside!r} in the output" if inside else "the output"
            raise _NothingError(f"{place} of node {number} is null: there is no value to take")
        # What looked like a member was the ending of a file, or the next word of a sentence.
        return f"{as_text(value)}{left}"

    schema = tool.parameters
    return cast("JSON", _read(dict(given), [schema], schema, found, plain=plain))


def value_key(value: object) -> str:
    """A text that equal values share, objects in any order: 3 is 3.0, and true is not 1."""
    return json.dumps(_whole(value), sort_keys=True, default=str)


def call_key(name: str, given: object, tools: Mapping[str, Tool]) -> str:
    """A text that equal calls of a tool share; their arguments may be JSON text, and what they
    leave out has the default of the tool's schema."""
    if isinstance(given, str):
        with suppress(ValueError):
            given = parse_json(given)
    if isinstance(given, Mapping) and name in tools:
        known = tools[name].parameters.get("properties", {}).items()
        defaults = {n: e["default"] for n, e in known if isinstance(e, dict) and "default" in e}
        given = {**defaults, **cast("Mapping[str, object]", given)}
    return value_key([name, given])


def _whole(value: object) -> object:
    """A value whose numbers are integers where they can be."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case Mapping():
            inner = cast("Mapping[object, object]", value)
            return {key: _whole(each) for key, each in inner.items()}
        case list() | tuple():
            return [_whole(each) for each in cast("Sequence[object]", value)]
        case _:
            return value


def check_arguments(plan: Plan, tools: Mapping[str, Tool], first: int = 0) -> None:
    """Raise `DataError` with the first of `wrong_arguments`."""
    for told in wrong_arguments(plan, tools, first).values():
        raise DataError(told)


def wrong_arguments(plan: Plan, tools: Mapping[str, Tool], first: int = 0) -> dict[int, str]:
    """The nodes from `first` on whose arguments cannot fit, with what is wrong: unknown and missing
    names, values that do not depend on other nodes and are not of the schema, and references that
    are none."""
    found = ((index, _wrong(plan, index, tools)) for index in range(first, len(plan.nodes)))
    return {index: told for index, told in found if told}


def _wrong(plan: Plan, index: int, tools: Mapping[str, Tool]) -> str:
    node = plan.nodes[index]
    where, tool = f"node {index} ({node.tool})", tools.get(node.tool)
    # Where no tools run, arguments are words for models, and what they hold is their own.
    if told := _wrong_reference(node.arguments, len(plan.nodes) if tools else 0):
        return f"{where}: {told}"
    if tool is None:
        return ""
    branches = _branches(tool.parameters, tool.parameters)
    known = dict.fromkeys(name for each in branches for name in each.get("properties", {}))
    needed, *others = [dict.fromkeys(each.get("required", ())) for each in branches]
    needed = [name for name in needed if all(name in other for other in others)]
    missing = [name for name in needed if name not in node.arguments]
    words = [f"unknown argument {n!r}" for n in node.arguments if n not in known]
    words += [f"missing argument {n!r}" for n in missing]
    if words:
        return f"{where}: {'; '.join(words)}; it takes {', '.join(known) or 'nothing'}"
    if not references(node.arguments):
        try:
            tool.signature.read(as_text(tool_arguments(node.arguments, {}, tool)))
        except ArgumentError as error:
            return f"{where}: {error}"
    return ""


def _wrong_reference(arguments: Mapping[str, object], count: int) -> str:
    for name, value in arguments.items():
        texts: list[str] = []
        with_texts(value, lambda text, kept=texts: kept.append(text) or text)
        for text in texts:
            if wrong := _wrong_step(text, count):
                return f"argument {name!r} is {wrong}"
    return ""


def _wrong_step(text: str, count: int) -> str:
    """What to say of a text with what is nearly a reference to one of `count` nodes, and of one
    that is all of a reference and holds what is no step into a result."""
    markup = "</node" in text.lower()
    for near in () if markup else _NEARLY.finditer(text):
        if near.group() != (meant := f"<node-{near[1]}>") and int(near[1]) < count:
            told = f"{near.group()!r} looks like a reference and is none; write"
            return f"{text!r:.80}, and {told} {meant + near[2]!r}"
    match = _NO_STEP.fullmatch(text)
    if match is None:
        return ""
    return (
        f"{text!r}, and {match[1]!r} is no step into a result: .name is a member of an object, and "
        ".0 or [0] an entry of a list"
    )


def _read(
    given: object,
    schemas: Sequence[object],
    root: JSON,
    found: Found | None,
    depth: int = 0,
    plain: Container[int] = (),
) -> object:
    """A value with its references replaced, as one of these schemas wants it: texts that cannot be
    texts are read as JSON, and so are lists and objects that are the whole result referred to,
    where the schema has a place for them. What is in a result is no reference."""
    branches = [each for schema in schemas for each in _branches(schema, root)]
    value = given
    if isinstance(given, str):
        reference, kinds = _REFERENCE.fullmatch(given), _all_kinds(branches)
        whole = reference is not None
        try:
            value = given if found is None else _REFERENCE.sub(found, given)
        except _NothingError:
            if whole and (not kinds or not kinds.isdisjoint(("null", "any"))):
                return None
            raise
        text = reference is not None and not reference[2] and int(reference[1]) in plain
        value = _parsed(value, branches, whole=whole, text=text)
        found = None
    if depth > _DEPTH:
        return value
    if isinstance(value, (list, tuple)):
        listed = cast("Sequence[object]", value)
        return [
            _read(item, _items(branches, place), root, found, depth + 1, plain)
            for place, item in enumerate(listed)
        ]
    if isinstance(value, Mapping):
        named = cast("Mapping[str, object]", value)
        fitting = [each for each in branches if _fits(each, named)] or branches
        return {
            name: _read(item, _members(fitting, name), root, found, depth + 1, plain)
            for name, item in named.items()
        }
    return value


def _parsed(given: str, branches: Sequence[JSON], *, whole: bool, text: bool) -> object:
    """A text as these branches of a schema want it; `whole`: it is all of a result. A list of one
    text is that text where a text and no list is wanted, a search that found one thing, and not
    where the result is `text`."""
    kinds = _all_kinds(branches)
    takes_text = not kinds or not kinds.isdisjoint(("string", "any"))
    if takes_text and not (whole and given[:1] in ("[", "{")):
        return given
    try:
        value: object = parse_json(given)
    except ValueError:
        return given
    if not takes_text:
        return value
    if isinstance(value, dict):
        return cast("object", value) if "object" in kinds else given
    listed = cast("list[object]", value) if isinstance(value, list) else []
    if "array" in kinds:
        return listed
    one = kinds <= {"string", "null"} and len(listed) == 1 and isinstance(listed[0], str)
    return listed[0] if one and not text else given


def _branches(schema: object, root: JSON, seen: set[int] | None = None) -> list[JSON]:
    """The schemas behind `$ref`, `anyOf`, `oneOf` and `allOf`, one of which a value is of. None is
    followed twice, so those that refer to themselves end."""
    seen = set[int]() if seen is None else seen
    here = resolved(schema, root)
    if here and id(here) in seen:
        return []
    seen.add(id(here))
    for part in here.get("allOf", ()):
        here = _both(here, resolved(part, root))
    rest = {key: value for key, value in here.items() if key not in _JOINED}
    choices = [*here.get("anyOf", ()), *here.get("oneOf", ())]
    branches = [each for choice in choices for each in _branches(choice, root, seen)]
    return [_both(rest, each) for each in branches] or [rest]


_JOINED = ("anyOf", "oneOf", "allOf", "description", "title", "default")
"""What is not said of a value itself, or is followed."""


def _both(one: JSON, other: JSON) -> JSON:
    """A schema for what is of both."""
    properties = {**one.get("properties", {}), **other.get("properties", {})}
    required = [*one.get("required", ()), *other.get("required", ())]
    more: JSON = {"properties": properties} if properties else {}
    return {**one, **other, **more, **({"required": required} if required else {})}


def _kinds(branch: JSON) -> tuple[str, ...]:
    """The types that a branch takes, any where that cannot be told."""
    kind = branch.get("type")
    if kind is not None:
        return (kind,) if isinstance(kind, str) else tuple(kind)
    listed = [branch["const"]] if "const" in branch else branch.get("enum")
    if listed is None:
        told = {"properties": "object", "items": "array", "prefixItems": "array"}
        return ("any", *(own for key, own in told.items() if key in branch))
    return ("string",) if any(isinstance(each, str) for each in listed) else ("other",)


def _all_kinds(branches: Sequence[JSON]) -> set[str]:
    return {kind for each in branches for kind in _kinds(each)}


def _fits(branch: JSON, value: Mapping[str, object]) -> bool:
    """Whether an object may be of a branch, by its names and its constants."""
    known = cast("JSON", branch.get("properties", {}))
    if "object" not in _kinds(branch) or any(n not in value for n in branch.get("required", ())):
        return False
    if branch.get("additionalProperties") is False and any(name not in known for name in value):
        return False
    constants = {n: e["const"] for n, e in known.items() if isinstance(e, dict) and "const" in e}
    return all(value[name] == own for name, own in constants.items() if name in value)


def _members(branches: Sequence[JSON], name: str) -> list[object]:
    """What the member of an object may be."""
    more = (each.get("additionalProperties", {}) for each in branches)
    listed = [each["properties"][name] for each in branches if name in each.get("properties", {})]
    return listed or [each for each in more if isinstance(each, Mapping)]


def _items(branches: Sequence[JSON], place: int) -> list[object]:
    """What the item of a list may be."""
    listed: list[object] = []
    for each in branches:
        first = cast("Sequence[object]", each.get("prefixItems", ()))
        listed += [first[place] if place < len(first) else each.get("items", {})]
    return [own for own, each in zip(listed, branches, strict=True) if "array" in _kinds(each)]
