"""Tools of MCP servers: in this process, as a command, over HTTP; for a run and for a rollout."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mcp", reason="mcp is not installed: tutelage[mcp]")

from anyio.from_thread import start_blocking_portal
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED
from mcp_types import Tool as McpTool

from tutelage.environments import rollout_environments
from tutelage.errors import ConfigError
from tutelage.tools import execute_tool_calls, resolve_tools
from tutelage.tools.builtin import calculator
from tutelage.tools.mcp import (
    MAX_RESTARTS,
    _convert_tools,  # pyright: ignore[reportPrivateUsage]
    _Server,  # pyright: ignore[reportPrivateUsage]
)
from tutelage.tools.mcp_results import result_text
from tutelage.tools.registry import close_tools
from tutelage.tools.tool import Tool, ToolError
from tutelage.types import Task, ToolCall, ToolResult

ODD = shlex.join([sys.executable, str(Path(__file__).with_name("mcp_servers.py"))])
_CALCULATOR = Path(__file__).parents[2] / "examples" / "math_mcp" / "calculator_server.py"
CALCULATOR = shlex.join([sys.executable, str(_CALCULATOR)])
HERE = f"{_CALCULATOR}:server"
"""The calculator as an object in this process."""
OUTSIDE = "TUTELAGE_MCP_CALCULATOR"
"""Names the command of `mcp-server-calculator`, which lives in an environment of its own."""


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


@pytest.mark.full
@pytest.mark.parametrize("where", ["in process", "command"])
async def test_the_calculator_is_the_built_in_one(where: str) -> None:
    async with rollout_tools(HERE if where == "in process" else CALCULATOR) as tools:
        (tool,) = tools.values()
        assert (tool.name, tool.description) == (calculator.name, calculator.description)
        assert tool.parameters["properties"] == calculator.parameters["properties"]
        assert tool.parameters["required"] == ["expression"]
        for expression in ("17 * 23 + 5", "2 ** 0.5", "1 / 3"):
            arguments = f'{{"expression": "{expression}"}}'
            (result,) = await run(tools, ask("calculator", arguments))
            assert result.error is None
            assert result.text == calculator(expression=expression)


async def test_a_wrong_expression_is_an_error_of_the_tool() -> None:
    async with rollout_tools(HERE) as tools:
        (result,) = await run(tools, ask("calculator", '{"expression": "17 +* 2"}'))
        assert result.error == "raised"
        assert "unexpected '*' at position 5" in result.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{}", "'expression' is a required property; expected {expression}"),
        ('{"expression": 3}', "argument 'expression': 3 is not of type 'string'"),
        ("[]", "arguments must be a JSON object, not an array"),
        ('{"expression"', "invalid JSON at character"),
    ],
)
async def test_arguments_are_checked_before_the_server_sees_them(
    arguments: str, message: str
) -> None:
    async with rollout_tools(HERE) as tools:
        (result,) = await run(tools, ask("calculator", arguments))
        assert result.error == "invalid_arguments"
        assert message in result.text


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


def told(structured: object, *texts: str, typed: bool = True) -> str:
    blocks = [SimpleNamespace(type="text", text=text) for text in texts]
    given: Any = SimpleNamespace(content=blocks, structured_content=structured)
    return result_text(given, "tool", typed)


@pytest.mark.parametrize(
    ("structured", "texts", "said"),
    [
        ({"result": "plain"}, [], "plain"),
        ({"result": "[1]"}, ["[1]"], "[1]"),
        ({"result": "2026-01-02"}, ['"2026-01-02"'], "2026-01-02"),
        ({"result": ["a", "b"]}, ["a", "b"], '["a", "b"]'),
        ({"result": [[1], [2]]}, ["1", "2"], "[[1], [2]]"),
        ({"result": None}, [], "null"),
        ({"result": 2.5}, ["2.5"], "2.5"),
        ({"x": 1}, ['{"x":1}'], '{"x":1}'),
        ({"x": 1}, [], '{"x": 1}'),
        (None, ["{"], "{"),
    ],
)
def test_a_text_that_is_a_typed_result_is_told_once(
    structured: object, texts: list[str], said: str
) -> None:
    assert told(structured, *texts) == told(structured, *texts, typed=False) == said


@pytest.mark.parametrize(
    ("structured", "said"),
    [
        ({"celsius": 20}, '{"celsius": 20}'),
        ({"result": 20}, "20"),
        ({"result": None}, "null"),
        ({"result": [1, 2]}, "[1, 2]"),
    ],
)
def test_neither_a_typed_result_nor_another_text_is_lost_silently(
    structured: object, said: str
) -> None:
    with pytest.warns(UserWarning, match="'tool' returned text beside its structured result"):
        assert told(structured, "Warm today.") == said
    assert told(structured, "Warm today.", typed=False) == f"Warm today.\n{said}"


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


@pytest.mark.full
async def test_a_call_out_of_time_on_a_shared_server(tmp_path: Path) -> None:
    tools = resolve_tools([f"mcp:{ODD}"])
    mark = tmp_path / "mark"
    hurried = {name: replace(tool, timeout=2.0) for name, tool in tools.items()}
    (result,) = await run(hurried, ask("wait", f'{{"path": "{mark}"}}'))
    assert result.error == "timeout"
    for _ in range(1000):
        if mark.exists():
            break
        await asyncio.sleep(0.05)
    close_tools(tools)
    assert mark.read_text() == "cancelled"


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
def test_a_shared_server_that_ended_is_started_again_a_few_times() -> None:
    tools = resolve_tools([f"mcp:{ODD}"])
    seen: set[str] = set()
    for _ in range(MAX_RESTARTS + 1):
        pid, died = asyncio.run(both(tools))
        assert died.error == "raised"
        assert pid.error is None, pid.text
        seen.add(pid.text)
    assert len(seen) == MAX_RESTARTS + 1
    pid, _ = asyncio.run(both(tools))
    assert "the MCP server of this tool has ended" in pid.text
    close_tools(tools)
    close_tools(tools)


@pytest.mark.parametrize(
    ("error", "late"),
    [
        (MCPError(CONNECTION_CLOSED, "Connection closed"), True),
        (OSError("broken pipe"), True),
        (MCPError(-32602, "no such thing"), False),
        (RuntimeError("Invalid structured content returned by tool pay"), False),
    ],
)
async def test_a_call_whose_server_was_lost_may_be_done_and_is_no_timeout(
    error: Exception, late: bool
) -> None:
    async def call_tool(name: str, arguments: Any) -> None:
        raise error

    server: Any = _Server(["true"])
    server._client, server._task = SimpleNamespace(call_tool=call_tool), Future()
    with (
        start_blocking_portal() as server._portal,
        pytest.raises(ToolError, match="the MCP server failed") as raised,
    ):
        await server.call("pay", {})
    assert (type(raised.value), raised.value.late) == (ToolError, late)


async def both(tools: dict[str, Tool]) -> tuple[ToolResult, ToolResult]:
    (pid,) = await run(tools, ask("pid"))
    (died,) = await run(tools, ask("die"))
    await asyncio.sleep(0.3)
    return pid, died


@pytest.mark.full
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"{ODD} --fail", "no licence found"),
        ("/no/such/program", "/no/such/program"),
        ("sleep 0.2", "cannot use the MCP server"),
    ],
)
def test_a_server_that_does_not_start_says_why(command: str, message: str) -> None:
    with pytest.raises(ConfigError, match="MCP server") as caught:
        resolve_tools([f"mcp:{command}"])
    assert message in str(caught.value)


# ---------------------------------------------------------------- by name


SPOKEN = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    method, answer = asked.get("method"), {"jsonrpc": "2.0", "id": asked.get("id")}
    if method == "initialize":
        version = asked["params"]["protocolVersion"]
        about = {"name": "x", "version": "1"}
        made = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
        print(json.dumps({**answer, "result": made}), flush=True)
    elif method == "tools/list":
        print(json.dumps({**answer, "result": {"tools": TOOLS}}), flush=True)
    elif "id" in asked:
        error = {"code": -32601, "message": "no such method"}
        print(json.dumps({**answer, "error": error}), flush=True)
"""


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        (
            [{"name": "add", "inputSchema": {"type": "object"}}] * 2,
            r"server '.*server.py' has two tools that the model would see as 'add'",
        ),
        (
            [{"name": "add", "inputSchema": {}}],
            r"does not conform to the protocol, 'tools\.0\.inputSchema\.type': Field required$",
        ),
    ],
)
def test_a_server_that_lists_odd_tools_is_refused_in_one_line(
    tmp_path: Path, tools: list[Any], message: str
) -> None:
    script = tmp_path / "server.py"
    script.write_text(f"TOOLS = {tools!r}\n{SPOKEN}")
    with pytest.raises(ConfigError, match=message):
        resolve_tools([f"mcp:{shlex.join([sys.executable, str(script)])}"])


def test_a_line_that_is_no_message_is_told_on_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = tmp_path / "server.py"
    script.write_text(f"TOOLS = []\nprint('Starting the server')\n{SPOKEN}")
    close_tools(resolve_tools([f"mcp:{shlex.join([sys.executable, str(script)])}"]))
    (row,) = caplog.records
    assert row.getMessage().endswith("'Starting the server' (logs belong on standard error)")
    assert row.exc_info is None


def test_a_server_that_never_answers_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tutelage.tools.mcp.START_SECONDS", 0.5)
    silent = shlex.join([sys.executable, "-c", "import time; time.sleep(600)"])
    with pytest.raises(ConfigError, match=r"no answer within 0\.5 seconds"):
        resolve_tools([f"mcp:{silent}"])
    gc.collect()
    assert caplog.records == []


@pytest.mark.full
def test_a_run_has_one_server_and_closes_it() -> None:
    tools = resolve_tools(["sum_1_to_n", f"mcp:{ODD}"])
    assert list(tools)[:2] == ["sum_1_to_n", "pid"]
    (result,) = asyncio.run(run(tools, ask("pid")))
    close_tools(tools)
    assert not alive(int(result.text))
    (after,) = asyncio.run(run(tools, ask("pid")))
    assert after.text == "Error: the MCP server of this tool has ended"


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


@pytest.mark.parametrize("name", ["mcp:", "mcp/rollout: ", "mcp:'half"])
def test_a_name_without_a_server(name: str) -> None:
    with pytest.raises(ConfigError, match=r"missing a command|cannot parse"):
        resolve_tools([name])


def test_two_servers_with_one_tool_name() -> None:
    with pytest.raises(ConfigError, match="duplicate tool name 'calculator'"):
        resolve_tools(["calculator", f"mcp:{HERE}"])
    with pytest.raises(ConfigError, match=r"duplicate tool name .* leave out one of the two"):
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


def test_an_address_where_nobody_answers() -> None:
    with pytest.raises(ConfigError, match="cannot use the MCP server"):
        resolve_tools(["mcp:http://127.0.0.1:9/mcp"])


def outside() -> str | None:
    return os.environ.get(OUTSIDE) or shutil.which("mcp-server-calculator")


@pytest.mark.skipif(
    outside() is None,
    reason=f"no mcp-server-calculator: install it in a venv of its own and name it in {OUTSIDE}",
)
def test_mcp_server_calculator_of_the_package_index() -> None:
    tools: dict[str, Any] = resolve_tools([f"mcp:{outside()}"])
    good, bad = asyncio.run(
        run(
            tools,
            ask("calculate", '{"expression": "17 * 23 + 5"}'),
            ask("calculate", '{"expression": 5}'),
        )
    )
    close_tools(tools)
    assert (good.error, good.text) == (None, "396")
    assert bad.error == "invalid_arguments"


# ---------------------------------------------------------------- schemas

DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#", "type": "object"}
PAIR = {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]}
ABOVE_0 = {"type": "integer", "minimum": 0, "exclusiveMinimum": True}
TREE = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/N"}}}}


def tool_of(schema: dict[str, Any]) -> Tool:
    (one,) = _convert_tools(
        [McpTool(name="odd", description="Odd.", input_schema=schema)], "server"
    )
    return one


@pytest.mark.parametrize(
    ("schema", "right", "wrong", "words"),
    [
        (
            {**DRAFT_7, "properties": {"a": {**PAIR, "additionalItems": False}}},
            ["x", 1],
            [1, "x"],
            "argument 'a.0': 1 is not of type 'string'",
        ),
        (
            {**DRAFT_7, "properties": {"a": {"oneOf": [PAIR, {"type": "null"}]}}},
            None,
            [1, 1],
            "argument 'a.0': 1 is not of type 'string'",
        ),
        (
            {**DRAFT_7, "properties": {"a": {"$ref": "#/definitions/A"}}}
            | {"definitions": {"A": {"type": "string"}}},
            "x",
            1,
            "argument 'a': 1 is not of type 'string'",
        ),
        ({**DRAFT_4, "properties": {"a": ABOVE_0}}, 1, 0, "argument 'a': 0 is less than or equal"),
        ({"properties": {"a": {"$ref": "#/$defs/N"}}, "$defs": {"N": TREE}}, {}, 1, "'a': 1 is"),
        (
            {"$schema": "https://example.com/own", "properties": {"a": {"prefixItems": [TREE]}}}
            | {"$defs": {"N": TREE}},
            [{"kids": []}],
            [1],
            "argument 'a.0': 1 is not of type 'object'",
        ),
    ],
)
async def test_the_dialect_of_a_schema_decides(
    schema: dict[str, Any], right: Any, wrong: Any, words: str
) -> None:
    tool = tool_of(schema)
    assert tool.signature.read(json.dumps({"a": right})) == {"a": right}
    (result,) = await run({"odd": tool}, ask("odd", json.dumps({"a": wrong})))
    assert result.error == "invalid_arguments"
    assert words in result.text
    assert "$schema" not in tool.parameters


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$ref": "#/$defs/Missing"}, "unresolved reference '/$defs/Missing'"),
        ({"$ref": "http://127.0.0.1:9/x.json"}, "unresolved reference 'http://127.0.0.1:9/x.json'"),
        ({"items": {"anyOf": [{"$ref": "#/$defs/N"}]}}, "unresolved reference '/$defs/N'"),
        ({"$dynamicRef": "#none"}, "unresolved reference"),
        ({"type": "nothing"}, "'nothing' is not valid under any of the given schemas"),
        ({"required": True}, "True is not of type 'array'"),
        ({"items": [{"type": "string"}]}, "is not of type 'object', 'boolean'"),
    ],
)
def test_a_schema_that_cannot_be_checked_is_refused_by_the_tools_name(
    schema: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        tool_of({"type": "object", "properties": {"a": schema}})
    assert "invalid schema of the MCP tool 'odd' of 'server'" in str(refused.value)
    assert words in str(refused.value)
