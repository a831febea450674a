"""Readers of JSON arrays, JSONL, CSV and Parquet files; each row has its place in the file.

Every error names the file and the line as a text editor shows it (for a JSON array the index of the
element, for Parquet the row). `dataset.py` decides what a row must contain.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, cast

from tutelage.bounded import json_lines, reject_repeats
from tutelage.errors import DataError, MissingExtraError, pluralize
from tutelage.types import INPUT_FIELDS

_BLANK = " \t\r\n"
_DECODER = json.JSONDecoder(object_pairs_hook=reject_repeats)
_SURROGATE = re.compile("[\ud800-\udfff]")
_LONGEST_CELL = 2**31 - 1
"""Maximum characters of a CSV cell; Python's default limit is 131,072."""


class RawRow(NamedTuple):
    """One raw row and its location, such as `train.jsonl:17`."""

    place: str
    value: Any


def short_repr(value: Any) -> str:
    """Return the repr of a value for an error message, at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def check_characters(place: str, value: Any, field: str = "") -> None:
    """Raise `DataError` if a text has an unpaired surrogate, which UTF-8 cannot encode; such a text
    cannot be stored or sent to a model."""
    if isinstance(value, str):
        if not value.isascii() and (match := _SURROGATE.search(value)):
            raise DataError(
                f"{place}: field {field!r} has {match[0]!r}, an unpaired surrogate: remove it"
            )
    elif isinstance(value, Mapping):
        for key, item in cast("Mapping[Any, Any]", value).items():
            name = f"{field}.{key}" if field else str(key)
            check_characters(place, key, name)
            check_characters(place, item, name)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(cast("Sequence[Any]", value)):
            check_characters(place, item, f"{field}[{index}]")


def read_rows(path: str | Path) -> list[RawRow]:
    """Read all rows of a file, in the format of its suffix: .json, .jsonl, .ndjson, .csv, .parquet.

    Raises `DataError` for a file that is missing, empty or invalid, with the line, and
    `MissingExtraError` for Parquet without pyarrow.
    """
    path = Path(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        suffixes = ", ".join(sorted(READERS))
        raise DataError(
            f"unknown format of {str(path)!r}: suffix {path.suffix!r}; "
            f"rename the file to end in one of {suffixes}"
        )
    if not path.is_file():
        files = [str(file) for file in path.parent.glob("*") if file.suffix.lower() in READERS]
        near = get_close_matches(str(path), files, n=1)
        advice = f"did you mean {near[0]!r}?" if near else "pass the path of one"
        problem = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise DataError(f"dataset {str(path)!r} {problem}; {advice}")
    limit = csv.field_size_limit(_LONGEST_CELL)
    try:
        rows = list(reader(path))
    finally:
        csv.field_size_limit(limit)
    if not rows:
        raise DataError(f"dataset {str(path)!r} has no rows; a run needs at least one task")
    for row in rows:
        check_characters(row.place, row.value)
    return rows


def _read_text(path: Path) -> str:
    """Read a file as UTF-8 text without a byte-order mark and with unchanged line ends."""
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}:{line}: not valid UTF-8 (byte {raw[error.start]:#04x}); save the file as UTF-8"
        ) from error


def _read_json(path: Path) -> Iterator[RawRow]:
    """Yield the rows of an array, of JSON Lines, or of a single object, which is a row or has a
    list of rows under one key."""
    text = _read_text(path)
    if not text.strip():
        return
    value, rest = _parse_json(text, str(path), file=path)
    if rest and isinstance(value, dict):
        yield from _json_lines(path)
        return
    if rest:
        raise DataError(f"{path}: text after the end of the JSON array")
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        is_row = any(name in found for name in ("id", *INPUT_FIELDS))
        lists = {k: cast("list[Any]", v) for k, v in found.items() if isinstance(v, list)}
        keys = [] if is_row else [k for k, rows in lists.items() if {dict} == {*map(type, rows)}]
        if len(keys) > 1:
            raise DataError(
                f"{path}: found lists of rows under {', '.join(map(repr, keys))}; write each to "
                "its own file"
            )
        value = found[keys[0]] if keys else [found]
    for index, row in enumerate(cast("list[Any]", value) if isinstance(value, list) else [value]):
        yield RawRow(f"{path} (index {index})", row)


def _json_lines(path: Path) -> Iterator[RawRow]:
    """Yield the rows of JSON lines."""
    for number, line in json_lines(_read_text(path)):
        place = f"{path}:{number}"
        value, rest = _parse_json(line, place)
        if rest:
            raise DataError(f"{place}: text after the JSON object; write one object per line")
        yield RawRow(place, value)


def _parse_json(text: str, place: str, file: Path | None = None) -> tuple[Any, str]:
    """Parse the JSON value at the beginning of a text, and return it with the remaining text; if
    the text is the whole `file`, an error has its line number."""
    blank = len(text) - len(text.lstrip(_BLANK))
    try:
        value, end = _DECODER.raw_decode(text, blank)
    except json.JSONDecodeError as error:
        location = place if file is None else f"{file}:{error.lineno}"
        raise DataError(f"{location}: invalid JSON at column {error.colno}: {error.msg}") from error
    except (RecursionError, ValueError) as error:
        # Nesting beyond the stack, an integer of thousands of digits, or a repeated key.
        raise DataError(f"{place}: cannot parse JSON: {error}") from error
    return value, text[end:].strip(_BLANK)


def _read_csv(path: Path) -> Iterator[RawRow]:
    """Yield the rows of a CSV file with a header."""
    file = io.StringIO(_read_text(path), newline="")
    reader = csv.reader(file, strict=True, skipinitialspace=True)
    header: list[str] | None = None
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise DataError(f"{path}:{line}: invalid CSV: {error}") from error
        if cells is None:
            return
        if not cells:
            continue
        if header is None:
            header = [cell.strip() for cell in cells]
            invalid = [name for name in header if not name or header.count(name) > 1]
            if invalid:
                raise DataError(
                    f"{path}:{line}: the header needs unique column names, got {invalid[0]!r}"
                )
        elif len(cells) != len(header):
            raise DataError(
                f"{path}:{line}: {pluralize(len(cells), 'cell')} but the header has {len(header)} "
                f"({', '.join(header)}); quote cells that contain commas"
            )
        else:
            yield RawRow(f"{path}:{line}", dict(zip(header, cells, strict=True)))


def _read_parquet(path: Path) -> Iterator[RawRow]:
    """Yield the rows of a Parquet file."""
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtraError(
            f"reading {str(path)!r} needs pyarrow, which is not installed; "
            "`pip install pyarrow`, or save the data as JSONL"
        ) from error
    try:
        rows: list[Any] = parquet.read_table(path).to_pylist()
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}") from error
    for number, value in enumerate(rows, 1):
        yield RawRow(f"{path} (row {number})", value)


READERS: dict[str, Callable[[Path], Iterator[RawRow]]] = {
    ".json": _read_json,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
