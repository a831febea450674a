"""A record's fields are its columns: what is declared once comes back as it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest
from sqlalchemy import BigInteger, Double, LargeBinary

from tutelage.errors import StoreError
from tutelage.store.columns import Columns
from tutelage.store.values import ExactText, dump_json, load_json


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Leaf:
    """Stored as JSON inside a record."""

    name: str
    note: str | None = None
    more: tuple[str, ...] = ()
    size: int = 3


@dataclass(frozen=True, slots=True)
class Part:
    """Its fields are columns of the record that has one."""

    colour: Colour
    said: str | None = None


@dataclass(frozen=True, slots=True)
class Thing:
    """One of each kind of field."""

    id: str
    number: int
    share: float
    ids: tuple[int, ...]
    logs: tuple[float, ...]
    fields: Mapping[str, Any]
    leaves: tuple[Leaf, ...] = ()
    blob: bytes | None = None
    part: Part | None = None
    excluded: tuple[str, ...] = ()
    clock: float = field(default=0.0, compare=False)


THING = Columns(Thing, flat={"part": "part_"}, omit=("excluded",))
FULL = Thing(
    "a", 2**40, 0.1 + 0.2, (1, -1), (-0.5, float("-inf")), {"z": 1, "a": [None]},
    (Leaf("x"), Leaf("y", "n", ("m",), 4)), b"\x00", Part(Colour.RED, "hm"), ("kept",), 9.5,
)  # fmt: skip
BARE = Thing("b", 0, 0.0, (), (), {})


@pytest.mark.parametrize("given", [FULL, BARE])
def test_a_record_comes_back(given: Thing) -> None:
    row = THING.encode(given, "thing")
    back = THING.decode(row, excluded=given.excluded)
    assert back == given
    assert back.clock == given.clock


def test_fields_are_columns() -> None:
    columns = {c.name: c for c in THING.columns(["id"])}
    assert list(columns) == [
        "id", "number", "share", "ids", "logs", "fields", "leaves", "blob",
        "part_colour", "part_said", "clock",
    ]  # fmt: skip
    kinds = {name: type(column.type) for name, column in columns.items()}
    assert kinds["number"] is BigInteger
    assert kinds["share"] is Double
    assert kinds["ids"] is kinds["logs"] is kinds["blob"] is LargeBinary
    assert kinds["fields"] is kinds["leaves"] is kinds["part_colour"] is ExactText
    empty = {name for name, column in columns.items() if column.nullable}
    assert empty == {"blob", "part_colour", "part_said"}
    assert [name for name, column in columns.items() if column.primary_key] == ["id"]


def test_what_is_no_part_of_equality_is_not_counted() -> None:
    row = THING.encode(FULL, "thing")
    assert row.keys() - THING.comparable(row).keys() == {"clock"}


def test_json_leaves_out_what_is_empty_by_default() -> None:
    text = dump_json((Leaf("x"), Leaf("y", "n")), "leaves")
    assert load_json(text) == [{"name": "x", "size": 3}, {"name": "y", "note": "n", "size": 3}]


def test_an_error_names_the_field_and_the_record() -> None:
    with pytest.raises(StoreError, match=r"fields of thing 'b'\['x'\] is nan"):
        THING.encode(Thing("b", 0, 0.0, (), (), {"x": float("nan")}), "thing 'b'")


def test_a_field_of_several_types_is_refused_when_it_is_declared() -> None:
    @dataclass
    class Odd:
        value: int | str

    with pytest.raises(TypeError, match="several"):
        Columns(Odd)
