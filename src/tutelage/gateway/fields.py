"""Reading of request fields: the value if it fits, else a 400 that names the field.

No model classes: a request is read once, straight from the parsed JSON, which costs microseconds.
`Fields` is an object of the request that knows its place, so that every refusal names the whole
path. A null counts as absent, as in OpenAI's API. The dialects (`dialects/`) read through it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, cast

import orjson

from tutelage.bounded import parse_json
from tutelage.gateway.problems import ApiError, invalid
from tutelage.types import JSON

_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})


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


def unsupported(path: str, words: str) -> ApiError:
    """A 400 for a value that is understood and cannot be had here."""
    return invalid(words, path, "unsupported_value")


class Fields:
    """An object of a request and its path, which is empty for the request itself."""

    __slots__ = ("data", "path")

    def __init__(self, data: Any, path: str = "") -> None:
        """Raises `ApiError` for what is no object."""
        if not isinstance(data, dict):
            raise invalid(f"`{path}` must be an object, not {kind(data)}", path)
        self.data: JSON = cast("JSON", data)
        self.path = path

    def at(self, name: str) -> str:
        """The path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def get(self, name: str) -> Any:
        """A field as it is, None when it is absent."""
        return self.data.get(name)

    # ------------------------------------------------------------ which fields there may be

    def check_known(
        self, known: Collection[str], harmless: Collection[str], neutral: Mapping[str, Any]
    ) -> None:
        """Refuse fields that are unknown, or that ask for what this server does not do.

        `neutral` has, for fields that cannot be honoured, the values that ask for nothing.
        """
        for key, value in self.data.items():
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

    def only(self, *allowed: str) -> None:
        """Refuse fields of a nested object that nobody would read; null ones ask for nothing."""
        for key, value in self.data.items():
            if value is not None and key not in allowed:
                where = self.at(key)
                raise invalid(
                    f"`{where}` is not supported by this server", where, "unknown_parameter"
                )

    # ------------------------------------------------------------ values

    def require(self, name: str) -> None:
        """Refuse a request without this field."""
        if self.get(name) is None:
            raise invalid(f"`{name}` is missing", name, "missing_required_parameter")

    def text(self, name: str, *, empty: bool = True) -> str:
        """A string."""
        return _text(self.get(name), self.at(name), empty=empty)

    def optional_text(self, name: str) -> str | None:
        """A string, None when it is absent."""
        return None if self.get(name) is None else self.text(name)

    def arguments(self, name: str) -> str:
        """A tool call's arguments: text, of JSON where the model wrote it so, that can be rendered.

        A model may write what is no JSON, and hears of it as it was.
        """
        found = self.text(name)
        try:
            parse_json(found)
        except json.JSONDecodeError:
            return found
        except ValueError as error:
            raise invalid(f"`{self.at(name)}` cannot be read: {error}", self.at(name)) from None
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            where = self.at(name)
            raise invalid(f"`{where}` must be a boolean, not {kind(value)}", where)
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A number from `low` to `high`."""
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid(f"`{name}` must be a number, not {kind(value)}", name)
        if not low <= value <= high:
            raise invalid(f"`{name}` = {value!r} must be from {low:g} to {high:g}", name)
        return float(value)

    def integer(self, name: str, low: int, high: int | None = None) -> int | None:
        """An integer of at least `low`, None when it is absent."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid(f"`{name}` must be an integer, not {kind(value)}", name)
        if value < low or (high is not None and value > high):
            bound = f"at least {low}" if high is None else f"from {low} to {high}"
            raise invalid(f"`{name}` = {shown(value)} must be {bound}", name)
        return value

    def choice(self, name: str, words: Mapping[str, str]) -> str:
        """What one of some words stands for."""
        value = self.get(name)
        found = words.get(value) if isinstance(value, str) else None
        if found is None:
            where = self.at(name)
            raise invalid(f"`{where}` = {shown(value)} must be one of {', '.join(words)}", where)
        return found

    def inner(self, name: str) -> Fields:
        """An object."""
        return Fields(self.get(name), self.at(name))

    def optional(self, name: str) -> Fields | None:
        """An object, None when it is absent."""
        return None if self.get(name) is None else self.inner(name)

    def array(self, name: str) -> list[Any]:
        """An array, empty when it is absent."""
        value = self.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise invalid(f"`{self.at(name)}` must be an array, not {kind(value)}", self.at(name))
        return cast("list[Any]", value)

    def objects(self, name: str) -> Iterator[Fields]:
        """The objects of an array."""
        for i, value in enumerate(self.array(name)):
            yield Fields(value, f"{self.at(name)}[{i}]")

    def texts(self, name: str, *, most: int) -> tuple[str, ...]:
        """No string, one, or several."""
        value = self.get(name)
        listed = [value] if isinstance(value, str) else self.array(name)
        if len(listed) > most:
            raise invalid(f"`{name}` has {len(listed)} strings; {most} are allowed", name)
        return tuple(_text(one, f"{name}[{i}]", empty=False) for i, one in enumerate(listed))

    def content(self, name: str) -> str | None:
        """The text of a message: a string, null, or a list of text parts, which are joined."""
        value, path = self.get(name), self.at(name)
        if value is None or isinstance(value, str):
            return value
        if not isinstance(value, list):
            raise invalid(
                f"`{path}` must be a string or an array of parts, not {kind(value)}", path
            )
        listed = enumerate(cast("list[Any]", value))
        return "".join(
            raw if isinstance(raw, str) else Fields(raw, f"{path}[{i}]").part() for i, raw in listed
        )

    def part(self) -> str:
        """The text of a message's part, which this is."""
        of = self.data.get("type", "text")
        if not isinstance(of, str) or of not in _PARTS:
            where = self.at("type")
            raise unsupported(where, f"`{where}` = {shown(of)}: this server reads text parts only")
        return self.text("refusal" if of == "refusal" else "text")


def _text(value: Any, path: str, *, empty: bool) -> str:
    if not isinstance(value, str):
        raise invalid(f"`{path}` must be a string, not {kind(value)}", path)
    if not value and not empty:
        raise invalid(f"`{path}` must not be empty", path)
    return value
