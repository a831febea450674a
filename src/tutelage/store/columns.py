"""Map dataclasses to table columns and rows back to dataclasses.

The fields of a record define its columns: their order, type, nullability, and whether they count in
comparisons (`field(compare=False)` excludes a field from the digest and from equality). A new field
of a record is therefore a new column. `schema.py` assigns records to tables and `values.py` encodes
single values; the columns that locate a row (its run, its position) are defined by the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import partial
from types import NoneType, UnionType
from typing import Any, Generic, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter
from sqlalchemy import BigInteger, Column, Double, LargeBinary
from sqlalchemy.types import TypeEngine

from tutelage.store.values import (
    ExactText,
    dump_json,
    load_json,
    pack,
    to_finite,
    unpack,
)

T = TypeVar("T")
Row = dict[str, Any]
RowLike = Mapping[Any, Any]
Encode = Callable[[Any, str], Any]
"""Converts a value for its column; the second argument names it in errors."""
Decode = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Field:
    """Mapping of one record field to a column."""

    name: str
    """Name of the column."""
    label: str
    """Name for messages."""
    type: TypeEngine[Any]
    nullable: bool
    compared: bool
    """True if the field counts when records are compared."""
    encode: Encode
    decode: Decode


class Columns(Generic[T]):
    """Mapping of a record class to table columns.

    `flat` names nested records whose fields become columns of this table, and their column
    prefixes; if the first of these columns is null, the nested record is None. `omit` names fields
    that are stored in other tables and passed to `decode`.
    """

    def __init__(
        self,
        cls: type[T],
        *,
        flat: Mapping[str, str] | None = None,
        omit: Collection[str] = (),
        prefix: str = "",
        optional: bool = False,
    ) -> None:
        self._cls, nested, hints = cls, flat or {}, get_type_hints(cls)
        self._fields: dict[str, _Field] = {}
        self._flat: dict[str, Columns[Any]] = {}
        self._columns: list[_Field] = []
        for f in fields(cast("Any", cls)):
            if f.name in nested:
                type_hint, can_be_none = _strip_none(hints[f.name])
                part = Columns[Any](type_hint, prefix=nested[f.name], optional=can_be_none)
                self._flat[f.name] = part
                self._columns += part._columns
            elif f.name not in omit:
                type_hint, nullable = _strip_none(hints[f.name])
                name, (type_, encode, decode) = prefix + f.name, _column_codec(type_hint)
                label, nullable = name.replace("_", " "), nullable or optional
                field_ = _Field(name, label, type_, nullable, f.compare, encode, decode)
                self._fields[f.name] = field_
                self._columns.append(field_)

    def columns(self, keys: Collection[str] = ()) -> list[Column[Any]]:
        """Create the columns of a table whose primary key is `keys`."""
        columns: list[Column[Any]] = []
        for f in self._columns:
            key = f.name in keys
            nullable = f.nullable and not key
            column = Column(f.name, f.type, primary_key=key, nullable=nullable, autoincrement=False)
            columns.append(column)
        return columns

    def encode(self, record: T, label: str) -> Row:
        """Convert a record to a table row.

        `label` names the record in errors. Raises `StoreError` for values that cannot be stored
        exactly.
        """
        row: Row = {}
        for name, f in self._fields.items():
            value = getattr(record, name)
            row[f.name] = None if value is None else f.encode(value, f"{f.label} of {label}")
        for name, part in self._flat.items():
            nested_record = getattr(record, name)
            row |= part.empty_row() if nested_record is None else part.encode(nested_record, label)
        return row

    def empty_row(self) -> Row:
        """Return a row with null in all columns, for a record that is None."""
        return {f.name: None for f in self._columns}

    def decode(self, row: RowLike, **others: Any) -> T:
        """Convert a table row to a record. `others` are the fields that other tables store."""
        values = {
            name: None if row[f.name] is None else f.decode(row[f.name])
            for name, f in self._fields.items()
        }
        for name, part in self._flat.items():
            missing = row[part._columns[0].name] is None
            values[name] = None if missing else part.decode(row)
        return self._cls(**values, **others)

    def compare_key(self, row: Row) -> Row:
        """Return the values of a row that determine if two records are equal."""
        return {f.name: row[f.name] for f in self._columns if f.compared}


def _column_codec(type_hint: Any) -> tuple[TypeEngine[Any], Encode, Decode]:
    """Return the SQL type, encoder and decoder for a Python type."""
    if isinstance(type_hint, type) and issubclass(type_hint, Enum):
        return ExactText(), lambda value, _: type_hint(value).value, type_hint
    if get_origin(type_hint) is Literal:
        type_hint = str
    if type_hint in _PLAIN:
        return _PLAIN[type_hint]
    read = TypeAdapter[Any](type_hint).validate_python
    return ExactText(), dump_json, lambda text: read(load_json(text))


def _strip_none(hint: Any) -> tuple[Any, bool]:
    """Remove `| None` from a type hint. Return the hint, and True if it was optional."""
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    kinds = [type_hint for type_hint in get_args(hint) if type_hint is not NoneType]
    if len(kinds) != 1:
        raise TypeError(f"a column must have one type, but {hint} has several types")
    return kinds[0], True


def _keep_value(value: Any, label: str = "") -> Any:
    return value


_PLAIN: Mapping[Any, tuple[TypeEngine[Any], Encode, Decode]] = {
    str: (ExactText(), _keep_value, _keep_value),
    int: (BigInteger(), _keep_value, _keep_value),
    float: (Double(), to_finite, _keep_value),
    bytes: (LargeBinary(), _keep_value, _keep_value),
    tuple[int, ...]: (LargeBinary(), partial(pack, "i"), partial(unpack, "i")),
    tuple[float, ...]: (LargeBinary(), partial(pack, "d"), partial(unpack, "d")),
}
"""Column type, encoder and decoder of types that are not stored as JSON."""
