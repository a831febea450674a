"""Reading JSON, JSONL and YAML alike, with errors that name the file, the line and the field.

A file of workflows, a log or a catalog may be one JSON value or one a line, whatever its name ends
in: what is inside decides; only `.yaml` and `.yml` are read as YAML. What a row must
have, a pydantic type says (`FileRecord` for objects of files, or a dataclass); `read_as` reads one
and words what does not fit, once for all of them. `workflows.py` has the rows of workflows.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from tutelage.bounded import json_lines, unique_keys
from tutelage.errors import DataError, TutelageError
from tutelage.tasks.readers import check_characters

loads = partial(json.loads, object_pairs_hook=unique_keys)
"""`json.loads` that refuses a key that stands twice in one object: a `ValueError` with its name."""


def read_json(path: str | Path, error: type[TutelageError] = DataError) -> Any:
    """Return the value of a JSON or YAML file, or the list of the values of a JSONL file. Raises
    `error` with the file and the line."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as misfit:
        raise error(f"{str(path)!r} cannot be read: {misfit}") from misfit
    if not text.strip():
        raise error(f"{str(path)!r} is no readable JSON: it is empty")
    items: list[Any] = []
    if Path(path).suffix in (".yaml", ".yml"):
        import yaml

        try:  # dates and keys as texts, as JSON has them
            value = json.loads(json.dumps(yaml.safe_load(text), default=str))
        except (yaml.YAMLError, ValueError, TypeError, RecursionError) as misfit:
            raise error(f"{str(path)!r} is no YAML: {' '.join(str(misfit).split())}") from misfit
    else:
        try:
            value = loads(text)
        except (ValueError, RecursionError) as whole:
            for number, line in json_lines(text):
                try:
                    items.append(loads(line))
                except (ValueError, RecursionError) as misfit:
                    place, reason = ("", whole) if not items else (f", line {number}", misfit)
                    message = f"{str(path)!r}{place} is no readable JSON: {reason}"
                    raise error(message) from reason
            value = items
    check_characters(repr(str(path)), value)
    return value


def read_rows(path: str | Path) -> list[Mapping[str, Any]]:
    """Return the objects of a file. Raises `DataError` when it holds anything else, or none."""
    data = read_json(path)
    rows = objects([data] if isinstance(data, Mapping) else data)
    if not rows or (isinstance(data, list) and len(rows) < len(cast("list[Any]", data))):
        raise DataError(f"{str(path)!r} holds no rows; it needs a list of objects, or one a line")
    return rows


# ------------------------------------------------------------------ fields


def _number(value: Any) -> Any:
    if isinstance(value, bool):  # Python counts true as 1
        raise ValueError("give a number")
    return value


def objects(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list; all else is left out, as what others write may be anything."""
    listed = cast("list[Any]", value) if isinstance(value, list) else []
    return [each for each in listed if isinstance(each, Mapping)]


AsText = Annotated[str, BeforeValidator(str)]
"""A text, or what has one: identifiers may be numbers."""
Number = Annotated[float, BeforeValidator(_number)]
"""A finite number, also one that is written as text: YAML 1.1 takes `3e-5` for text."""
Whole = Annotated[int, BeforeValidator(_number)]
"""A whole number, also one that is written with a point or as text."""


def without_nulls(row: Any) -> Any:
    """An object without what is null: null says nothing."""
    if not isinstance(row, Mapping):
        return row
    values = cast("Mapping[str, Any]", row)
    return {key: value for key, value in values.items() if value is not None}


class FileRecord(BaseModel):
    """One object of a file. What it does not name is ignored, and null says nothing."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)
    _said = model_validator(mode="before")(without_nulls)


Read = TypeVar("Read")


def read_as(
    kind: TypeAdapter[Read],
    value: Any,
    where: str = "",
    *,
    error: type[TutelageError] = DataError,
) -> Read:
    """Return `value` as `kind`. Raises `error` that says where, which field, its value, and the
    remedy."""
    try:
        return kind.validate_python(value)
    except ValidationError as misfit:
        found = misfit.errors(include_url=False)[0]
        *above, last = found["loc"] or ("",)
        row = where.removesuffix(": it")  # a place without a field, and its field is no number
        inside = [part for part in (row if above else where, _place(above)) if part]
        remedy = remedy_of(found)
        if found["type"] == "missing":
            message = f"{': '.join(inside) or 'the row'} has no {last!r}; give one"
        elif found["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            message = f"{': '.join(inside) or 'the row'} has an unknown field {last!r}; remove it"
        elif found["type"] == "value_error" and isinstance(found["input"], Mapping):
            message = ": ".join(filter(None, (row, remedy)))  # it names its fields itself
        else:
            field = _place(found["loc"]) or "the row"
            message = f"{field} is {found['input']!r:.200}; {remedy}"
            message = ": ".join(filter(None, (row, message)))
        raise error(message) from misfit


_REMEDIES = {
    **dict.fromkeys(("string_type", "string_too_short"), "give a text"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "give a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "give a finite number"),
    "too_long": "give at most {max_length}, not {actual_length}",
    **dict.fromkeys(("list_type", "tuple_type"), "give a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type"), "give a JSON object"),
    "dataclass_type": "give a JSON object",
    "literal_error": "choose from {expected}",
}


def remedy_of(found: ErrorDetails) -> str:
    """What fixes a value that pydantic refused."""
    context = found.get("ctx", {})
    if found["type"] == "value_error":
        return str(context["error"])
    remedy = _REMEDIES.get(found["type"])
    return found["msg"].lower() if remedy is None else remedy.format(**context)


def _place(place: Iterable[str | int]) -> str:
    """Where a value stands: `'name'`, or `targets.task_types[0]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    inner = text.removeprefix(".")
    return repr(inner) if inner and not {".", "["} & {*inner} else inner


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a name that does not exist: the nearest one, or all."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
