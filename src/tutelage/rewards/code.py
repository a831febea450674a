"""`code_reward`: the fraction of a task's tests that the final answer's code passes.

The code runs in a sandbox (`tools/sandbox/`), and no test does: a program there can do what it
likes to the process that would judge it. The sandbox is only asked for values, as plain data, and
the comparison is made outside, where the code cannot reach; so nothing it overrides, prints or
exits with is a pass. `code_tests.py` says what a test may look like and how it is taken apart.
"""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from tutelage.errors import ConfigError, GraderError
from tutelage.rewards.answers import is_empty
from tutelage.rewards.code_tests import (
    Case,
    Program,
    answer_tests,
    read_tests,
)
from tutelage.rewards.function import RewardFunction, reward
from tutelage.tools.options import ToolOptions
from tutelage.tools.sandbox import (
    CodeResult,
    Sandbox,
    SandboxError,
    SandboxLimits,
    usable_tier,
)

TEST_SECONDS = 2.0
MAX_TIMEOUTS = 3
"""Tests that may run out of time; those after them fail unseen."""
OUTPUT_CHARS = 20_000
LONGEST = 100_000
"""Characters of code."""

_BLOCK = re.compile(r"```(?:python|py|python3)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


def code_reward(options: ToolOptions) -> RewardFunction:
    """The fraction of the tests in the task's `tests`, or else in its `answer`, that pass.

    Parts: `passed` and `tests` count them, `all` is 1.0 when none failed. Raises `ConfigError`
    where no sandbox works and none was not allowed.
    """
    tier = usable_tier(allow_unsandboxed=options.allow_unsandboxed)

    @reward("code_reward", bounded=True)
    async def code_reward(
        prediction: str,
        tests: Any = None,
        answer: Any = None,
        entry_point: str | None = None,
        setup: str = "",
    ) -> dict[str, float]:
        cases = read_tests(answer_tests(answer) if is_empty(tests) else tests, entry_point)
        code = find_code(prediction)
        limits = SandboxLimits(seconds=TEST_SECONDS, output=OUTPUT_CHARS)
        passed = timeouts = 0
        try:
            async with Sandbox(limits, tier=tier) as tested, Sandbox(limits, tier=tier) as referee:
                for case in cases if code is not None else ():
                    good, late = await _grade(case, f"{setup}\n{code}", tested, referee)
                    passed += good
                    timeouts += late
                    if timeouts >= MAX_TIMEOUTS:
                        break
        except (SandboxError, ConfigError) as error:
            raise GraderError(f"cannot run the tests in a sandbox: {error}") from error
        share = passed / len(cases)
        return {"reward": share, "passed": passed, "tests": len(cases), "all": passed == len(cases)}

    return replace(code_reward, one_of=("tests", "answer"))


def find_code(text: str) -> str | None:
    """The code of a final text: its last fenced block, else the whole of it if that is Python."""
    if len(text) > LONGEST:
        return None
    blocks = _BLOCK.findall(text)
    if blocks:
        return blocks[-1]
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return text


async def _grade(case: Case, code: str, tested: Sandbox, referee: Sandbox) -> tuple[bool, bool]:
    """Whether a test passes, and whether it ran out of time. Each value is asked of code that was
    loaded afresh; `referee` is an interpreter that never sees it."""
    if isinstance(case, Program):
        done = await _again(lambda: tested.run_program(code, stdin=case.stdin))
        clean = done.error in (None, "SystemExit")
        return clean and _trimmed(done.output) == _trimmed(case.stdout), done.error == "timeout"

    async def value_of(expression: str) -> CodeResult:
        given = f"{case.given}\n{code}" if case.given else code
        loaded = await tested.run_program(given, name="solution")
        return loaded if loaded.error is not None else await tested.evaluate(expression)

    values: list[str] = []
    for expression in case.asked:
        found = await _again(lambda asked=expression: value_of(asked))
        try:
            # The code may have forged the reply: what is no literal must not reach the test.
            # A long value takes a while to read, and other rollouts wait for the event loop.
            await asyncio.to_thread(found.plain_value)
        except ValueError:
            return False, found.error == "timeout"
        values.append(str(found.value))
    if case.expected is not None and len(values) == 1:
        return await asyncio.to_thread(_equals, values[0], case.expected, case.from_data), False
    try:
        test = await asyncio.to_thread(case.with_values, values)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False, False

    async def decide() -> CodeResult:
        if case.prelude:
            await referee.run_program(case.prelude)
        return await referee.evaluate(f"bool({test})")

    try:
        return (await _again(decide)).plain_value() is True, False
    except ValueError:
        return False, False


async def _again(work: Callable[[], Awaitable[CodeResult]]) -> CodeResult:
    """The result, tried once more where the interpreter ended: the system may have killed it
    for memory that others took, and a test that it was killed in says nothing of the code."""
    code_result = await work()
    return await work() if code_result.error == "died" else code_result


def _equals(given: str, wanted: str, from_data: bool) -> bool:
    try:
        found, expected = ast.literal_eval(given), ast.literal_eval(wanted)
        return bool((_as_lists(found) if from_data else found) == expected)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return False


def _as_lists(value: Any) -> Any:
    """The value as JSON would have it: with lists for tuples, not as keys."""
    if isinstance(value, (list, tuple)):
        return [_as_lists(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, dict):
        return {key: _as_lists(item) for key, item in cast("dict[Any, Any]", value).items()}
    return value


def _trimmed(text: str) -> list[str]:
    """The lines, without spaces at their ends and at the end of the text."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
