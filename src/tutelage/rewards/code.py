"""`code_reward`: the fraction of a task's tests that the final answer's code passes.

The code runs in a sandbox (`tools/sandbox/`), but the tests do not, because a program can tamper
with the process that judges it. The sandbox only returns values, as plain data, and they are
compared outside of it; so nothing that the code overrides, prints or exits with counts as a pass.
`code_tests.py` documents the forms of tests and splits them into expressions.
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
"""Number of timeouts after which the remaining tests count as failed without being run."""
OUTPUT_CHARS = 20_000
MAX_CODE_CHARS = 100_000

_BLOCK = re.compile(r"```(?:python|py|python3)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


def code_reward(options: ToolOptions) -> RewardFunction:
    """Create a reward: the fraction of passed tests, from the task's `tests` or `answer`.

    Parts: `passed` and `tests` are counts, `all` is 1.0 if all tests passed. Raises `ConfigError`
    if no sandbox works and running without one is not allowed.
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
                    is_passed, is_late = await _grade(case, f"{setup}\n{code}", tested, referee)
                    passed += is_passed
                    timeouts += is_late
                    if timeouts >= MAX_TIMEOUTS:
                        break
        except (SandboxError, ConfigError) as error:
            raise GraderError(f"cannot run the tests in a sandbox: {error}") from error
        rate = passed / len(cases)
        return {"reward": rate, "passed": passed, "tests": len(cases), "all": passed == len(cases)}

    return replace(code_reward, one_of=("tests", "answer"))


def find_code(text: str) -> str | None:
    """Extract the last fenced code block of a text, or the whole text if it is valid Python."""
    if len(text) > MAX_CODE_CHARS:
        return None
    blocks = _BLOCK.findall(text)
    if blocks:
        return blocks[-1]
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return text


async def _grade(case: Case, code: str, sandbox: Sandbox, referee: Sandbox) -> tuple[bool, bool]:
    """Run one test and return two flags: whether it passed and whether it timed out.

    The code is loaded again for each value. `referee` is an interpreter that never loads it.
    """
    if isinstance(case, Program):
        result = await _retry_once(lambda: sandbox.run_program(code, stdin=case.stdin))
        is_same = _trim_lines(result.output) == _trim_lines(case.stdout)
        return is_same and result.error in (None, "SystemExit"), result.error == "timeout"

    async def evaluate_in(expression: str) -> CodeResult:
        program = f"{case.setup}\n{code}" if case.setup else code
        loaded = await sandbox.run_program(program, name="solution")
        return loaded if loaded.error is not None else await sandbox.evaluate(expression)

    values: list[str] = []
    for expression in case.expressions:
        result = await _retry_once(lambda source=expression: evaluate_in(source))
        try:
            # The code may have forged the reply, so only literals are put into the test. A long
            # value is parsed in a thread to keep the event loop free for other rollouts.
            await asyncio.to_thread(result.plain_value)
        except ValueError:
            return False, result.error == "timeout"
        values.append(str(result.value))
    if case.expected is not None and len(values) == 1:
        return await asyncio.to_thread(_equals, values[0], case.expected, case.from_data), False
    try:
        test = await asyncio.to_thread(case.fill_values, values)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False, False

    async def run_test() -> CodeResult:
        if case.prelude:
            await referee.run_program(case.prelude)
        return await referee.evaluate(f"bool({test})")

    try:
        return (await _retry_once(run_test)).plain_value() is True, False
    except ValueError:
        return False, False


async def _retry_once(run: Callable[[], Awaitable[CodeResult]]) -> CodeResult:
    """Call `run`, and retry once if the sandboxed interpreter died.

    The system may have killed it for memory that other processes used, which is not the fault of
    the code.
    """
    result = await run()
    return await run() if result.error == "died" else result


def _equals(actual: str, literal: str, from_data: bool) -> bool:
    try:
        result, expected = ast.literal_eval(actual), ast.literal_eval(literal)
        return bool((_tuples_to_lists(result) if from_data else result) == expected)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return False


def _tuples_to_lists(value: Any) -> Any:
    """Convert tuples to lists, as JSON does, except in the keys of dicts."""
    if isinstance(value, (list, tuple)):
        return [_tuples_to_lists(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, dict):
        return {key: _tuples_to_lists(item) for key, item in cast("dict[Any, Any]", value).items()}
    return value


def _trim_lines(text: str) -> list[str]:
    """Split a text into lines without trailing whitespace and trailing empty lines."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
