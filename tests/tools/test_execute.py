"""Tool calls: each becomes a result, in order, in time; the calculator against a slow reference."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutelage.tools import Tool, ToolError, execute_tool_calls, tool
from tutelage.tools.builtin import calculator, lookup, sum_1_to_n
from tutelage.tools.expression import MAX_DIGITS, ExpressionError, evaluate, format_number
from tutelage.types import ToolCall, ToolResult

BUILTIN = {t.name: t for t in (calculator, lookup, sum_1_to_n)}


async def run(arguments: str, one: Tool, name: str | None = None) -> ToolResult:
    (result,) = await execute_tool_calls(
        [ToolCall("c", name or one.name, arguments)], {one.name: one}
    )
    return result


async def returned(value: Any) -> ToolResult:
    @tool
    def give() -> Any:
        return value

    return await run("{}", give)


async def raised(error: BaseException, in_loop: bool) -> ToolResult:
    @tool("fail")
    def fail() -> str:
        raise error

    @tool("fail")
    async def fail_async() -> str:
        raise error

    return await run("{}", fail_async if in_loop else fail)


async def test_results_keep_the_order_of_the_calls_and_the_calls_run_together() -> None:
    both = asyncio.Barrier(2)

    @tool
    async def meet(n: int) -> str:
        await both.wait()  # passes only when two calls are inside at once
        await asyncio.sleep(0.05 if n == 0 else 0)
        return str(n)

    calls = [ToolCall(f"c{n}", "meet", f'{{"n": {n}}}') for n in range(2)]
    results = await execute_tool_calls(calls, {"meet": meet})
    assert [(r.call_id, r.text, r.error) for r in results] == [("c0", "0", None), ("c1", "1", None)]


async def test_unknown_tools_are_answered_with_the_nearest_name() -> None:
    (result,) = await execute_tool_calls([ToolCall("c", "calculater", "{}")], BUILTIN)
    assert result.error == "unknown_tool"
    assert "Did you mean 'calculator'?" in result.text
    (result,) = await execute_tool_calls([ToolCall("c", "x", "{}")], {})
    assert "there are no tools" in result.text


async def test_wrong_arguments_are_answered_not_raised() -> None:
    result = await run('{"expression": ', calculator)
    assert result.error == "invalid_arguments"
    assert "character" in result.text
    assert result.arguments == '{"expression": '


@pytest.mark.parametrize("in_loop", [True, False])
async def test_raising_tools_are_answered_with_the_reason(in_loop: bool) -> None:
    for error, text in [
        (ToolError("no such file"), "Error: no such file"),
        (ValueError("bad"), "Error: ValueError: bad"),
        (SystemExit(3), "Error: SystemExit: 3"),
        (asyncio.CancelledError("self"), None),
    ]:
        result = await raised(error, in_loop)
        assert result.error == "raised"
        assert text is None or result.text == text
    if not in_loop:
        assert (await raised(StopIteration(), in_loop)).error == "raised"


async def test_an_async_tool_past_its_timeout_is_cancelled_and_cleans_up() -> None:
    cleaned = asyncio.Event()

    @tool(timeout=0.05)
    async def hang() -> str:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()
        return "late"

    result = await run("{}", hang)
    assert result.error == "timeout"
    assert "0.05 seconds" in result.text
    assert cleaned.is_set()


async def test_cancelling_the_caller_cancels_the_tool() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def hang() -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return "late"

    task = asyncio.create_task(run("{}", hang))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_sync_tools_run_off_the_loop_with_the_callers_context() -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who")
    who.set("rollout 7")

    @tool
    def where() -> list[Any]:
        return [who.get(), threading.current_thread() is threading.main_thread()]

    @tool(inline=True)
    def here() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert (await run("{}", where)).text == '["rollout 7", false]'
    assert (await run("{}", here)).text == "true"


@dataclasses.dataclass
class Found:
    title: str
    score: float


async def test_results_become_text() -> None:
    for value, text in [
        ("plain é", "plain é"),
        (42, "42"),
        (True, "true"),
        ({"a": [1, None]}, '{"a": [1, null]}'),
        (Found("é", 0.5), '{"title": "é", "score": 0.5}'),
        ("\ud800", "\\ud800"),
        ([date(2026, 1, 2)], '["2026-01-02"]'),
    ]:
        result = await returned(value)
        assert (result.text, result.error) == (text, None)


async def test_a_tool_that_says_that_it_returns_nothing_is_done_when_it_returns() -> None:
    ran: list[str] = []

    @tool
    def remove(path: str) -> None:
        ran.append(path)

    @tool("remove")
    async def remove_later(path: str) -> None:
        ran.append(path)

    for each in (remove, remove_later):
        result = await run('{"path": "a"}', each)
        assert (result.text, result.error) == ("null", None)
    assert ran == ["a", "a"]


async def test_results_without_a_text_are_bad_results() -> None:
    for value in (None, b"bytes", object(), float("nan")):
        result = await returned(value)
        assert result.error == "bad_result"
        assert result.text.startswith("Error: give returned no usable result")


async def test_long_results_are_cut_in_the_middle() -> None:
    @tool(max_chars=100)
    def long() -> str:
        return "a" * 5000 + "b" * 5000

    text = (await run("{}", long)).text
    assert len(text) <= 100
    assert text.startswith("aaa")
    assert text.endswith("bbb")
    kept = text.count("a\n") + text.count("\nb")
    assert kept == 2
    missing = int(text.split("[")[1].split()[0])
    assert missing == 10_000 - len(text.split("\n")[0]) - len(text.split("\n")[2])


async def test_the_built_in_tools() -> None:
    for one, arguments, text, error in [
        (calculator, '{"expression": "17 * 23 + 5"}', "396", None),
        (calculator, '{"expression": "9**9**9"}', "Error: a number needs more than", "raised"),
        (sum_1_to_n, '{"n": 45}', "1035", None),
        (sum_1_to_n, '{"n": -1}', "Error: n must lie", "raised"),
        (lookup, '{"item": " Pen "}', "7", None),
        (lookup, '{"item": "penn"}', "Error: no item 'penn'; did you mean 'pen'?", "raised"),
    ]:
        result = await run(arguments, one)
        assert result.error == error
        assert result.text.startswith(text)


def test_a_hanging_tool_does_not_keep_the_process_alive(tmp_path: Any) -> None:
    script = tmp_path / "hang.py"
    script.write_text(
        "import asyncio, time\n"
        "from tutelage.tools import tool, execute_tool_calls\n"
        "from tutelage.types import ToolCall\n"
        "@tool(timeout=0.05)\n"
        "def hang() -> str:\n"
        "    time.sleep(600)\n"
        "    return ''\n"
        "asyncio.run(execute_tool_calls([ToolCall('c', 'hang', '{}')], {'hang': hang}))\n"
    )
    assert subprocess.run([sys.executable, str(script)], timeout=60, check=False).returncode == 0


# ------------------------------------------------------------ the calculator


LIMIT = 10**MAX_DIGITS


@dataclass
class Tree:
    """A random expression: a literal, or an operator over one or two trees."""

    operator: str
    parts: tuple[Tree, ...] = ()

    def text(self) -> str:
        if not self.parts:
            return self.operator
        inner = [part.text() if not part.parts else f"({part.text()})" for part in self.parts]
        return self.operator + inner[0] if len(inner) == 1 else f" {self.operator} ".join(inner)

    def value(self) -> Fraction | None:
        """The reference: None for no value within the limits."""
        if not self.parts:
            return Fraction(self.operator)
        values = [part.value() for part in self.parts]
        if any(v is None for v in values):
            return None
        a, *rest = [v for v in values if v is not None]
        if not rest:
            return -a
        (b,) = rest
        if self.operator == "**":
            if b.denominator != 1 or abs(b) > 200 or (a == 0 and b < 0):
                return None
            made = Fraction(a ** int(b))
        elif self.operator in ("/", "//", "%") and b == 0:
            return None
        else:
            made = {
                "+": lambda: a + b,
                "-": lambda: a - b,
                "*": lambda: a * b,
                "/": lambda: a / b,
                "//": lambda: Fraction(a // b),
                "%": lambda: a % b,
            }[self.operator]()
        return made if abs(made.numerator) < LIMIT and made.denominator < LIMIT else None


literals = st.one_of(
    st.integers(0, 120).map(str),
    st.decimals(0, 99, places=2).map(str),
).map(Tree)
trees = st.recursive(
    literals,
    lambda inner: st.one_of(
        st.builds(lambda a: Tree("-", (a,)), inner),
        st.builds(
            lambda op, a, b: Tree(op, (a, b)),
            st.sampled_from(["+", "-", "*", "/", "//", "%", "**"]),
            inner,
            inner,
        ),
    ),
    max_leaves=12,
)


def is_fractional_power(tree: Tree) -> bool:
    exponent = tree.parts[1].value() if tree.operator == "**" else None
    return (exponent is not None and exponent.denominator != 1) or any(
        is_fractional_power(part) for part in tree.parts
    )


@given(trees.filter(lambda t: not is_fractional_power(t)))
def test_equals_the_reference_or_is_refused_where_it_has_no_value(tree: Tree) -> None:
    expected = tree.value()
    if expected is None:
        with pytest.raises(ExpressionError):
            evaluate(tree.text())
    else:
        assert evaluate(tree.text()) == expected


@given(
    # Python itself would work for ever at 9**3**3**3.
    st.lists(st.sampled_from(["+", "-", "*", "//", "%", "**"]), min_size=1, max_size=4).filter(
        lambda found: found.count("**") < 3
    ),
    st.data(),
)
def test_precedence_and_grouping_are_pythons(operators: list[str], data: st.DataObject) -> None:
    text = str(data.draw(st.integers(1, 9)))
    for operator in operators:
        sign = data.draw(st.sampled_from(["", "-"])) if operator != "**" else ""
        text += f"{operator}{sign}{data.draw(st.integers(1, 3))}"
    expected = eval(text)  # built above from digits and operators only
    if abs(expected) < LIMIT:
        assert evaluate(text) == expected


@given(st.text(alphabet="0123456789+-*/%^()., eEx_٣", max_size=60))
def test_any_text_gives_a_bounded_number_or_an_error(text: str) -> None:
    try:
        value = evaluate(text)
    except ExpressionError:
        return
    assert abs(value.numerator) < LIMIT
    assert value.denominator < LIMIT
    shown = evaluate(format_number(value))
    assert abs(shown - value) <= abs(value) / 10**9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("17 * 23 + 5", "396"),
        ("-2**2", "-4"),
        ("2**-2", "0.25"),
        ("2**3**2", "512"),
        ("2^10", "1024"),
        ("9**0.5", "3"),
        ("1/3", "0.3333333333"),
        ("0.1+0.2", "0.3"),
        ("1e3", "1000"),
        ("7 % 3", "1"),
        ("-7 // 2", "-4"),
        ("1**99999999999999999999", "1"),
        ("12 × 3 ÷ 4 − 1", "8"),
        ("+5", "5"),
    ],
)
def test_known_values(text: str, expected: str) -> None:
    assert format_number(evaluate(text)) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("9**9**9", "digits"),
        ("9" * 41, "digits"),
        ("2**(1/3)**-999999", "digits"),
        ("(" * 900, "deep"),
        ("", "empty"),
        ("١٢", "position 1"),
        ("1,234", "thousands"),
        ("1/0", "division by zero"),
        ("(-8)**0.5", "real"),
        ("__import__('os')", "position 12"),
        ("2 3", "position 3"),
        ("1+", "too early"),
        ("(1", "missing ')'"),
    ],
)
def test_hostile_text_is_refused_with_a_reason(text: str, says: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(says)):
        evaluate(text)
