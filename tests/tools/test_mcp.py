"""Tools of MCP servers: in this process, as a command, over HTTP; for a run and for a rollout."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="mcp is not installed: tutelage[mcp]")


from tutelage.environments import rollout_environments
from tutelage.errors import ConfigError
from tutelage.tools import execute_tool_calls, resolve_tools
from tutelage.tools.registry import close_tools
from tutelage.tools.tool import Tool
from tutelage.types import Task, ToolCall, ToolResult

ODD = shlex.join([sys.executable, str(Path(__file__).with_name("mcp_servers.py"))])
_CALCULATOR = Path(__file__).parents[2] / "examples" / "math_mcp" / "calculator_server.py"
CALCULATOR = shlex.join([sys.executable, str(_CALCULATOR)])
HERE = f"{_CALCULATOR}:server"
"""The calculator as an object in this process."""


def ask(name: str, arguments: str = "{}", call_id: str = "c") -> ToolCall:
    return ToolCall(call_id, name, arguments)


async def run(tools: dict[str, Tool], *calls: ToolCall) -> list[ToolResult]:
    return await execute_tool_calls(calls, tools)


@asynccontextmanager
async def rollout_tools(server: str, timeout: float = 10.0) -> AsyncGenerator[dict[str, Tool]]:
    """The tools of a server that a rollout has to itself."""
    named = resolve_tools([f"mcp/rollout:{server}"])
    async with rollout_environments(Task("t", {"question": "?"})) as environments:
        bound = await environments.bind(named)
        yield {name: replace(tool, timeout=timeout) for name, tool in bound.items()}


@pytest.fixture(scope="module")
def shared() -> Iterator[dict[str, Tool]]:
    """The odd server as a command, for all tests of this module."""
    tools = resolve_tools([f"mcp:{ODD}"])
    yield tools
    close_tools(tools)


# ---------------------------------------------------------------- our calculator


async def test_a_wrong_expression_is_an_error_of_the_tool() -> None:
    async with rollout_tools(HERE) as tools:
        (result,) = await run(tools, ask("calculator", '{"expression": "17 +* 2"}'))
        assert result.error == "raised"
        assert "unexpected '*' at position 5" in result.text


async def test_arguments_are_checked_before_the_server_sees_them() -> None:
    async with rollout_tools(HERE) as tools:
        (result,) = await run(tools, ask("calculator", '{"expression": 3}'))
        assert result.error == "invalid_arguments"
        assert "argument 'expression': 3 is not of type 'string'" in result.text


# ---------------------------------------------------------------- what servers answer


async def test_results_come_in_the_order_of_the_calls(shared: dict[str, Tool]) -> None:
    calls = [ask("slow", f'{{"seconds": {0.3 - 0.1 * i}, "text": "{i}"}}') for i in range(3)]
    assert [r.text for r in await run(shared, *calls)] == ["0", "1", "2"]


def test_annotations_say_which_tools_are_destructive_and_the_protocol_where_there_are_none(
    shared: dict[str, Tool],
) -> None:
    told = {name: shared[name].destructive for name in ("look", "add", "wipe", "pid")}
    assert told == {"look": False, "add": False, "wipe": True, "pid": True}
    ours = resolve_tools([f"mcp:{HERE}"])
    close_tools(ours)
    assert [tool.destructive for tool in ours.values()] == [False]


async def test_a_structured_result_a_long_one_and_an_odd_name(shared: dict[str, Tool]) -> None:
    point, long, dotted = await run(
        shared, ask("point", '{"x": 1, "y": -2}'), ask("long"), ask("dotted_name")
    )
    assert point.text.replace("\n", "").replace(" ", "") == '{"x":1,"y":-2}'
    assert len(long.text) <= shared["long"].max_chars
    assert "characters cut" in long.text
    assert dotted.text == "dotted"


async def test_a_list_stays_a_list_however_many_items_it_has(shared: dict[str, Tool]) -> None:
    asked = [ask("titles", f'{{"count": {count}}}') for count in range(3)]
    none, one, two, wrapping = await run(shared, *asked, ask("wrapping"))
    assert (none.text, one.text, two.text) == ("[]", '["part 0"]', '["part 0", "part 1"]')
    assert json.loads(wrapping.text) == {"result": ["a"]}
    (nothing,) = await run(shared, ask("phone", '{"name": "Ada"}'))
    assert nothing.text == "null"


@pytest.mark.full  # three seconds of starting a server
async def test_a_call_out_of_time_is_cancelled_on_the_server(tmp_path: Path) -> None:
    async with rollout_tools(ODD, timeout=2.0) as tools:
        mark = tmp_path / "mark"
        (result,) = await run(tools, ask("wait", f'{{"path": "{mark}"}}'))
        assert (result.error, "took longer than 2 seconds" in result.text) == ("timeout", True)
        for _ in range(1000):
            if mark.exists():
                break
            await asyncio.sleep(0.05)
        assert mark.read_text() == "cancelled"
        (after,) = await run(tools, ask("pid"))  # the server goes on
        assert after.error is None


# ---------------------------------------------------------------- life and death


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_the_server_ends_with_the_block() -> None:
    async with rollout_tools(ODD) as tools:
        (result,) = await run(tools, ask("pid"))
        assert alive(int(result.text))
    assert not alive(int(result.text))
    (after,) = await run(tools, ask("pid"))
    assert (after.error, after.text) == ("raised", "Error: the MCP server of this tool has ended")


@pytest.mark.full  # three seconds of starting a server
async def test_the_server_ends_when_the_rollout_is_cancelled() -> None:
    pids: list[int] = []

    async def rollout() -> None:
        async with rollout_tools(ODD) as tools:
            pids.append(int((await run(tools, ask("pid")))[0].text))
            await asyncio.sleep(600)

    task = asyncio.create_task(rollout())
    async with asyncio.timeout(20):
        while not pids:
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not alive(pids[0])


def test_a_shared_server_serves_several_event_loops(shared: dict[str, Tool]) -> None:
    first, second = (asyncio.run(run(shared, ask("pid")))[0].text for _ in range(2))
    assert first == second


@pytest.mark.full
def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(ConfigError, match=r"MCP server(.|\n)*no licence found"):
        resolve_tools([f"mcp:{ODD} --fail"])


# ---------------------------------------------------------------- by name


@pytest.mark.full
async def test_a_rollout_has_its_own_server_and_closes_it() -> None:
    tools = resolve_tools([f"mcp/rollout:{ODD}"])

    async def rollout() -> tuple[str, str]:
        async with rollout_environments(Task("t", {"question": "?"})) as environments:
            bound = await environments.bind(tools)
            (first,) = await run(bound, ask("pid"))
            (second,) = await run(bound, ask("pid"))
            assert alive(int(first.text))
        return first.text, second.text

    (a, b), (c, d) = await asyncio.gather(rollout(), rollout())
    assert a == b != c == d
    assert not alive(int(a))
    assert not alive(int(c))


def test_a_server_object_in_a_file(tmp_path: Path) -> None:
    tools = resolve_tools([f"mcp:{HERE}"])
    (result,) = asyncio.run(run(tools, ask("calculator", '{"expression": "6*7"}')))
    close_tools(tools)
    assert result.text == "42"
    path = tmp_path / "mine.py"
    path.write_text("server = 3\n")
    with pytest.raises(ConfigError, match="is a int, not an MCPServer object"):
        resolve_tools([f"mcp:{path}:server"])


def test_two_servers_with_one_tool_name() -> None:
    with pytest.raises(ConfigError, match="duplicate tool name 'calculator'"):
        resolve_tools(["calculator", f"mcp:{HERE}"])
    with pytest.raises(ConfigError, match=r"duplicate tool name .* remove one of the two"):
        resolve_tools([f"mcp:{HERE}", f"mcp:{HERE}"])


# ---------------------------------------------------------------- HTTP, and somebody else's server


@pytest.fixture
def address() -> Iterator[str]:
    """Our calculator over streamable HTTP on a free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = (
        "from calculator_server import server; "
        f"server.run('streamable-http', host='127.0.0.1', port={port})"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.DEVNULL, cwd=_CALCULATOR.parent
    )
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        assert child.poll() is None
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}/mcp"
    child.terminate()
    child.wait(30)


@pytest.mark.full
def test_a_server_over_http(address: str) -> None:
    tools = resolve_tools([f"mcp:{address}"])
    (result,) = asyncio.run(run(tools, ask("calculator", '{"expression": "6*7"}')))
    close_tools(tools)
    assert (result.error, result.text) == (None, "42")
