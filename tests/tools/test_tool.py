"""`@tool`: schemas from signatures, and signatures that are refused."""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
from typing import Any, Literal, NotRequired

import pytest
import typing_extensions
from pydantic import BaseModel

from tutelage.errors import ToolDefinitionError
from tutelage.tools import Tool, tool
from tutelage.tools.schema import ArgumentError
from tutelage.types import ToolSpec

OPAQUE_DEFAULT = object()
NO_WEIGHTS: dict[str, int] = {}


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    title: str = "origin"


class Box(BaseModel):
    corner: Point
    sides: list[float]


class Options(typing_extensions.TypedDict):
    depth: int
    note: NotRequired[str]


def test_the_schema_covers_the_usual_types_and_carries_the_docstring() -> None:
    @tool
    def paint(
        colour: Colour,
        box: Box,
        options: list[Options] | None,
        mode: Literal["fast", "good"] = "fast",
        schema: int | None = None,
        _weights: dict[str, int] = NO_WEIGHTS,
        marker: Any = OPAQUE_DEFAULT,
    ) -> str:
        """Paint a box.

        Slowly.

        Args:
            colour: What colour,
                exactly.
            mode (str): How: fast or good.

        Returns:
            colour: not a parameter.
        """
        return f"{colour} {box} {options} {mode} {schema} {_weights}"

    assert paint.spec.description == "Paint a box.\nSlowly."
    schema = paint.parameters
    properties = schema["properties"]
    assert schema["required"] == ["colour", "box", "options"]
    assert schema["additionalProperties"] is False
    assert properties["colour"]["description"] == "What colour, exactly."
    assert properties["mode"] == {
        "enum": ["fast", "good"],
        "type": "string",
        "default": "fast",
        "description": "How: fast or good.",
    }
    assert schema["$defs"]["Colour"]["enum"] == ["red", "blue"]
    assert schema["$defs"]["Options"]["required"] == ["depth"]
    # A property may be called `title`, although pydantic's own titles are left out.
    assert schema["$defs"]["Point"]["properties"]["title"] == {
        "type": "string",
        "default": "origin",
    }
    assert "title" not in schema
    assert "default" not in properties["marker"]

    read = paint.signature.read(
        '{"colour": "red", "box": {"corner": {"x": 1}, "sides": [1, 2.5]}, '
        '"options": [{"depth": 2}], "schema": 3, "_weights": {"a": 1}}'
    )
    assert read == {
        "colour": Colour.RED,
        "box": Box(corner=Point(1), sides=[1.0, 2.5]),
        "options": [{"depth": 2}],
        "schema": 3,
        "_weights": {"a": 1},
    }
    assert "mode" not in read


def test_types_defined_inside_a_function_are_found() -> None:
    class Local(BaseModel):
        n: int

    @tool("renamed", timeout=2.0, terminal=True)
    def answer(value: Local) -> int:
        return value.n

    assert (answer.name, answer.timeout, answer.terminal) == ("renamed", 2.0, True)
    assert answer(**answer.signature.read('{"value": {"n": 3}}')) == 3


def test_a_tool_with_side_effects_says_so_and_models_are_not_told() -> None:
    @tool(destructive=True)
    def wipe(path: str) -> str:
        """Wipe a file."""
        return path

    @tool
    def look(path: str) -> str:
        """Wipe a file."""
        return path

    assert (wipe.destructive, look.destructive) == (True, False)
    assert wipe.bind("x").destructive
    assert wipe.spec == ToolSpec("wipe", look.spec.description, look.spec.parameters)


def test_a_tool_without_parameters_takes_an_empty_object_or_nothing() -> None:
    @tool()
    def ping() -> str:
        return "pong"

    assert ping.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert ping.signature.read("") == ping.signature.read("{}") == {}


def test_methods_bind_to_their_instance() -> None:
    class Counter:
        def __init__(self) -> None:
            self.total = 0

        @tool
        def add(self, n: int) -> int:
            """Add n."""
            self.total += n
            return self.total

        @tool
        @staticmethod
        def double(n: int) -> int:
            return 2 * n

    one, other = Counter(), Counter()
    assert isinstance(one.add, Tool)
    assert list(one.add.parameters["properties"]) == ["n"]
    assert (one.add(2), one.add(3), other.add(10)) == (2, 5, 10)
    assert one.double(4) == Counter.double(4) == 8


def untyped(x, y: int) -> int:
    return x + y


def unknown_type(x: int) -> int:
    return x


unknown_type.__annotations__["x"] = "Missing"


def anything(*args: int) -> int:
    return len(args)


def keywords(**kwargs: int) -> int:
    return len(kwargs)


def positional(x: int, /) -> int:
    return x


class Opaque:
    pass


def opaque(x: Opaque) -> int:
    return id(x)


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (untyped, "'x' has no type hint"),
        (unknown_type, "Missing"),
        (anything, "declare each parameter by name"),
        (keywords, "declare each parameter by name"),
        (positional, "positional-only"),
        (opaque, "cannot create a JSON schema"),
        (functools.partial(positional, 1), "invalid tool name"),
    ],
)
def test_signatures_without_a_schema_are_refused(fn: Any, says: str) -> None:
    with pytest.raises(ToolDefinitionError, match=says):
        tool(fn)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "two words"},
        {"name": "x" * 65},
        {"timeout": 0.0},
        {"timeout": float("nan")},
        {"timeout": float("inf")},
        {"max_chars": 3},
    ],
)
def test_options_without_sense_are_refused(options: dict[str, Any]) -> None:
    def fn(n: int) -> int:
        return n

    with pytest.raises(ToolDefinitionError):
        tool(**options)(fn)


def test_a_lone_surrogate_is_refused_as_what_it_is() -> None:
    @tool
    def say(text: str) -> str:
        return text

    with pytest.raises(ArgumentError, match=r"unicode string; expected \{text\}"):
        say.signature.read('{"text": "a\udc80"}')


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ('{"n": 1', "character 8"),
        ("[1]", "an array"),
        ("null", "null"),
        ("{}", "missing argument 'n'; expected {n, k?}"),
        ('{"n": "1"}', "argument 'n': Input should be a valid integer, got '1'"),
        ('{"n": true}', "argument 'n'"),
        ('{"n": 1, "m": 2}', "unknown argument 'm'"),
        ('{"n": 1, "n": 2}', "'n' is given twice"),
        ('{"n": NaN}', "NaN"),
        ("[" * 200_000, "cannot be read"),
        ('{"n": ' + "9" * 5000 + "}", "cannot be read"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_not_converted(arguments: str, says: str) -> None:
    @tool
    def fn(n: int, k: int = 1) -> int:
        return n * k

    with pytest.raises(ArgumentError, match=re.escape(says)):
        fn.signature.read(arguments)
