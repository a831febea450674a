"""A deadline that fired is a fact of the run: a resume neither repeats nor forgets it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tutelage.runs.folder import RunFolder
from tutelage.types import Mode

from .command import Command
from .outcome import record, stored, without_clock

Arguments = Callable[..., list[str]]

HANGS = '''
import itertools
import os
import time

from tutelage.tools import tool

calls = itertools.count(1)


@tool(timeout=4)
def calculator(expression: str) -> str:
    """Work something out; some of the first calls of a process never come back.

    Args:
        expression: what to work out
    """
    if next(calls) in (3, 9) and "HANG" in os.environ:
        time.sleep(300)
    return "42"
'''


@pytest.mark.full
def test_timeouts_are_replayed_after_a_kill(with_tools: Arguments, tutelage: Command) -> None:
    """No tool hangs after the resume, so a step played again would have no timeout."""
    failed = "tools/calculator/errors"
    (tutelage.cwd / "hangs.py").write_text(HANGS)
    run = tutelage.cwd / "run"
    keys = {
        "trainer.save_freq": -1,
        "trainer.test_freq": -1,
        "trainer.val_before_train": "false",
    }
    args = with_tools(keys, tools="hangs.py:calculator", steps="8")
    job = tutelage.start(*args, HANG="yes")

    def two_timeouts() -> bool:
        lines = RunFolder(run).read_metrics()
        return (
            len(lines) >= 2
            and not lines[-1].get(failed)
            and any(line.get(failed) for line in lines)
        )

    assert job.until(two_timeouts)
    job.kill()
    lines = [without_clock(line) for line in RunFolder(run).read_metrics()]
    done = {line["tick"] for line in lines}
    before = {r.id: record(r, seconds=True) for r in stored(run) if r.step in done}
    late = [t for r in stored(run) for t in r.last.tool_results if t.error == "timeout"]
    assert late
    assert all("took longer than 4 seconds" in t.text for t in late)
    assert all(r.last.failure is None for r in stored(run)), "a tool's end is not the agent's"

    tutelage("resume", "run").check()
    after = {r.id: record(r, seconds=True) for r in stored(run)}
    assert {i: after[i] for i in before} == before, "the record is kept, durations included"
    again = [without_clock(line) for line in RunFolder(run).read_metrics()]
    assert again[: len(lines)] == lines
    trained = [r for r in stored(run) if r.mode is Mode.TRAIN]
    assert len(trained) == 8 * 16
    assert json.loads((run / "result.json").read_text())["rollouts"] == len(after)
