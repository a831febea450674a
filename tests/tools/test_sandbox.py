"""The sandbox from the outside: state, output, values, limits, and ends of every kind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tutelage.errors import ConfigError
from tutelage.tools.sandbox import (
    TIERS,
    Sandbox,
    SandboxLimits,
    Tier,
    client,
    tier_problems,
    usable_tier,
)

WORKING: list[Any] = [
    pytest.param(
        tier, marks=pytest.mark.skipif(tier_problems()[tier] is not None, reason=f"no {tier} here")
    )
    for tier in TIERS
]
every_tier = pytest.mark.parametrize("tier", WORKING)


@every_tier
async def test_state_lives_across_executions_and_not_across_sandboxes(tier: Tier) -> None:
    async with Sandbox(tier=tier) as first, Sandbox(tier=tier) as second:
        assert (await first.run("x = 41")).output == ""
        assert (await first.run("x + 1")).output == "42\n"
        assert (await second.run("x")).error == "NameError"
        await first.run("open('note', 'w').write('kept')")
        assert (await first.run("open('note').read()")).output == "'kept'\n"
        assert (await second.run("import os; os.listdir('.')")).output == "[]\n"


@every_tier
async def test_what_it_prints_and_its_last_value_are_the_output(tier: Tier) -> None:
    async with Sandbox(tier=tier) as sandbox:
        assert (await sandbox.run("print('a'); print('b'); [1, 2]")).output == "a\nb\n[1, 2]\n"
        assert (await sandbox.run("None")).output == ""
        assert (await sandbox.run("import sys; print('e', file=sys.stderr)")).output == "e\n"
        assert (await sandbox.run("")).output == ""
        assert (await sandbox.run("print('é\\ud800 ∑')")).output == "é\\ud800 ∑\n"
        assert (await sandbox.run_program("print(input())", stdin="typed\n")).output == "typed\n"
        assert (await sandbox.run_program("x = 1; __name__", name="other")).output == ""
        assert (await sandbox.run("(x, __name__)")).output == "(1, 'other')\n"
        assert (await sandbox.run("input()")).error == "EOFError"


@every_tier
async def test_an_error_shows_the_lines_of_the_code(tier: Tier) -> None:
    async with Sandbox(tier=tier) as sandbox:
        failed = await sandbox.run("def f():\n    return 1 / 0\nf()")
        assert failed.error == "ZeroDivisionError"
        assert "line 2, in f\n    return 1 / 0" in failed.output
        assert "worker.py" not in failed.output
        broken = await sandbox.run("1 +")
        assert broken.error == "SyntaxError"
        assert (await sandbox.run("raise SystemExit(3)")).error == "SystemExit"
        assert (await sandbox.run("'still here'")).output == "'still here'\n"


@every_tier
async def test_time_runs_out_and_the_next_code_starts_anew(tier: Tier) -> None:
    async with Sandbox(SandboxLimits(seconds=0.5), tier=tier) as sandbox:
        await sandbox.run("x = 1")
        late = await sandbox.run("while True: pass")
        assert (late.error, late.ended) == ("timeout", True)
        assert "0.5 seconds" in late.output
        assert (await sandbox.run("x")).error == "NameError"


@every_tier
async def test_being_cancelled_ends_the_interpreter(tier: Tier) -> None:
    async with Sandbox(SandboxLimits(seconds=60), tier=tier) as sandbox:
        await sandbox.run("x = 1")
        task = asyncio.create_task(sandbox.run("while True: pass"))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await sandbox.run("x")).error == "NameError"


@every_tier
async def test_programs_repeat(tier: Tier) -> None:
    code = "import random; print(random.random(), list({'b', 'a', 'd', 'c'}), hash('x'))"
    seen: set[str] = set()
    for _ in range(3):
        async with Sandbox(tier=tier) as sandbox:
            seen.add((await sandbox.run(code)).output)
    assert len(seen) == 1


@every_tier
@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 1", 2),
        ("'a' * 3", "aaa"),
        ("[1, (2.5,), {3}, {'k': None}, b'x', True]", [1, (2.5,), {3}, {"k": None}, b"x", True]),
        ("()", ()),
    ],
)
async def test_values_that_are_plain_data_come_out(tier: Tier, expression: str, value: Any) -> None:
    async with Sandbox(tier=tier) as sandbox:
        found = (await sandbox.evaluate(expression)).plain_value()
        assert found == value
        assert type(found) is type(value)


@every_tier
@pytest.mark.parametrize(
    "expression",
    [
        "object()",
        "[Always()]",
        "Number(3)",
        "1 / 0",
        "x = 1",
    ],
)
async def test_values_that_only_look_like_data_do_not(tier: Tier, expression: str) -> None:
    async with Sandbox(tier=tier) as sandbox:
        await sandbox.run(
            "class Always:\n"
            "    def __eq__(self, o): return True\n"
            "    def __repr__(self): return '1'\n"
            "class Number(int):\n    def __eq__(self, o): return True\n"
        )
        with pytest.raises(ValueError, match=r"no result value|not a Python literal|malformed"):
            (await sandbox.evaluate(expression)).plain_value()


def test_no_protection_must_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    broken: dict[Tier, str | None] = {"namespaces": "not allowed", "rlimit": "no Landlock"}
    monkeypatch.setattr(client, "tier_problems", lambda: {**broken, "none": None})
    with pytest.raises(ConfigError, match=r"not allowed.*no Landlock.*allow_unsandboxed"):
        usable_tier()
    with pytest.raises(ConfigError):
        Sandbox()
    assert usable_tier(allow_unsandboxed=True) == "none"
    monkeypatch.setattr(client, "tier_problems", lambda: {**broken, "rlimit": None, "none": None})
    assert usable_tier(allow_unsandboxed=True) == "rlimit"


@every_tier
async def test_the_library_and_listed_packages_work(tier: Tier) -> None:
    """Numerical and symbolic mathematics, the parts of the library that need other files."""
    code = """
import ctypes, decimal, hashlib, json, lzma, sqlite3, ssl, zoneinfo
import numpy, sympy
print(numpy.linalg.inv(2 * numpy.eye(2))[0][0], sympy.factor("x**2 - 1"), numpy.__file__[-12:])
print(zoneinfo.ZoneInfo("Europe/Oslo"), sqlite3.connect(":memory:").execute("select 7").fetchone())
print(exit, help.__class__.__name__)
"""
    async with Sandbox(SandboxLimits(seconds=60, memory=2 << 30), tier=tier) as sandbox:
        told = (await sandbox.run(code)).output.splitlines()
        assert told == [
            "0.5 (x - 1)*(x + 1) /__init__.py",
            "Europe/Oslo (7,)",
            "Use exit() or Ctrl-D (i.e. EOF) to exit _Helper",
        ]
        assert (await sandbox.run("exit(3)")).error == "SystemExit"
    if tier != "none":
        fewer = SandboxLimits(packages=("numpy", "not_installed_anywhere"))
        async with Sandbox(fewer, tier=tier) as sandbox:
            assert (await sandbox.run("import sympy")).error == "ModuleNotFoundError"
