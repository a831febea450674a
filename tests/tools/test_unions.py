"""What is said of an argument that may be one of several things: alike for functions and servers,
in words, and never by the branches of a schema."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from tutelage.tools import tool
from tutelage.tools.mcp import _signature  # pyright: ignore[reportPrivateUsage]
from tutelage.tools.schema import ArgumentError, Signature
from tutelage.tools.unions import union_problems, would_do


@dataclass
class Place:
    row: int
    column: int = 0


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: float


class Square(BaseModel):
    kind: Literal["square"]
    side: float


@tool
def draw(
    size: int | str = 0,
    points: list[int] | None = None,
    at: Place | list[Place] | None = None,
    color: Literal["red", "blue"] | None = None,
    shape: Circle | Square | None = None,
    scale: int | float = 1,
    marks: dict[str, int | list[str]] | None = None,
) -> str:
    """Draw."""
    return f"{size} {points} {at} {color} {shape} {scale} {marks}"


def _refusal(signature: Signature, arguments: object) -> str:
    with pytest.raises(ArgumentError) as caught:
        signature.read(json.dumps(arguments))
    return str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"size": 1.5}, "argument 'size': expected an integer or a string, got 1.5"),
        ({"points": ["k"]}, "argument 'points.0': expected an integer, got 'k'"),
        ({"points": 3}, "argument 'points': expected a list of integers or null, got 3"),
        ({"at": {"row": "k"}}, "argument 'at.row': expected an integer, got 'k'"),
        ({"at": {"row": 1, "z": 2}}, "unknown argument 'at.z'"),
        (
            {"at": 5},
            "argument 'at': expected an object with row or a list of objects or null, got 5",
        ),
        ({"at": [{"row": 1}, {"row": None}]}, "'at.1.row': expected an integer, got null"),
        ({"color": "green"}, "argument 'color': expected 'red' or 'blue' or null, got 'green'"),
        ({"shape": {"kind": "square"}}, "missing argument 'shape.side'"),
        (
            {"shape": {"kind": "star"}},
            "argument 'shape.kind': expected 'circle' or 'square', got 'star'",
        ),
        (
            {"shape": True},
            "argument 'shape': expected an object with kind='circle', radius or an object with "
            "kind='square', side or null, got true",
        ),
        ({"scale": "3"}, "argument 'scale': expected a number, got '3'"),
        ({"marks": {"a": [2]}}, "argument 'marks.a.0': expected a string, got 2"),
        ({"size": [1], "scale": {}}, "got [1]; argument 'scale': expected a number, got {}"),
    ],
)
def test_what_was_expected_is_said_alike_for_a_function_and_a_server(
    arguments: dict[str, Any], says: str
) -> None:
    of_function = _refusal(draw.signature, arguments)
    assert says in of_function
    assert of_function == _refusal(_signature(draw.parameters), arguments)
    assert of_function.endswith("expected {size?, points?, at?, color?, shape?, scale?, marks?}")


def test_what_only_pydantic_refuses_is_said_by_what_would_do() -> None:
    @tool
    def plan(day: date | int) -> str:
        """Plan."""
        return str(day)

    says = "argument 'day': expected a string that is a date or an integer, got 'soon'"
    assert says in _refusal(plan.signature, {"day": "soon"})


def test_arguments_of_which_one_of_two_is_needed_are_named() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "string"}, "name": {"type": "string"}},
        "oneOf": [{"required": ["id"]}, {"required": ["name"]}],
    }
    says = _refusal(_signature(schema), {})
    assert says.startswith("the arguments: expected an object with id or an object with name, got")
    both = _refusal(_signature(schema), {"id": "a", "name": "b"})
    assert both.startswith("the arguments: expected just one of an object with id or an object")


def test_a_schema_that_refers_to_itself_ends() -> None:
    tree: dict[str, Any] = {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/tree"}]}
    root = {"$defs": {"tree": tree}}
    assert not union_problems("x", tree, root, "t")
    assert would_do("x", tree, root, "t") == ["argument 't': expected an integer, got 'x'"]
    lists = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/l"}}]}
    (says,) = union_problems([[["x"]]], lists, {"$defs": {"l": lists}}, "l")
    assert says == "argument 'l.0.0.0': expected an integer or a list, got 'x'"


def test_a_long_value_is_shortened() -> None:
    signature = _signature({"properties": {"n": {"type": "integer"}}})
    says = _refusal(signature, {"n": "x" * 100_000})
    assert len(says) < 200
    assert "does not fit type 'integer'" in says


def test_a_bound_that_is_broken_is_told_and_not_the_kind() -> None:
    @tool
    def paged(
        limit: Annotated[int, Field(ge=1)] | None = None,
        either: Annotated[int, Field(ge=5)] | Annotated[str, Field(max_length=2)] = 5,
    ) -> int:
        """Pages."""
        return len(f"{limit}{either}")

    says = "argument 'limit': Input should be greater than or equal to 1, got 0"
    assert says in _refusal(paged.signature, {"limit": 0})
    assert "'either': Input should be greater than or equal to 5" in (
        _refusal(paged.signature, {"either": 1})
    )
    assert "at most 2 characters" in _refusal(paged.signature, {"either": "abc"})
    server = _signature(paged.parameters)
    assert "argument 'limit': 0 is less than the minimum of 1" in _refusal(server, {"limit": 0})
    assert "argument 'either': 'abc' is too long" in _refusal(server, {"either": "abc"})


def test_a_union_that_is_missing_is_told_as_missing() -> None:
    @tool
    def needs(x: int | str, y: int | None) -> str:
        """Needs both."""
        return f"{x}{y}"

    assert "missing argument 'x'; missing argument 'y'" in _refusal(needs.signature, {})


def test_what_a_reference_beside_a_union_refuses_is_refused() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A", "anyOf": [{"type": "string"}]}},
        "$defs": {"A": {"type": "object"}},
    }
    assert "argument 'a'" in _refusal(_signature(schema), {"a": {}})
