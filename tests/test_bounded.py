"""Tool arguments of any depth, lines of JSON, and addresses that need no proxy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tutelage.bounded import bypass_proxy_on_loopback, json_lines
from tutelage.policy.codec import Codec
from tutelage.tools.execute import execute_tool_calls
from tutelage.tools.tool import tool
from tutelage.types import Message, ToolCall

DEEP = (
    "[" * 100_000,
    "[" * 900 + "]" * 900,
    '{"a":' * 900 + "1" + "}" * 900,
    '{"x":' + "[" * 150 + "]" * 150 + "}",
)


@tool
def total(values: list[Any]) -> str:
    """Add up.

    Args:
        values: what to add
    """
    return str(len(values))


async def test_tool_arguments(tiny: Any) -> None:
    """The model hears of it, and the conversation that holds them can be rendered."""
    codec: Codec = tiny("qwen2").codec
    for deep in (
        *DEEP,
        '{"values": ' + "[" * 900 + "]" * 900 + "}",
        "\ud800",
        '{"values": ["\ud800"]}',
    ):
        call = ToolCall("c", "total", deep)
        (result,) = await execute_tool_calls([call], {"total": total})
        assert result.error == "invalid_arguments", deep[:40]
        history = (Message("user", "hi"), Message("assistant", None, (call,)))
        codec.render(history)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "localhost,127.0.0.1,::1"),
        ({"NO_PROXY": "corp.example, 10.0.0.1"}, "corp.example,10.0.0.1,localhost,127.0.0.1,::1"),
        ({"no_proxy": "localhost"}, "localhost,127.0.0.1,::1"),
        ({"NO_PROXY": "*", "no_proxy": "*"}, "*"),
    ],
)
def test_no_proxy_has_this_machine_in_both_spellings(before: dict[str, str], after: str) -> None:
    env = {**before, "HTTP_PROXY": "http://proxy.example:3128"}
    for _ in range(2):
        bypass_proxy_on_loopback(env)
        assert (env["NO_PROXY"], env["no_proxy"]) == (after, after)
    assert bypass_proxy_on_loopback({"PATH": "/bin"}) == {
        "PATH": "/bin"
    }  # without a proxy as it was


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_of_json_end_with_a_newline_alone(end: str) -> None:
    """Other line ends that Unicode knows may stand in a JSON string."""
    values = [{"x": f"a{c}b"} for c in "\u2028\u2029\x85\x1e\u00e9"]
    text = end * 2 + end.join(json.dumps(value, ensure_ascii=False) for value in values)
    for given in (text, text.encode()):
        lines = [*json_lines(given)]
        assert [json.loads(line) for _, line in lines] == values
        assert [number for number, _ in lines] == [3, 4, 5, 6, 7]
