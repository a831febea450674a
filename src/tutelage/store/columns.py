"""A dataclass as columns of a table, and a row as the dataclass again: one declaration for both.

The fields of a record decide its columns: their order, their types, which may be empty, and which
count when two records are compared (`field(compare=False)` takes a field out of the digest as well
as out of equality). So a new field of a record is a new column and nothing else. `schema.py` says
which records make which tables, `values.py` how one value is written; the columns that place a row
(its run, its position) belong to the tables.
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
    finite,
    load_json,
    pack,
    unpack,
)

T = TypeVar("T")
Row = dict[str, Any]
RowLike = Mapping[Any, Any]
Encode = Callable[[Any, str], Any]
"""A value and how to name it in an error; gives what the column holds."""
Decode = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of a record as a column."""

    name: str
    """Of the column."""
    words: str
    """For messages."""
    type: TypeEngine[Any]
    nullable: bool
    counts: bool
    """Whether a record with another value is another record."""
    encode: Encode
    decode: Decode


class Columns(Generic[T]):
    """The columns of a record class.

    `flat` names fields whose own fields are columns here, with the prefix that these get; where
    such a field may be None, an empty first column says that it is. `apart` names fields that
    other tables hold: `decode` is given them.
    """

    def __init__(
        self,
        cls: type[T],
        *,
        flat: Mapping[str, str] | None = None,
        apart: Collection[str] = (),
        prefix: str = "",
        optional: bool = False,
    ) -> None:
        self._cls, nested, hints = cls, flat or {}, get_type_hints(cls)
        self._own: dict[str, _Field] = {}
        self._flat: dict[str, Columns[Any]] = {}
        self._all: list[_Field] = []
        for f in fields(cast("Any", cls)):
            if f.name in nested:
                kind, may_be_none = _without_none(hints[f.name])
                part = Columns[Any](kind, prefix=nested[f.name], optional=may_be_none)
                self._flat[f.name] = part
                self._all += part._all
            elif f.name not in apart:
                kind, nullable = _without_none(hints[f.name])
                name, (type_, encode, decode) = prefix + f.name, _column(kind)
                words, nullable = name.replace("_", " "), nullable or optional
                own = _Field(name, words, type_, nullable, f.compare, encode, decode)
                self._own[f.name] = own
                self._all.append(own)

    def columns(self, keys: Collection[str] = ()) -> list[Column[Any]]:
        """New columns for a table; those of `keys` belong to its primary key."""
        made: list[Column[Any]] = []
        for f in self._all:
            key = f.name in keys
            null = f.nullable and not key
            column = Column(f.name, f.type, primary_key=key, nullable=null, autoincrement=False)
            made.append(column)
        return made

    def encode(self, record: T, where: str) -> Row:
        """The record's row; `where` names it in errors. Raises `StoreError` for what cannot be
        stored exactly."""
        row: Row = {}
        for name, f in self._own.items():
            value = getattr(record, name)
            row[f.name] = None if value is None else f.encode(value, f"{f.words} of {where}")
        for name, part in self._flat.items():
            inner = getattr(record, name)
            row |= part.empty() if inner is None else part.encode(inner, where)
        return row

    def empty(self) -> Row:
        """The row of no record."""
        return {f.name: None for f in self._all}

    def decode(self, row: RowLike, **apart: Any) -> T:
        """The record whose row this is, with the fields that other tables hold."""
        values = {
            name: None if row[f.name] is None else f.decode(row[f.name])
            for name, f in self._own.items()
        }
        for name, part in self._flat.items():
            missing = row[part._all[0].name] is None
            values[name] = None if missing else part.decode(row)
        return self._cls(**values, **apart)

    def counted(self, row: Row) -> Row:
        """What of a row decides whether two records are equal."""
        return {f.name: row[f.name] for f in self._all if f.counts}


def _column(kind: Any) -> tuple[TypeEngine[Any], Encode, Decode]:
    """The type of a column, and how a value comes into it and out of it."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ExactText(), lambda value, _: kind(value).value, kind
    if get_origin(kind) is Literal:
        kind = str
    if kind is bool:
        raise TypeError("bool columns are not supported yet: define here how they are written")
    if kind in _PLAIN:
        return _PLAIN[kind]
    read = TypeAdapter[Any](kind).validate_python
    return ExactText(), dump_json, lambda text: read(load_json(text))


def _without_none(hint: Any) -> tuple[Any, bool]:
    """A type without its `| None`, and whether it had one."""
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    if len(kinds) != 1:
        raise TypeError(f"a column must have one type, but {hint} has several")
    return kinds[0], True


def _same(value: Any, where: str = "") -> Any:
    return value


_PLAIN: Mapping[Any, tuple[TypeEngine[Any], Encode, Decode]] = {
    str: (ExactText(), _same, _same),
    int: (BigInteger(), _same, _same),
    float: (Double(), finite, _same),
    bytes: (LargeBinary(), _same, _same),
    tuple[int, ...]: (LargeBinary(), partial(pack, "i"), partial(unpack, "i")),
    tuple[float, ...]: (LargeBinary(), partial(pack, "d"), partial(unpack, "d")),
}
"""The same for types that need no JSON."""
