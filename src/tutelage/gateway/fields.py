"""Reading of request fields: the value if it fits, else a 400 that names the field.

No model classes: a request is read once, straight from the parsed JSON, which costs microseconds. A
null counts as absent, as in OpenAI's API. `chat_request.py` and `responses_request.py` use these.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, cast

import orjson

from tutelage.bounded import parse_json
from tutelage.gateway.problems import invalid
from tutelage.types import JSON, Message, ToolSpec

MAX_TOOLS = 1024
MAX_STOPS = 16
MAX_NAME = 256


def read_json(body: bytes) -> JSON:
    """The request's JSON object."""
    try:
        data = parse_json(body, longest=len(body), loads=orjson.loads)
    except ValueError as error:
        raise invalid(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise invalid(f"the body must be a JSON object, not {kind(data)}", code="invalid_json")
    return cast("JSON", data)


def kind(value: Any) -> str:
    """What JSON calls the type of a value."""
    if value is None:
        return "null"
    for types, word in (
        (bool, "a boolean"),
        ((int, float), "a number"),
        (str, "a string"),
        (list, "an array"),
    ):
        if isinstance(value, types):
            return word
    return "an object"


def shown(value: Any) -> str:
    """A value in an error message, not longer than a line."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def check_known(
    body: JSON, known: Collection[str], harmless: Collection[str], neutral: Mapping[str, Any]
) -> None:
    """Refuse fields that are unknown, or that ask for what this server does not do.

    `neutral` has, for fields that cannot be honoured, the values that ask for nothing.
    """
    for key, value in body.items():
        if key in known or key in harmless or value is None:
            continue
        if key not in neutral:
            raise invalid(f"unrecognized request argument: {key}", key, "unknown_parameter")
        if value not in neutral[key]:
            raise invalid(
                f"`{key}` = {shown(value)} cannot be honoured by this server; leave it out",
                key,
                "unsupported_parameter",
            )


def required(body: JSON, name: str) -> Any:
    """A field that every request has."""
    value = body.get(name)
    if value is None:
        raise invalid(f"`{name}` is missing", name, "missing_required_parameter")
    return value


def text(value: Any, path: str, *, empty: bool = True) -> str:
    """A string."""
    if not isinstance(value, str):
        raise invalid(f"`{path}` must be a string, not {kind(value)}", path)
    if not value and not empty:
        raise invalid(f"`{path}` must not be empty", path)
    return value


def arguments(value: Any, path: str) -> str:
    """A tool call's arguments: text, of JSON where the model wrote it so, that can be rendered."""
    found = text(value, path)
    try:
        parse_json(found)
    except json.JSONDecodeError:
        return found  # a model may write what is no JSON, and hears of it as it was
    except ValueError as error:
        raise invalid(f"`{path}` cannot be read: {error}", path) from None
    return found


def flag(body: JSON, name: str, default: bool = False, path: str | None = None) -> bool:
    """A boolean."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise invalid(f"`{path or name}` must be a boolean, not {kind(value)}", path or name)
    return value


def number(body: JSON, name: str, default: float, low: float, high: float) -> float:
    """A number from `low` to `high`."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(f"`{name}` must be a number, not {kind(value)}", name)
    if not low <= value <= high:
        raise invalid(f"`{name}` = {value!r} must be from {low:g} to {high:g}", name)
    return float(value)


def integer(body: JSON, name: str, low: int, high: int | None = None) -> int | None:
    """An integer of at least `low`, None when it is absent."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(f"`{name}` must be an integer, not {kind(value)}", name)
    if value < low or (high is not None and value > high):
        bound = f"at least {low}" if high is None else f"from {low} to {high}"
        raise invalid(f"`{name}` = {shown(value)} must be {bound}", name)
    return value


def mapping(value: Any, path: str) -> JSON:
    """An object."""
    if not isinstance(value, dict):
        raise invalid(f"`{path}` must be an object, not {kind(value)}", path)
    return cast("JSON", value)


def array(value: Any, path: str) -> list[Any]:
    """An array."""
    if not isinstance(value, list):
        raise invalid(f"`{path}` must be an array, not {kind(value)}", path)
    return cast("list[Any]", value)


def only(data: JSON, allowed: Collection[str], path: str) -> None:
    """Refuse fields of a nested object that nobody would read; null ones ask for nothing."""
    for key, value in data.items():
        if value is not None and key not in allowed:
            where = f"{path}.{key}"
            raise invalid(f"`{where}` is not supported by this server", where, "unknown_parameter")


_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})


def content(value: Any, path: str) -> str | None:
    """The text of a message: a string, null, or a list of text parts, which are joined."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise invalid(f"`{path}` must be a string or an array of parts, not {kind(value)}", path)
    said: list[str] = []
    for i, raw in enumerate(cast("list[Any]", value)):
        if isinstance(raw, str):
            said.append(raw)
            continue
        part = mapping(raw, f"{path}[{i}]")
        of = part.get("type", "text")
        if not isinstance(of, str) or of not in _PARTS:
            raise invalid(
                f"`{path}[{i}].type` = {shown(of)}: this server reads text parts only",
                f"{path}[{i}].type",
                "unsupported_value",
            )
        field = "refusal" if of == "refusal" else "text"
        said.append(text(part.get(field), f"{path}[{i}].{field}"))
    return "".join(said)


def stops(body: JSON) -> tuple[str, ...]:
    """Stop strings: none, one, or several."""
    value = body.get("stop")
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    listed = array(value, "stop")
    if len(listed) > MAX_STOPS:
        raise invalid(f"`stop` has {len(listed)} strings; {MAX_STOPS} are allowed", "stop")
    return tuple(text(s, f"stop[{i}]", empty=False) for i, s in enumerate(listed))


def tool_spec(function: JSON, path: str) -> ToolSpec:
    """A function tool. `strict` is a promise that constrained decoding keeps where it applies."""
    only(function, ("type", "name", "description", "parameters", "strict"), path)
    flag(function, "strict", path=f"{path}.strict")
    name = text(function.get("name"), f"{path}.name", empty=False)
    if len(name) > MAX_NAME or not name.isprintable():
        raise invalid(f"`{path}.name` must be a printable name, not {shown(name)}", f"{path}.name")
    about = function.get("description")
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    return ToolSpec(
        name,
        "" if about is None else text(about, f"{path}.description"),
        mapping(parameters, f"{path}.parameters"),
    )


def check_tools(tools: tuple[ToolSpec, ...]) -> None:
    """Refuse two tools of one name, and an absurd number of them."""
    if len(tools) > MAX_TOOLS:
        raise invalid(f"`tools` has {len(tools)} entries; {MAX_TOOLS} are allowed", "tools")
    names = [t.name for t in tools]
    if len(set(names)) != len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise invalid(f"`tools` has two tools named {twice!r}", "tools")


def chosen_tool(choice: Any, named: str | None, tools: tuple[ToolSpec, ...]) -> str:
    """`tool_choice` in the words of `Constraint`; `named` is the one tool that was asked for."""
    if named is not None:
        if named not in [t.name for t in tools]:
            raise invalid(f"`tool_choice` names {named!r}, which is not in `tools`", "tool_choice")
        return named
    if choice is None or choice == "auto":
        return "auto"
    if choice not in ("none", "required"):
        raise invalid(
            f"`tool_choice` = {shown(choice)} is not supported; use auto, none, required or "
            "name one function",
            "tool_choice",
        )
    if choice == "required" and not tools:
        raise invalid("`tool_choice` = 'required' needs `tools`", "tool_choice")
    return str(choice)


def check_conversation(messages: tuple[Message, ...], param: str) -> None:
    """Refuse a conversation without messages."""
    if not messages:
        raise invalid(f"`{param}` must not be empty", param)
