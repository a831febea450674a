"""Scripts of replies: which line answers what, and what is wrong with a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tutelage.engine.script import ScriptedReply
from tutelage.errors import DataError, RemoteError
from tutelage.gateway import Script, ScriptedClient
from tutelage.types import Constraint, Message, Sampling, StopReason, ToolSpec

SAMPLING = Sampling(max_tokens=1000)
GOOD = """
{"content": "It is 2.", "match": "1 + 1"}

{"tool_calls": [{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": "{}"}]}
{"content": "Hm.", "tool_calls": [{"name": "g"}], "delay": 0}
{"error": {"status": 429, "message": "slow down"}}
"""


TOOL_NAMES = ("f", "g", "search", "sum", "calculator")
ALL = tuple(ToolSpec(name, "", {}) for name in TOOL_NAMES)


def user(text: str) -> list[Message]:
    return [Message("user", text)]


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


async def test_a_file_is_played_in_order_and_again(tmp_path: Path) -> None:
    client = ScriptedClient(Script.load(written(tmp_path / "s.jsonl", GOOD)))
    for _ in range(2):
        first = await client.chat(user("hello"), sampling=SAMPLING, tools=ALL)
        assert [(c.name, c.arguments) for c in first.reply.tool_calls] == [
            ("f", '{"x":1}'),
            ("g", "{}"),
        ]
        matched = await client.chat(user("What is 1 + 1?"), sampling=SAMPLING, tools=ALL)
        assert matched.reply.content == "It is 2."
        second = await client.chat(user("hello"), sampling=SAMPLING, tools=ALL)
        assert second.reply.content == "Hm."
        with pytest.raises(RemoteError, match="slow down") as caught:
            await client.chat(user("hello"), sampling=SAMPLING, tools=ALL)
        assert caught.value.status == 429
    ids = [c.id for call in client.calls for c in call.reply.tool_calls]
    assert len(set(ids)) == len(ids) == 6
    assert len({call.id for call in client.calls}) == len(client.calls) == 6


async def test_a_match_looks_at_what_is_new() -> None:
    client = ScriptedClient([ScriptedReply("sum", match="46"), ScriptedReply("other")])
    history = [*user("is it 46?"), Message("assistant", "46"), Message("tool", "47")]
    assert (await client.chat(history, sampling=SAMPLING)).reply.content == "other"
    assert (await client.chat(user("46"), sampling=SAMPLING)).reply.content == "sum"


async def test_a_request_that_no_line_fits_is_a_404() -> None:
    client = ScriptedClient([ScriptedReply("a", match="x")])
    with pytest.raises(RemoteError, match="no reply in") as caught:
        await client.chat(user("y"), sampling=SAMPLING)
    assert caught.value.status == 404


async def test_max_tokens_cuts() -> None:
    client = ScriptedClient([ScriptedReply("héllo", (("f", "{}"),))])
    call = await client.chat(user("x"), sampling=Sampling(max_tokens=2), tools=ALL)
    assert call.sampled.stop_reason is StopReason.LENGTH
    assert call.reply == Message("assistant", "h")
    assert len(call.sampled.token_ids) == 2


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "Invalid JSON"),
        ("{}", "needs `content`"),
        ('{"contents": "x"}', "`contents`: Unexpected"),
        ('{"content": 5}', "`content`: Input should be a valid string"),
        (
            '{"tool_calls": [{"arguments": {}}]}',
            "`tool_calls`: Value error, must be a list of tool calls",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, line: str, told: str) -> None:
    path = written(tmp_path / "s.jsonl", '{"content": "ok"}\n\n' + line + "\n")
    with pytest.raises(DataError) as caught:
        Script.load(path)
    assert f"{path}:3" in str(caught.value)
    assert told in str(caught.value)


def test_a_file_that_is_empty_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no replies"):
        Script.load(written(tmp_path / "s.jsonl", "\n"))
    with pytest.raises(DataError, match="cannot read"):
        Script.load(tmp_path / "none.jsonl")


# ---------------------------------------------------------------- what a request demands

SEARCH, CALCULATE = ScriptedReply("?", (("search", "{}"),)), ScriptedReply(None, (("sum", "{}"),))
BOTH = ScriptedReply(None, SEARCH.tool_calls + CALCULATE.tool_calls)
TOOLS = (ToolSpec("search", "", {}), ToolSpec("sum", "", {}))
LINES = ["It is 2.", SEARCH, BOTH, CALCULATE, '{"x": "two"}', '{"x": 2}']


@pytest.mark.parametrize(
    ("constraint", "tools", "lines"),
    [
        (None, TOOLS, [0, 1, 2, 3, 4, 5, 0]),
        (None, TOOLS[:1], [0, 1, 4, 5, 0]),
        (None, (), [0, 4, 5, 0]),
        (Constraint("none"), TOOLS, [0, 4, 5, 0]),
        (Constraint("required"), TOOLS, [1, 2, 3, 1]),
        (Constraint("required"), TOOLS[:1], [1, 1]),
        (Constraint("sum"), TOOLS, [3, 3]),
        (Constraint("auto", parallel_tool_calls=False), TOOLS, [0, 1, 3, 4, 5, 0]),
        (Constraint("required", parallel_tool_calls=False), TOOLS, [1, 3, 1]),
        (Constraint("none"), (), [0, 4, 5, 0]),
    ],
)
async def test_a_request_takes_the_next_line_that_it_allows(
    constraint: Constraint | None, tools: tuple[ToolSpec, ...], lines: list[int]
) -> None:
    client = ScriptedClient(LINES)
    script = Script(LINES).replies
    for line in lines:
        call = await client.chat(user("x"), sampling=SAMPLING, tools=tools, constraint=constraint)
        assert call.reply.content == script[line].content
        names = [each.name for each in call.reply.tool_calls]
        assert names == [name for name, _ in script[line].tool_calls]
