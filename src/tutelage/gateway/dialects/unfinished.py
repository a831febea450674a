"""Tool arguments that go out in pieces, and turn out to be no JSON.

Clients of messages read a tool's input as a JSON object while it comes, and raise at the first
piece that can be none. So a piece goes out only while what has come is the beginning of one, and
what cannot be read is told whole in a last field, as a call that comes at once is told.
`messages_written.py` sends the pieces.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson
from pydantic_core import from_json

from tutelage.types import JSON

_OFTEN = 4096
"""Characters up to which each piece is checked; of longer texts, only each that adds a 16th."""
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*["\\]?|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_HALF_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\u([0-9a-fA-F]{0,3})$")


def worth_a_look(size: int, told: int) -> bool:
    """Whether enough of a text is new: looking at each piece of a long one costs its square."""
    return size <= _OFTEN or size - told > size >> 4


def begins_an_object(text: str) -> bool:
    """Whether a text is the beginning of a JSON object, or a whole one, that others can read: of
    numbers with 64 bits, and of whole characters."""
    try:
        return _readable(from_json(text, allow_inf_nan=False))
    except ValueError as error:
        if "trailing" in str(error):  # something after an object
            return False
    try:
        return _readable(from_json(text, allow_partial=True, allow_inf_nan=False))
    except ValueError:
        return False


def _readable(value: Any) -> bool:
    """As `parse_arguments` has it, which reads whole texts alone."""
    try:
        json.dumps(value, allow_nan=False)
        orjson.dumps(value)
    except (TypeError, ValueError):
        return False
    return isinstance(value, dict)


def ending(told: str, more: JSON) -> str:
    """What makes the beginning of an object a whole one that has the fields of `more`, too."""
    tokens = _TOKEN.findall(told)
    out, last = _closed(tokens[-1]), tokens[-1]
    open_: list[str] = []
    keys: list[bool] = []
    """Of each open object or array, whether what comes next in it is a key."""
    for token in tokens:
        if token in "{[":
            open_.append(token)
            keys.append(token == "{")
        elif token in "}]":
            open_.pop()
            keys.pop()
        elif token in ",:":
            keys[-1] = token == "," and open_[-1] == "{"
    if not open_:
        return out
    if last not in list("{}[]:,") and keys[-1]:
        out += ": null"
    elif last == ":" or (last == "," and len(open_) > 1):
        out += '"": null' if keys[-1] else "null"
    out += "".join("}" if each == "{" else "]" for each in reversed(open_[1:]))
    fields = json.dumps(more, ensure_ascii=False)[1:]
    return out + (fields if len(open_) == 1 and last in "{," else f", {fields}")


def _closed(token: str) -> str:
    """The rest of a text, number or word that has begun."""
    if token.startswith('"'):
        if half := _HALF_ESCAPE.search(token):
            return "0" * (4 - len(half[1])) + '"'
        slashes = len(token) - len(token.rstrip("\\"))
        ended = len(token) > 1 and token.endswith('"') and _whole(token)
        return "" if ended else "\\" * (slashes % 2) + '"'
    for word in ("true", "false", "null"):
        if word.startswith(token):
            return word.removeprefix(token)
    return "0" if token[-1] in "-+.eE" else ""


def _whole(token: str) -> bool:
    try:
        json.loads(token)
    except ValueError:
        return False
    return True
