"""Readers of JSON, JSONL and YAML files, with errors that name the file, the line and the field.

JSON and JSONL are distinguished by the content of a file, not by its suffix; only `.yaml` and
`.yml` are read as YAML. The schema of a row is a pydantic type (a `FileRecord` or a dataclass);
`read_as` validates a value against it and formats the error message. `workflows.py` has the rows of
workflows.
"""

from __future__ import annotations

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

from tutelage.bounded import json_lines, reject_repeats
from tutelage.errors import DataError, TutelageError
from tutelage.tasks.readers import check_characters

loads = partial(json.loads, object_pairs_hook=reject_repeats)
"""`json.loads` that raises `ValueError` if an object has a duplicate key."""


def read_json(path: str | Path, error: type[TutelageError] = DataError) -> Any:
    """Read a JSON, YAML or JSONL file (JSONL as a list of values). Raises `error` with the path and
    the line if the file is invalid."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as misfit:
        raise error(f"cannot read {str(path)!r}: {misfit}") from misfit
    if not text.strip():
        raise error(f"invalid JSON in {str(path)!r}: the file is empty")
    items: list[Any] = []
    if Path(path).suffix in (".yaml", ".yml"):
        import yaml

        try:  # convert dates and keys to strings, as in JSON
            value = json.loads(json.dumps(yaml.safe_load(text), default=str))
        except (yaml.YAMLError, ValueError, TypeError, RecursionError) as misfit:
            raise error(
                f"invalid YAML in {str(path)!r}: {' '.join(str(misfit).split())}"
            ) from misfit
    else:
        try:
            value = loads(text)
        except (ValueError, RecursionError) as whole:
            for number, line in json_lines(text):
                try:
                    items.append(loads(line))
                except (ValueError, RecursionError) as misfit:
                    place, reason = ("", whole) if not items else (f", line {number}", misfit)
                    message = f"invalid JSON in {str(path)!r}{place}: {reason}"
                    raise error(message) from reason
            value = items
    check_characters(repr(str(path)), value)
    return value


def read_rows(path: str | Path) -> list[Mapping[str, Any]]:
    """Read the rows of a file. Raises `DataError` if it is empty or a row is not an object."""
    data = read_json(path)
    rows = objects([data] if isinstance(data, Mapping) else data)
    if not rows or (isinstance(data, list) and len(rows) < len(cast("list[Any]", data))):
        raise DataError(f"{str(path)!r} has no rows; expected a list of objects, or one per line")
    return rows


# ------------------------------------------------------------------ fields


def _reject_bool(value: Any) -> Any:
    if isinstance(value, bool):  # Python counts true as 1
        raise ValueError("give a number")
    return value


def objects(value: Any) -> list[Mapping[str, Any]]:
    """Return the mappings in a list. If the value is not a list, the result is empty."""
    listed = cast("list[Any]", value) if isinstance(value, list) else []
    return [each for each in listed if isinstance(each, Mapping)]


AsText = Annotated[str, BeforeValidator(str)]
"""String field that also accepts other values, such as numeric identifiers."""
Number = Annotated[float, BeforeValidator(_reject_bool)]
"""Finite number; also accepted as a string, because YAML 1.1 reads `3e-5` as a string."""
Whole = Annotated[int, BeforeValidator(_reject_bool)]
"""Integer; also accepted as a float without fraction or as a string."""


def drop_nulls(row: Any) -> Any:
    """Remove the fields with null values from a mapping. Other values are returned unchanged."""
    if not isinstance(row, Mapping):
        return row
    values = cast("Mapping[str, Any]", row)
    return {key: value for key, value in values.items() if value is not None}


class FileRecord(BaseModel):
    """Base class for objects in files. Unknown fields and null values are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)
    _said = model_validator(mode="before")(drop_nulls)


Read = TypeVar("Read")


def read_as(
    adapter: TypeAdapter[Read],
    value: Any,
    location: str = "",
    *,
    error: type[TutelageError] = DataError,
) -> Read:
    """Validate a value with a type adapter. Raises `error` with the location, the field, its value
    and a fix."""
    try:
        return adapter.validate_python(value)
    except ValidationError as misfit:
        found = misfit.errors(include_url=False)[0]
        *above, last = found["loc"] or ("",)
        row = location.removesuffix(": it")  # location without a field
        inside = [part for part in (row if above else location, _format_path(above)) if part]
        remedy = find_remedy(found)
        if found["type"].startswith("missing"):
            message = f"{': '.join(inside) or 'the row'} has no {last!r}; give one"
        elif found["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            message = f"{': '.join(inside) or 'the row'} has an unknown field {last!r}; remove it"
        elif found["type"] == "value_error" and isinstance(found["input"], Mapping):
            message = ": ".join(filter(None, (row, remedy)))  # the remedy already names the field
        else:
            field = _format_path(found["loc"]) or "the row"
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


def find_remedy(error: ErrorDetails) -> str:
    """Return a message on how to fix a validation error."""
    context = error.get("ctx", {})
    if error["type"] == "value_error":
        return str(context["error"])
    remedy = _REMEDIES.get(error["type"])
    return error["msg"].lower() if remedy is None else remedy.format(**context)


def _format_path(path: Iterable[str | int]) -> str:
    """Format the location of a value, such as `'name'` or `targets.task_types[0]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    inner = text.removeprefix(".")
    return repr(inner) if inner and not {".", "["} & {*inner} else inner
