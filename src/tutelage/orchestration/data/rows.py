"""Reading JSON, JSONL and YAML alike, with errors that name the file, the line and the field.

A file of workflows, a log or a catalog may be one JSON value or one a line, whatever its name ends
in: what is inside decides; only `.yaml` and `.yml` are read as YAML. Fields that hold JSON as text,
as exports from tables do, are opened. What a row must have, a pydantic type says (`FileRecord` for
objects of files, or a dataclass); `read_as` reads one and words what does not fit, once for all of
them. `formats.py` has the rows of workflows.
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

from tutelage.bounded import RepeatedKeyError, json_lines, unique_keys
from tutelage.errors import DataError, TutelageError, check_given
from tutelage.tasks.readers import check_characters

WRAPPERS = ("data", "rows", "examples", "workflows", "train", "test")
"""Keys under which an export keeps its only list."""
_TAG = "tag:yaml.org,2002:"


loads = partial(json.loads, object_pairs_hook=unique_keys)
"""`json.loads` that refuses a key that stands twice in one object: a `ValueError` with its name."""


def read_json(path: str | Path) -> Any:
    """The value of a JSON or YAML file, or the list of the values of a JSONL file."""
    check_given("a file", path, (str, Path), "its path", DataError)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DataError(f"{str(path)!r} cannot be read: {reason or error}") from error
    if not text.strip():
        raise DataError(f"{str(path)!r} is no readable JSON file: it is empty")
    try:
        if Path(path).suffix in (".yaml", ".yml"):
            value = _with_text_keys(parse_yaml(path, text))
        else:
            value = _json(path, text)
        check_characters(repr(str(path)), value)
    except RecursionError as error:
        raise DataError(f"{str(path)!r} is nested too deeply to be read") from error
    return value


def _json(path: str | Path, text: str) -> Any:
    try:
        return loads(text)
    except ValueError as whole:
        items: list[Any] = []
        for number, line in json_lines(text):
            place = f"{str(path)!r}, line {number}"
            try:
                items.append(loads(line))
            except ValueError as error:
                if not items:
                    raise DataError(f"{str(path)!r} is no readable JSON file: {whole}") from whole
                raise DataError(f"{place}: no JSON: {error}") from error
            check_characters(place, items[-1])
        return items


def _with_text_keys(value: Any) -> Any:
    """Return a value of YAML with the keys that JSON would have: 2024 is "2024", unless that is a
    key itself."""
    if isinstance(value, list):
        return [_with_text_keys(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    named, made = cast("dict[Any, Any]", value), dict[Any, Any]()
    for key, each in named.items():
        text = key if isinstance(key, str) else json.dumps(key)
        made[key if text in named else text] = _with_text_keys(each)
    return made


def parse_yaml(path: str | Path, text: str, error: type[TutelageError] = DataError) -> Any:
    """Return the value of a YAML file that holds this text, as JSON would have it: a date stays a
    text, and nothing is repeated by an alias. Raises `error` where it is none."""
    import yaml

    base: Any = yaml.SafeLoader

    def compose_node(self: Any, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("it has an alias (*name); write out what is meant")
        return base.compose_node(self, parent, index)

    def construct_mapping(self: Any, node: Any, deep: bool = False) -> Any:
        plain = [key for key, _ in node.value if isinstance(key.value, str)]
        unique_keys([(self.construct_object(k), None) for k in plain if k.tag != _TAG + "merge"])
        return base.construct_mapping(self, node, deep)

    lost = (_TAG + "binary", _TAG + "set")
    made = {k: v for k, v in base.yaml_constructors.items() if k not in lost}
    made[_TAG + "timestamp"] = base.construct_yaml_str
    names = {"compose_node": compose_node, "construct_mapping": construct_mapping}
    loader: Any = type("JSONLikeLoader", (base,), {**names, "yaml_constructors": made})
    try:
        return yaml.load(text, loader)
    except RecursionError as deep_error:
        raise error(f"{str(path)!r} is nested too deeply to be read") from deep_error
    except (yaml.YAMLError, ValueError, LookupError) as misfit:  # as by `!!int ''`
        where = " ".join(str(misfit).split())
        raise error(f"{str(path)!r} is no YAML: {where}") from misfit


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


def parse_nested_json(value: Any) -> Any:
    """`value`, or what it holds when it is JSON written as text. Raises `DataError` for a key that
    stands twice in one of its objects."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            return loads(value)
        except RepeatedKeyError as error:
            raise DataError(str(error)) from error
        except ValueError:
            return value
    return value


# ------------------------------------------------------------------ fields


def _number(value: Any) -> Any:
    if isinstance(value, bool):  # Python counts true as 1
        raise ValueError("give a number")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    """Texts; any other value becomes empty, and so does anything but a list."""
    value = parse_nested_json(value)
    if not isinstance(value, list):
        return ()
    return tuple(text if isinstance(text, str) else "" for text in cast("list[Any]", value))


def objects(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list; all else is left out, as what others write may be anything."""
    value = parse_nested_json(value)
    listed = cast("list[Any]", value) if isinstance(value, list) else []
    return [each for each in listed if isinstance(each, Mapping)]


Opened = BeforeValidator(parse_nested_json)
"""Marks a field whose value may be JSON written as text."""
AsText = Annotated[str, BeforeValidator(str)]
"""A text, or what has one: identifiers may be numbers."""
Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
"""A list of texts, or one written as text."""
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
    context: Any = None,
) -> Read:
    """`value` as `kind`. Raises `error` that says where, which field, its value, and the remedy.

    `known` are fields, for a hint at one that does not exist; or those of each field that holds
    objects by its name, with those of `value` itself under the empty one.
    """
    try:
        return kind.validate_python(value, context=context)
    except ValidationError as misfit:
        raise error(_explained(misfit, where, known)) from misfit


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


def _explained(
    misfit: ValidationError,
    where: str = "",
    known: Iterable[str] | Mapping[str, Iterable[str]] = (),
) -> str:
    """The first finding of pydantic in our words; `where` names the file and the row."""
    found = misfit.errors(include_url=False)[0]
    *above, last = found["loc"] or ("",)
    whole, where = where, where.removesuffix(": it")  # it has no field, and its field is no number
    inside = [part for part in (where if above else whole, _spelled(above)) if part]
    if found["type"] == "missing":
        return f"{': '.join(inside) or 'the row'} has no {last!r}; give one"
    if found["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        if isinstance(known, Mapping):
            known = known.get(str(above[0]) if above else "", ())
        hint = nearest(str(last), known)
        return f"{': '.join(inside) or 'the row'} has an unknown field {last!r}; {hint}"
    remedy = remedy_of(found)
    # What a whole row is refused for names its fields itself.
    if found["type"] == "value_error" and isinstance(found["input"], Mapping):
        return ": ".join(part for part in (where, remedy) if part)
    value = f"{_spelled(found['loc']) or 'the row'} is {found['input']!r:.200}; {remedy}"
    return ": ".join(part for part in (where, value) if part)


def remedy_of(found: ErrorDetails) -> str:
    """What fixes a value that pydantic refused."""
    context = found.get("ctx", {})
    if found["type"] == "value_error":
        return str(context["error"])
    known = _REMEDIES.get(found["type"])
    return found["msg"].lower() if known is None else known.format(**context)


def _spelled(place: Iterable[str | int]) -> str:
    """Where a value stands: `'name'`, or `targets.task_types[0]`, or `scores['small-7b']`."""
    parts = list(place)
    if len(parts) == 1 and isinstance(parts[0], str):
        return repr(parts[0])
    text = ""
    for part in parts:
        plain = isinstance(part, str) and (not text or part.isidentifier())
        text += f"{'.' if text else ''}{part}" if plain else f"[{part!r}]"
    return text


def spelled(
    row: Any, known: Iterable[str], instead: Iterable[str] = (), what: str = "the plan",
    wide: bool = True,
) -> Any:  # fmt: skip
    """`row`. Raises `DataError` for a field that is nearly one that it lacks, none of those that
    stand `instead` of each other lacking where one is given; others are of who wrote it. Where such
    fields are usual (not `wide`), only what is clearly a typing error is refused."""
    given = cast("Mapping[str, Any]", row) if isinstance(row, Mapping) else {}
    has = set(instead) if any(name in given for name in instead) else set[str]()
    lost = [name for name in known if name not in given and name not in has]
    meant = _is_misspelled if wide else _is_mistyped
    for key in [str(key) for key in given if key not in known]:
        if near := next((name for name in lost if meant(key, name)), None):
            raise DataError(f"{what} has an unknown field {key!r}; did you mean {near!r}?")
    return row


def _is_misspelled(key: str, name: str) -> bool:
    """Whether a field is another with a typing error, or what it is called for short."""
    one, other = key.lower(), name.lower()
    longer = other in one and len(one) > len(other) + 1
    near = bool(difflib.get_close_matches(one, (other,), cutoff=0.8)) and not longer
    return near or sorted(one) == sorted(other) or (one, other) == ("args", "arguments")


def _is_mistyped(key: str, name: str) -> bool:
    """Whether a field is another with its letters swapped, one of them lost or twice, or one for
    many. Another word is none, as "notes" and "parsed" are beside `nodes` and `passed`, nor another
    unit: what others write beside our fields is read."""
    one, other = key.lower(), name.lower()
    unit, its = (text.rpartition("_")[2] for text in (one, other))
    if unit != its and len(unit) < 3:
        return False
    if one.replace("_", "") == other.replace("_", ""):
        return True
    short, long = sorted((one, other), key=len)
    if long == f"{short}s" and not short.endswith("s"):
        return len(other) >= 8  # "worker" and "output" are words of their own
    lost = {other[:i] + other[i + 1 :] for i in range(len(other))}
    single = {one[:i] + one[i + 1 :] for i in range(1, len(one)) if one[i] == one[i - 1]}
    swapped = one[0] == other[0] and sorted(one) == sorted(other)
    return len(other) >= 6 and (swapped or one in lost or other in single)


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a name that does not exist: the nearest one, or all."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
