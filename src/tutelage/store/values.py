"""How one value becomes a column and comes back the same: text, JSON, token ids, floats.

Every function here refuses, with a `StoreError` that names the place, what a database or JSON
would quietly change: NaN (a null in many JSON writers and in SQLite), keys that are no strings,
objects that JSON has no word for. Tokens and log-probabilities are packed little-endian, so that a
float comes back bit for bit. `columns.py` applies these to whole records.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeAlias, cast

from sqlalchemy import Dialect, Text
from sqlalchemy.types import TypeDecorator, TypeEngine

from tutelage.errors import StoreError

ESCAPED = "\x01escaped:"
"""Opens a text that is stored in Python's backslash form; see `escape`."""

_UNFIT = re.compile("[\x00\ud800-\udfff]")
_EMPTY: tuple[Any, ...] = (None, ())
_ALWAYS = object()
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_Path: TypeAlias = "str | tuple[_Path, Any]"
"""Where a value stands: a name, or (the path of its container, its key); text only on error."""


def escape(text: str) -> str:
    """A text that any database can hold, one to one with the given one.

    A model can write `"\\ud800"` in its arguments and a tool can echo it: half a surrogate pair
    has no UTF-8 form, and PostgreSQL refuses NUL. Such a text is stored with backslashes instead
    of losing the rollout.
    """
    if text.startswith(ESCAPED) or _UNFIT.search(text):
        return ESCAPED + text.encode("unicode_escape").decode("ascii")
    return text


def unescape(text: str) -> str:
    """The inverse of `escape`."""
    if text.startswith(ESCAPED):
        return text[len(ESCAPED) :].encode("ascii").decode("unicode_escape")
    return text


class ExactText(TypeDecorator[str]):
    """A text column that returns exactly what was stored, lone surrogates and NUL included."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """PostgreSQL compares text by the language of the database unless told otherwise."""
        by_code_point = Text(collation="C") if dialect.name == "postgresql" else Text()
        return dialect.type_descriptor(by_code_point)

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Python to database."""
        return None if value is None else escape(value)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> str | None:
        """Database to Python."""
        return None if value is None else unescape(value)


def dump_json(value: Any, where: str) -> str:
    """JSON text of `value`; `where` names it in errors. Key order is kept.

    Integers may have any size and floats come back bit for bit. Tuples become arrays, our own
    records objects without the fields that are None or empty by default and are so here. Raises
    `StoreError` for NaN, infinity, keys that are no strings, and types that JSON has no word for.
    """
    try:
        return _ENCODER.encode(_plain(value, where))
    except (RecursionError, ValueError) as error:  # too deep, or an integer of thousands of digits
        raise StoreError(f"cannot write {where} as JSON ({error}): store less data") from None


def load_json(text: str) -> Any:
    """The inverse of `dump_json`."""
    # Not orjson: it reads integers beyond 64 bits as floats.
    return json.loads(text)


def _plain(value: Any, path: _Path) -> Any:
    """`value` in dicts, lists and scalars only, every one of them fit for JSON."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise StoreError(
            f"{_shown(path)} is {value!r}, but JSON numbers must be finite: leave the key out, "
            "or fix its computation"
        )
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value)
        if odd := [key for key in items if not isinstance(key, str)]:
            raise StoreError(
                f"{_shown(path)} has the key {odd[0]!r}, but JSON keys must be strings: use "
                f"{str(odd[0])!r}"
            )
        return {key: _plain(item, (path, key)) for key, item in items.items()}
    if isinstance(value, list | tuple):
        sequence = cast("Sequence[Any]", value)
        return [_plain(item, (path, i)) for i, item in enumerate(sequence)]
    if is_dataclass(value):
        return {
            name: _plain(item, (path, name))
            for name, absent in _members(cast("type[Any]", type(value)))
            if (item := getattr(value, name)) != absent
        }
    raise StoreError(
        f"{_shown(path)} is {value!r} of type {type(value).__name__}, which JSON does not support: "
        "convert it to strings, numbers, lists or dicts first"
    )


@cache
def _members(cls: type[Any]) -> tuple[tuple[str, Any], ...]:
    """The fields of a record class, each with the empty default that is not written."""
    return tuple((f.name, f.default if f.default in _EMPTY else _ALWAYS) for f in fields(cls))


def _shown(path: _Path) -> str:
    return path if isinstance(path, str) else f"{_shown(path[0])}[{path[1]!r}]"


def finite(value: float, where: str) -> float:
    """`value` as a float; raises `StoreError` unless it is finite. Minus zero becomes zero."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise StoreError(f"{where} is {value!r}, not a finite number: fix its computation")
    return number + 0.0  # SQLite keeps no sign on zero: drop it before records are compared


def pack(kind: Literal["i", "d"], values: Sequence[float], where: str) -> bytes:
    """Token ids as little-endian int32 (`i`), log-probabilities as float64 (`d`), bit for bit.

    Minus infinity is kept. Raises `StoreError` for what does not fit.
    """
    try:
        return struct.pack(f"<{len(values)}{kind}", *values)
    except struct.error as error:
        what = "an id beyond 32 bits" if kind == "i" else "a value that is not a float"
        raise StoreError(f"{where} holds {what} ({error})") from None


def unpack(kind: Literal["i", "d"], data: bytes) -> tuple[Any, ...]:
    """The inverse of `pack`."""
    return struct.unpack(f"<{len(data) // struct.calcsize(f'<{kind}')}{kind}", data)
