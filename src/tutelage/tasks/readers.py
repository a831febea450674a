"""Files to rows: JSON arrays, JSONL, CSV and Parquet, each row with the place it came from.

The only promise is exactness about places: whatever is wrong, the error names the file and the line
that a text editor shows (for a JSON array also the index of the element, for Parquet the row). What
a row must contain is not decided here but in `dataset.py`.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, cast

from tutelage.bounded import RepeatedKeyError, json_lines, unique_keys
from tutelage.errors import DataError, MissingExtraError, counted
from tutelage.types import INPUT_FIELDS

_SPACE = re.compile(r"[ \t\r\n]*")
_HALF = re.compile("[\ud800-\udfff]")
_LONGEST_CELL = 2**31 - 1
"""Characters of a cell of CSV that are read; Python's own limit is 131,072."""


class RawRow(NamedTuple):
    """One raw row and where it stands, such as `train.jsonl:17`."""

    place: str
    value: Any


def short(value: Any) -> str:
    """A value in an error message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def check_characters(place: str, value: Any, field: str = "") -> None:
    """Raise `DataError` with the place and the field of a text that holds half of a surrogate pair,
    which UTF-8 cannot write: it could be neither stored nor sent to a model."""
    if isinstance(value, str):
        if not value.isascii() and (half := _HALF.search(value)):
            raise DataError(
                f"{place}: field {field!r} has {half[0]!r}, an unpaired surrogate: remove it"
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
    """All rows of a file, by its suffix: .json, .jsonl, .ndjson, .csv, .parquet.

    Raises `DataError` for a file that is missing, empty or broken, with the line, and
    `MissingExtraError` for Parquet without pyarrow.
    """
    path = Path(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        known = ", ".join(sorted(READERS))
        raise DataError(
            f"unknown format of {str(path)!r}: suffix {path.suffix!r}; "
            f"rename the file to end in one of {known}"
        )
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        files = [str(file) for file in path.parent.glob("*") if file.suffix.lower() in READERS]
        near = get_close_matches(str(path), files, n=1)
        way = f"did you mean {near[0]!r}?" if near else "pass the path of a file"
        raise DataError(f"dataset {str(path)!r} {what}; {way}")
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


def _text(path: Path) -> str:
    """The file as text, byte-order mark removed, line ends as they are."""
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}:{line}: not valid UTF-8 (byte {raw[error.start]:#04x}); save the file as UTF-8"
        ) from error


def _read_json(path: Path) -> Iterator[RawRow]:
    text = _text(path)
    start = _skip_space(text, 0)
    if text.startswith("{", start):
        yield from _json_object(path, text, start)
    elif text.startswith("[", start):
        at = _skip_space(text, (yield from _json_array(path, text, start + 1)))
        if at < len(text):
            raise DataError(f"{path}:{_line(text, at)}: text after the end of the JSON array")
    elif start < len(text):
        raise DataError(
            f"{path}:{_line(text, start)}: expected a JSON array of objects, found {text[start]!r}"
        )


def _json_object(path: Path, text: str, start: int) -> Iterator[RawRow]:
    """Rows of a file that begins with an object: one object a line, or a single object, which is a
    row itself or holds the list of rows under one of its keys."""
    decoder = json.JSONDecoder(object_pairs_hook=unique_keys)
    place = f"{path}:{_line(text, start)}"
    value, end = _decode(decoder, text, start, str(path), place)
    if _skip_space(text, end) < len(text):
        yield from _json_lines(path)
        return
    keys = [key for key, rows in value.items() if _is_rows(rows)]
    if not keys or any(name in value for name in ("id", *INPUT_FIELDS)):
        yield RawRow(place, value)
        return
    if len(keys) > 1:
        raise DataError(
            f"{place}: found lists of rows under {', '.join(map(repr, keys))}; write each to "
            "its own file"
        )
    for index, row in enumerate(value[keys[0]]):
        yield RawRow(f"{place} (index {index})", row)


def _is_rows(value: object) -> bool:
    """True for a list of objects that is not empty."""
    return isinstance(value, list) and {dict} == {type(row) for row in cast("list[Any]", value)}


def _json_array(path: Path, text: str, at: int) -> Generator[RawRow, None, int]:
    """Yield the elements of the array whose `[` ends just before `at`, decoded one by one for their
    lines; return where its `]` ends."""
    decoder = json.JSONDecoder(object_pairs_hook=unique_keys)
    index, line, counted = 0, 1, 0
    at = _skip_space(text, at)
    closed = text.startswith("]", at)
    while not closed:
        # Counted on from the last element: counting from the top each time would be quadratic.
        line, counted = line + text.count("\n", counted, at), at
        place = f"{path}:{line} (index {index})"
        value, at = _decode(decoder, text, at, str(path), place)
        yield RawRow(place, value)
        index += 1
        at = _skip_space(text, at)
        closed = text.startswith("]", at)
        if not closed:
            if not text.startswith(",", at):
                raise DataError(
                    f"{path}:{_line(text, at)}: expected ',' or ']' after the element of "
                    f"index {index - 1}"
                )
            at = _skip_space(text, at + 1)
    return at + 1


def _json_lines(path: Path) -> Iterator[RawRow]:
    text = _text(path)
    decoder = json.JSONDecoder(object_pairs_hook=unique_keys)
    for number, line in json_lines(text):
        place = f"{path}:{number}"
        value, end = _decode(decoder, line, _skip_space(line, 0), path=None, place=place)
        if _skip_space(line, end) < len(line):
            raise DataError(f"{place}: text after the JSON object; write one object per line")
        yield RawRow(place, value)


def _decode(
    decoder: json.JSONDecoder, text: str, at: int, path: str | None, place: str
) -> tuple[Any, int]:
    """Decode one value at `at`; `path` is given where the text spans the lines of the file."""
    try:
        return decoder.raw_decode(text, at)
    except json.JSONDecodeError as error:
        where = place if path is None else f"{path}:{error.lineno}"
        raise DataError(f"{where}: invalid JSON at column {error.colno}: {error.msg}") from error
    except RepeatedKeyError as error:
        raise DataError(f"{place}: field {error.key!r} occurs twice in one object") from error
    except (RecursionError, ValueError) as error:
        # Nesting beyond the interpreter's stack, or an integer of thousands of digits.
        raise DataError(f"{place}: cannot parse JSON: {error}") from error


def _read_csv(path: Path) -> Iterator[RawRow]:
    file = io.StringIO(_text(path), newline="")
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
            header = _header(path, line, cells)
        elif len(cells) != len(header):
            raise DataError(
                f"{path}:{line}: {counted(len(cells), 'cell')} where the header has {len(header)} "
                f"({', '.join(header)}); quote cells that contain commas"
            )
        else:
            yield RawRow(f"{path}:{line}", dict(zip(header, cells, strict=True)))


def _header(path: Path, line: int, cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    for index, name in enumerate(names):
        if not name:
            raise DataError(f"{path}:{line}: column {index + 1} of the header has no name")
        if name in names[:index]:
            raise DataError(f"{path}:{line}: column {name!r} occurs twice in the header")
    return names


def _read_parquet(path: Path) -> Iterator[RawRow]:
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


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


READERS: dict[str, Callable[[Path], Iterator[RawRow]]] = {
    ".json": _read_json,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
