"""Encode single values for columns and decode them without loss: text, JSON, token ids, floats.

All functions reject values that a database or JSON would silently change, with a `StoreError` that
names the value: NaN (null in many JSON writers and in SQLite), keys that are not strings, and
objects that JSON does not support. Tokens and log-probabilities are packed little-endian, which
preserves floats bit for bit. `columns.py` applies these functions to whole records.
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
"""Prefix of text stored with Python's backslash escapes; see `escape`."""

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_EMPTY: tuple[Any, ...] = (None, ())
_ALWAYS = object()
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_Path: TypeAlias = "str | tuple[_Path, Any]"
"""Location of a value: a name, or (path of its container, key); formatted only on errors."""


def escape(text: str) -> str:
    """Escape text so that any database can store it and `unescape` restores it exactly.

    A model can write `"\\ud800"` in its arguments and a tool can echo it: a lone surrogate has no
    UTF-8 form, and PostgreSQL rejects NUL. Such text is stored with backslash escapes instead of
    losing the rollout.
    """
    if text.startswith(ESCAPED) or _UNSTORABLE.search(text):
        return ESCAPED + text.encode("unicode_escape").decode("ascii")
    return text


def unescape(text: str) -> str:
    """Restore text encoded by `escape`."""
    if text.startswith(ESCAPED):
        return text[len(ESCAPED) :].encode("ascii").decode("unicode_escape")
    return text


class ExactText(TypeDecorator[str]):
    """A text column that preserves lone surrogates and NUL."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the column type. PostgreSQL uses the C collation, independent of the locale."""
        by_code_point = Text(collation="C") if dialect.name == "postgresql" else Text()
        return dialect.type_descriptor(by_code_point)

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Escape text for the database."""
        return None if value is None else escape(value)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> str | None:
        """Unescape text from the database."""
        return None if value is None else unescape(value)


def dump_json(value: Any, label: str) -> str:
    """Convert a value to JSON text. Key order is kept.

    `label` names the value in errors. Integers may have any size and floats are preserved bit for
    bit. Tuples become arrays and dataclasses objects, without fields that have the default None or
    (). Raises `StoreError` for NaN, infinity, keys that are not strings, and types that JSON does
    not support.
    """
    try:
        return _ENCODER.encode(_to_plain(value, label))
    except (RecursionError, ValueError) as error:  # too deep, or an integer of thousands of digits
        raise StoreError(f"cannot write {label} as JSON ({error}): store less data") from None


def load_json(text: str) -> Any:
    """Parse JSON text written by `dump_json`."""
    # orjson would read integers beyond 64 bits as floats.
    return json.loads(text)


def _to_plain(value: Any, path: _Path) -> Any:
    """Convert a value to dicts, lists and scalars that JSON supports."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise StoreError(
            f"{_format_path(path)} is {value!r}, but JSON numbers must be finite: omit the key, "
            "or fix its computation"
        )
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value)
        if invalid := [key for key in items if not isinstance(key, str)]:
            raise StoreError(
                f"{_format_path(path)} has the key {invalid[0]!r}, but JSON keys must be strings: "
                f"use {str(invalid[0])!r}"
            )
        return {key: _to_plain(item, (path, key)) for key, item in items.items()}
    if isinstance(value, list | tuple):
        sequence = cast("Sequence[Any]", value)
        return [_to_plain(item, (path, i)) for i, item in enumerate(sequence)]
    if is_dataclass(value):
        return {
            name: _to_plain(item, (path, name))
            for name, default in _field_defaults(cast("type[Any]", type(value)))
            if (item := getattr(value, name)) != default
        }
    raise StoreError(
        f"{_format_path(path)} is {value!r} of type {type(value).__name__}, which JSON does not "
        "support: convert it to strings, numbers, lists or dicts first"
    )


@cache
def _field_defaults(cls: type[Any]) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a dataclass with the empty defaults that are omitted from JSON."""
    return tuple((f.name, f.default if f.default in _EMPTY else _ALWAYS) for f in fields(cls))


def _format_path(path: _Path) -> str:
    return path if isinstance(path, str) else f"{_format_path(path[0])}[{path[1]!r}]"


def to_finite(value: float, label: str) -> float:
    """Convert a number to a finite float; minus zero becomes zero. Raises `StoreError`."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise StoreError(f"{label} is {value!r}, not a finite number: fix its computation")
    return number + 0.0  # SQLite keeps no sign on zero: drop it before records are compared


def pack(kind: Literal["i", "d"], values: Sequence[float], label: str) -> bytes:
    """Pack token ids as little-endian int32 (`i`) or log-probabilities as float64 (`d`).

    Minus infinity is kept. Raises `StoreError` for values that do not fit.
    """
    try:
        return struct.pack(f"<{len(values)}{kind}", *values)
    except struct.error as error:
        problem = "an id beyond 32 bits" if kind == "i" else "a value that is not a float"
        raise StoreError(f"{label} contains {problem} ({error})") from None


def unpack(kind: Literal["i", "d"], data: bytes) -> tuple[Any, ...]:
    """Unpack numbers that were packed with `pack`."""
    return struct.unpack(f"<{len(data) // struct.calcsize(f'<{kind}')}{kind}", data)
