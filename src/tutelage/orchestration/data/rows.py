"""Reading JSON, JSONL and YAML alike, with errors that name the file and the line.

A file of workflows, a log or a catalog may be one JSON value or one a line, whatever its name ends
in: what is inside decides; only `.yaml` and `.yml` are read as YAML. Fields that hold JSON as text,
as exports from tables do, are opened.
`formats.py` says what the rows mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from tutelage.errors import DataError, MissingExtraError

WRAPPERS = ("data", "rows", "examples", "workflows", "train", "test")
"""Keys under which an export keeps its only list."""


def read_json(path: str | Path) -> Any:
    """The value of a JSON or YAML file, or the list of the values of a JSONL file."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DataError(f"{str(path)!r} cannot be read: {reason or error}") from error
    if not text.strip():
        raise DataError(f"{str(path)!r} is no readable JSON file: it is empty")
    if Path(path).suffix in (".yaml", ".yml"):
        return _yaml(path, text)
    try:
        return json.loads(text)
    except ValueError as whole:
        lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
        try:
            first = json.loads(lines[0][1])
        except ValueError:
            raise DataError(f"{str(path)!r} is no readable JSON file: {whole}") from whole
        found = [first]
        for number, line in lines[1:]:
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise DataError(f"{str(path)!r}, line {number}: no JSON: {error}") from error
        return found


def _yaml(path: str | Path, text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingExtraError(
            f"{str(path)!r} is YAML, which needs PyYAML: pip install 'tutelage[train]'; or write "
            "it as JSON"
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = " ".join(str(error).split())
        raise DataError(f"{str(path)!r} is no YAML: {where}") from error


def read_rows(path: str | Path) -> list[Mapping[str, Any]]:
    """The objects of a file. Raises `DataError` when it holds anything else, or none."""
    data = read_json(path)
    if isinstance(data, Mapping):
        document = cast("Mapping[str, Any]", data)
        inner = [document[key] for key in WRAPPERS if isinstance(document.get(key), list)]
        data = inner[0] if len(inner) == 1 else [document]
    rows = cast("list[Any]", data)
    if not isinstance(data, list) or not rows:
        raise DataError(f"{str(path)!r} holds no rows; it needs a list of objects, or one a line")
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(f"{str(path)!r}, row {index}: {row!r} is no object")
    return cast("list[Mapping[str, Any]]", rows)


def opened(value: Any) -> Any:
    """`value`, or what it holds when it is JSON written as text."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
