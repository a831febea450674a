"""What is said of an argument that may be one of several things: what is wrong with the closest of
them, and never the name of a branch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from tutelage.tools import tool
from tutelage.tools.mcp import _read_schema  # pyright: ignore[reportPrivateUsage]
from tutelage.tools.schema import ArgumentError, Signature


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


INTEGER, STRING = "Input should be a valid integer", "Input should be a valid string"


@pytest.mark.parametrize(
    ("arguments", "of_function", "of_server"),
    [
        (
            {"size": 1.5},
            f"argument 'size': {INTEGER} or a valid string, got 1.5",
            "argument 'size': 1.5 does not fit anyOf",
        ),
        (
            {"points": ["k"]},
            f"argument 'points.0': {INTEGER}, got 'k'",
            "argument 'points.0': 'k' is not of type 'integer'",
        ),
        (
            {"points": 3},
            "argument 'points': Input should be a valid array, got 3",
            "argument 'points': 3 does not fit anyOf",
        ),
        (
            {"at": {"row": "k"}},
            f"argument 'at.row': {INTEGER}, got 'k'",
            "argument 'at.row': 'k' is not of type 'integer'",
        ),
        (
            {"at": {"row": 1, "z": 2}},
            "argument 'at.z': Unexpected keyword argument",
            "argument 'at'",
        ),
        (
            {"at": [{"row": 1}, {"row": None}]},
            f"argument 'at.1.row': {INTEGER}, got None",
            "argument 'at.1.row': None is not of type 'integer'",
        ),
        (
            {"color": "green"},
            "argument 'color': Input should be 'red' or 'blue', got 'green'",
            "argument 'color': 'green'",
        ),
        ({"shape": {"kind": "square"}}, "missing argument 'shape.side'", "argument 'shape"),
        (
            {"shape": {"kind": "star"}},
            "argument 'shape.kind': Input should be 'circle' or 'square', got 'star'",
            "argument 'shape",
        ),
        (
            {"scale": "3"},
            f"argument 'scale': {INTEGER} or a valid number, got '3'",
            "argument 'scale': '3'",
        ),
        (
            {"marks": {"a": [2]}},
            f"argument 'marks.a.0': {STRING}, got 2",
            "argument 'marks.a.0': 2 is not of type 'string'",
        ),
        ({"size": [1], "scale": {}}, "got [1]; argument 'scale'", "; argument 'scale': {}"),
    ],
)
def test_the_closest_of_several_things_says_what_is_wrong(
    arguments: dict[str, Any], of_function: str, of_server: str
) -> None:
    function = _refusal(draw.signature, arguments)
    assert of_function in function
    assert "Place" not in function
    assert of_server in _refusal(_read_schema(draw.parameters), arguments)
    assert function.endswith("expected {size?, points?, at?, color?, shape?, scale?, marks?}")


def test_what_only_pydantic_refuses_is_said() -> None:
    @tool
    def plan(day: date | int) -> str:
        """Plan."""
        return str(day)

    says = _refusal(plan.signature, {"day": "soon"})
    assert "argument 'day': Input should be a valid date" in says
    assert "or a valid integer, got 'soon'" in says


def test_arguments_of_which_one_of_two_is_needed_are_named() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "string"}, "name": {"type": "string"}},
        "oneOf": [{"required": ["id"]}, {"required": ["name"]}],
    }
    says = _refusal(_read_schema(schema), {})
    assert says.startswith("{} does not fit oneOf [{'required': ['id']}, {'required': ['name']}]")
    both = _refusal(_read_schema(schema), {"id": "a", "name": "b"})
    assert "does not fit oneOf" in both


def test_a_schema_that_refers_to_itself_ends() -> None:
    lists = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/l"}}]}
    schema = {"properties": {"l": {"$ref": "#/$defs/l"}}, "$defs": {"l": lists}}
    says = _refusal(_read_schema(schema), {"l": [[["x"]]]})
    assert says.startswith("argument 'l.0.0.0': 'x' does not fit anyOf")


def test_a_long_value_is_shortened() -> None:
    signature = _read_schema({"properties": {"n": {"type": "integer"}}})
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
    server = _read_schema(paged.parameters)
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
    assert "argument 'a'" in _refusal(_read_schema(schema), {"a": {}})
