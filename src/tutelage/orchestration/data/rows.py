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
from tutelage.errors import DataError, TutelageError, check_given
from tutelage.tasks.readers import check_characters

loads = partial(json.loads, object_pairs_hook=unique_keys)
"""`json.loads` that refuses a key that stands twice in one object: a `ValueError` with its name."""


def read_json(path: str | Path) -> Any:
    """Return the value of a JSON or YAML file, or the list of the values of a JSONL file. Raises
    `DataError` with the file and the line."""
    check_given("a file", path, (str, Path), "its path", DataError)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DataError(f"{str(path)!r} cannot be read: {reason or error}") from error
    if not text.strip():
        raise DataError(f"{str(path)!r} is no readable JSON file: it is empty")
    if Path(path).suffix in (".yaml", ".yml"):
        value = parse_yaml(path, text)
    else:
        value = _json(path, text)
    check_characters(repr(str(path)), value)
    return value


def _json(path: str | Path, text: str) -> Any:
    try:
        return loads(text)
    except (ValueError, RecursionError) as whole:
        items: list[Any] = []
        for number, line in json_lines(text):
            place = f"{str(path)!r}, line {number}"
            try:
                items.append(loads(line))
            except (ValueError, RecursionError) as error:
                if not items:
                    raise DataError(f"{str(path)!r} is no readable JSON file: {whole}") from whole
                raise DataError(f"{place}: no JSON: {error}") from error
            check_characters(place, items[-1])
        return items


def parse_yaml(path: str | Path, text: str, error: type[TutelageError] = DataError) -> Any:
    """Return the value of a YAML file that holds this text, as JSON has it: dates and keys are
    texts. Raises `error` where it is none."""
    import yaml

    try:
        return json.loads(json.dumps(yaml.safe_load(text), default=str))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as misfit:
        raise error(f"{str(path)!r} is no YAML: {' '.join(str(misfit).split())}") from misfit


def read_rows(path: str | Path) -> list[Mapping[str, Any]]:
    """Return the objects of a file. Raises `DataError` when it holds anything else, or none."""
    data = read_json(path)
    if isinstance(data, Mapping):
        data = [cast("Mapping[str, Any]", data)]
    rows = cast("list[Any]", data)
    if not isinstance(data, list) or not rows:
        raise DataError(f"{str(path)!r} holds no rows; it needs a list of objects, or one a line")
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(f"{str(path)!r}, row {index}: {row!r} is no object")
    return cast("list[Mapping[str, Any]]", rows)


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
    known: Iterable[str] | Mapping[str, Iterable[str]] = (),
) -> Read:
    """Return `value` as `kind`. Raises `error` that says where, which field, its value, and the
    remedy.

    `known` are fields, for a hint at one that does not exist; or those of each field that holds
    objects by its name, with those of `value` itself under the empty one.
    """
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
            if isinstance(known, Mapping):
                known = known.get(str(above[0]) if above else "", ())
            hint = nearest(str(last), known)
            message = f"{': '.join(inside) or 'the row'} has an unknown field {last!r}; {hint}"
        elif found["type"] == "value_error" and isinstance(found["input"], Mapping):
            message = ": ".join(filter(None, (row, remedy)))  # it names its fields itself
        else:
            field = _place(found["loc"]) or "the row"
            message = f"{field} is {found['input']!r:.200}; {remedy}"
            message = ": ".join(filter(None, (row, message)))
        raise error(message) from misfit


_OBJECTS = ("dict_type", "mapping_type", "model_type", "dataclass_type")
_REMEDIES = {
    **dict.fromkeys(("string_type", "string_too_short"), "give a text"),
    "string_pattern_mismatch": "give a text that says something",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "give a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "give a finite number"),
    "greater_than": "give a number above {gt}",
    "greater_than_equal": "give a number of at least {ge}",
    "less_than": "give a number below {lt}",
    "less_than_equal": "give a number of at most {le}",
    "too_short": "give at least {min_length}",
    "too_long": "give at most {max_length}, not {actual_length}",
    **dict.fromkeys(("list_type", "tuple_type"), "give a list"),
    **dict.fromkeys(_OBJECTS, "give a JSON object"),
    "literal_error": "choose from {expected}",
}


def remedy_of(found: ErrorDetails) -> str:
    """What fixes a value that pydantic refused."""
    context = found.get("ctx", {})
    if found["type"] == "value_error":
        return str(context["error"])
    known = _REMEDIES.get(found["type"])
    return found["msg"].lower() if known is None else known.format(**context)


def _place(place: Iterable[str | int]) -> str:
    """Where a value stands: `'name'`, or `targets.task_types[0]`, or `scores['small-7b']`."""
    parts = list(place)
    if len(parts) == 1 and isinstance(parts[0], str):
        return repr(parts[0])
    text = ""
    for part in parts:
        plain = isinstance(part, str) and (not text or part.isidentifier())
        text += f"{'.' if text else ''}{part}" if plain else f"[{part!r}]"
    return text


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a name that does not exist: the nearest one, or all."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
