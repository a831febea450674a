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
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from tutelage.bounded import RepeatedKeyError, unique_keys
from tutelage.errors import DataError, MissingExtraError, counted

_SPACE = re.compile(r"[ \t\r\n]*")


class RawRow(NamedTuple):
    """One raw row and where it stands, such as `train.jsonl:17`."""

    place: str
    value: Any


def short(value: Any) -> str:
    """A value in an error message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_rows(path: str | Path) -> list[RawRow]:
    """All rows of a file, by its suffix: .json, .jsonl, .ndjson, .csv, .parquet.

    Raises `DataError` for a file that is missing, empty or broken, with the line, and
    `MissingExtraError` for Parquet without pyarrow.
    """
    path = Path(path)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        known = ", ".join(sorted(_READERS))
        raise DataError(
            f"cannot tell the format of {str(path)!r} from its suffix {path.suffix!r}; "
            f"name the file with one of {known}"
        )
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        files = [str(file) for file in path.parent.glob("*") if file.suffix.lower() in _READERS]
        near = get_close_matches(str(path), files, n=1)
        way = f"did you mean {near[0]!r}?" if near else "give the path of a file"
        raise DataError(f"dataset {str(path)!r} {what}; {way}")
    rows = list(reader(path))
    if not rows:
        raise DataError(f"dataset {str(path)!r} has no rows; a run needs at least one task")
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
        # Many files named .json hold one object per line.
        yield from _json_lines(path)
        return
    if start == len(text):
        return
    if not text.startswith("[", start):
        raise DataError(
            f"{path}:{_line(text, start)}: expected a JSON array of objects, found {text[start]!r}"
        )
    yield from _json_array(path, text, start + 1)


def _json_array(path: Path, text: str, at: int) -> Iterator[RawRow]:
    """Elements of the array whose `[` ends just before `at`, decoded one by one for their lines."""
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
    at = _skip_space(text, at + 1)
    if at < len(text):
        raise DataError(f"{path}:{_line(text, at)}: text after the end of the JSON array")


def _json_lines(path: Path) -> Iterator[RawRow]:
    text = _text(path)
    decoder = json.JSONDecoder(object_pairs_hook=unique_keys)
    # Not splitlines(): that also cuts at U+2028 and others, which JSON strings may contain.
    for number, line in enumerate(text.split("\n"), 1):
        start = _skip_space(line, 0)
        if start == len(line):
            continue
        place = f"{path}:{number}"
        value, end = _decode(decoder, line, start, path=None, place=place)
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
        raise DataError(f"{place}: JSON that cannot be read: {error}") from error


def _read_csv(path: Path) -> Iterator[RawRow]:
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
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


_READERS: dict[str, Callable[[Path], Iterator[RawRow]]] = {
    ".json": _read_json,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
