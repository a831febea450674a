"""`@tool`: schemas from signatures, arguments that do not fit, and names to tools."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired

import pytest
import typing_extensions
from pydantic import BaseModel

from tutelage.errors import ConfigError, ToolDefinitionError
from tutelage.tools import Tool, resolve_tools, tool
from tutelage.tools.mcp import _read_schema  # pyright: ignore[reportPrivateUsage]
from tutelage.tools.schema import ArgumentError, Signature
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
        {"timeout": float("nan")},
        {"max_chars": 3},
    ],
)
def test_options_without_sense_are_refused(options: dict[str, Any]) -> None:
    def fn(n: int) -> int:
        return n

    with pytest.raises(ToolDefinitionError):
        tool(**options)(fn)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ('{"n": 1', "character 8"),
        ("[1]", "an array"),
        ("{}", "missing argument 'n'; expected {n, k?}"),
        ('{"n": "1"}', "argument 'n': Input should be a valid integer, got '1'"),
        ('{"n": 1, "m": 2}', "unknown argument 'm'"),
        ('{"n": 1, "n": 2}', "'n' is given twice"),
        ("[" * 200_000, "cannot be read"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_not_converted(arguments: str, says: str) -> None:
    @tool
    def fn(n: int, k: int = 1) -> int:
        return n * k

    with pytest.raises(ArgumentError, match=re.escape(says)):
        fn.signature.read(arguments)


# ------------------------------------------------------------ unions


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


INTEGER = "Input should be a valid integer"


@pytest.mark.parametrize(
    ("arguments", "of_function", "of_server"),
    [
        (
            {"size": 1.5},
            f"argument 'size': {INTEGER} or a valid string, got 1.5",
            "argument 'size': 1.5 does not fit anyOf",
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


def test_a_schema_that_refers_to_itself_ends() -> None:
    lists = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/l"}}]}
    schema = {"properties": {"l": {"$ref": "#/$defs/l"}}, "$defs": {"l": lists}}
    says = _refusal(_read_schema(schema), {"l": [[["x"]]]})
    assert says.startswith("argument 'l.0.0.0': 'x' does not fit anyOf")


# ------------------------------------------------------------ names to tools


def write(folder: Path, text: str, name: str = "mine.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_built_in_tools_by_name() -> None:
    assert list(resolve_tools(["lookup", "calculator"])) == ["lookup", "calculator"]
    with pytest.raises(ConfigError, match=r"did you mean 'calculator'\?"):
        resolve_tools(["calculater"])
    with pytest.raises(ConfigError, match="duplicate tool name"):
        resolve_tools(["lookup", "lookup"])


def test_tools_and_plain_functions_from_a_file(tmp_path: Path) -> None:
    write(tmp_path, "VALUE = 5\n", "beside_tutelage_test.py")
    file = write(
        tmp_path,
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from beside_tutelage_test import VALUE\n"
        "from tutelage.tools import tool\n"
        "@dataclass\n"
        "class P:\n"
        "    x: int\n"
        "@tool('other')\n"
        "def one(p: P) -> int: return p.x + VALUE\n"
        "def two(n: int) -> int: return n\n"
        "def three(n): return n\n"
        "number = 3\n",
    )
    path = list(sys.path)
    tools = resolve_tools([f"{file}:one", f"{file}:two"])
    assert sys.path == path
    assert list(tools) == ["other", "two"]
    assert tools["other"](**tools["other"].signature.read('{"p": {"x": 1}}')) == 6
    assert tools["two"].fn.__module__ == tools["other"].fn.__module__
    with pytest.raises(ConfigError, match="did you mean 'two'"):
        resolve_tools([f"{file}:twoo"])
    with pytest.raises(ConfigError, match="is a int"):
        resolve_tools([f"{file}:number"])
    with pytest.raises(ToolDefinitionError, match="no type hint"):
        resolve_tools([f"{file}:three"])
    assert list(resolve_tools([file])) == ["other"]
    plain = write(tmp_path, "from math import sqrt\ndef two(n: int) -> int: return n\n", "plain.py")
    with pytest.raises(ConfigError, match="no @tool in this file; to use a function"):
        resolve_tools([plain])


def test_a_changed_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the same second too, and of the same size, where Python keeps what it compiled."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = write(tmp_path, "def f(n: int) -> int: return 1\n")
    assert resolve_tools([f"{file}:f"])["f"](0) == 1
    before = Path(file).stat()
    write(tmp_path, "def f(n: int) -> int: return 2\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert resolve_tools([f"{file}:f"])["f"](0) == 2


@pytest.mark.parametrize("text", ["def f(:\n", "import sys; sys.exit(1)\n"])
def test_a_file_that_fails_is_a_config_error(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError, match="failed to load"):
        resolve_tools([f"{file}:f"])
