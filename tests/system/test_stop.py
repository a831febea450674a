"""Ctrl-C, SIGTERM and SIGHUP: what is said, what is kept, and that a resume loses nothing."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable

import pytest
from tests.marks import long

from tutelage.store import open_store
from tutelage.types import RolloutStatus

from .command import Command
from .outcome import stored
from .reference import Reference

Arguments = Callable[..., list[str]]
STOPPED = "Stopped. The same command begins again."
WAY_ON = "Stopped. What was done is saved. Continue with: "


def status(command: Command) -> tuple[str, RolloutStatus]:
    """What result.json and the store say of the run."""
    run = command.cwd / "run"
    with open_store(run / "store.db", create=False) as store:
        (row,) = store.runs()
    return json.loads((run / "result.json").read_text())["status"], row.status


@pytest.mark.parametrize(
    ("kind", "moment", "number"),
    [
        ("with_tools", "reinforcement learning", signal.SIGINT),
        *long(
            ("embedded", "cold start", signal.SIGINT),
            ("embedded", "measure before", signal.SIGTERM),
            ("embedded", "control", signal.SIGINT),
            ("with_tools", "reinforcement learning", signal.SIGHUP),
        ),
    ],
)
def test_a_signal_stops_after_the_step_and_a_resume_finishes(
    references: dict[str, Reference],
    kind: str,
    moment: str,
    number: signal.Signals,
    tutelage: Command,
) -> None:
    job = tutelage.start(*references[kind].arguments)
    assert job.until(lambda: job.says(f"  {moment}: "))
    job.send(number)
    told = job.end().check(128 + number)
    assert told.err.splitlines()[-1].startswith(WAY_ON)
    assert "stopping after this step; Ctrl-C again stops at once" in told.err
    assert told.out == ""
    assert status(tutelage) == ("stopped", RolloutStatus.CANCELLED)
    run = tutelage.cwd / "run"
    named = json.loads((run / "result.json").read_text())["policy"]
    assert (named is not None) == (run / "policy").is_dir() == (moment == "control")
    listed = tutelage("show", "run").check().out
    assert "stopped" in listed
    result = json.loads((tutelage.cwd / "run" / "result.json").read_text())
    lines = (tutelage.cwd / "run" / "metrics.jsonl").read_text().splitlines()
    steps = sum(json.loads(line)["phase"] == "rl" for line in lines)
    assert result["rl_steps"] == steps
    row = tutelage("runs", "--below", ".").check().out.splitlines()[-1].split()
    if moment == "reinforcement learning":
        assert steps > 0
        assert row[2:5] == ["rl", "3", f"{steps}/5"]
    references[kind].check(tutelage)
    assert status(tutelage) == ("finished", RolloutStatus.SUCCEEDED)


SLOW_TOOL = '''
import os
import time

from tutelage.tools import tool


@tool(timeout=300)
def calculator(expression: str) -> str:
    """Work something out, unless it was told to take its time.

    Args:
        expression: what to work out
    """
    if "SLOW" in os.environ:
        time.sleep(300)
    return "42"
'''


@pytest.mark.full
def test_a_second_ctrl_c_insists(with_tools: Arguments, tutelage: Command) -> None:
    """The step waits for a tool that takes minutes; nobody has to."""
    (tutelage.cwd / "slow.py").write_text(SLOW_TOOL)
    keys = {"trainer.val_before_train": "false"}
    args = with_tools(keys, tools="slow.py:calculator")
    job = tutelage.start(*args, SLOW="yes")
    assert job.until(lambda: job.says("reinforcement learning"))
    time.sleep(1.0)
    job.send(signal.SIGINT)
    assert job.until(lambda: job.says("Ctrl-C again stops at once"))
    assert job.alive
    time.sleep(0.2)
    begun = time.monotonic()
    job.send(signal.SIGINT)
    assert job.end().check(130).err.splitlines()[-1].startswith(WAY_ON)
    assert time.monotonic() - begun < 60
    assert status(tutelage)[0] == "stopped"
    done = tutelage("resume", "run").check()
    assert "finished" in done.out
    results = [t for r in stored(tutelage.cwd / "run") for t in r.last.tool_results]
    assert results
    assert {t.error for t in results} <= {None, "unknown_tool", "invalid_arguments"}


def test_ctrl_c_before_the_run_begins_leaves_nothing(
    embedded: Arguments, tutelage: Command
) -> None:
    job = tutelage.start(*embedded())
    assert job.until((tutelage.cwd / "run" / ".lock").is_file, pause=0)
    job.send(signal.SIGINT)
    told = job.end().check(130)
    assert told.err.splitlines()[-1].startswith("Stopped")
    if "before there was anything to save" in told.err:
        assert not (tutelage.cwd / "run").exists()
    else:
        assert told.err.splitlines()[-1].startswith(WAY_ON)


def test_a_stop_during_an_evaluation_is_an_answer_too(
    references: dict[str, Reference], material: object, tutelage: Command
) -> None:
    run = str(references["with_tools"].folder / "run")
    job = tutelage.start("eval", run, "--test", f"{material}/val.jsonl", "--samples", "2000")
    assert job.until(lambda: job.says("measuring"))
    job.send(signal.SIGHUP)
    assert job.end().check(129).err.splitlines()[-1] == STOPPED
