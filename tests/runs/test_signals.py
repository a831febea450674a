"""Being asked to end, in processes of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

import pytest

LISTENING = """
import sys, time
from tutelage.runs.signals import exit_code, handle_signals
handle_signals()
try:
    print("ready", flush=True)
    sys.stdin.readline()
    print("went on", flush=True)
except KeyboardInterrupt as stopped:
    print("saved", flush=True)
    sys.exit(exit_code(stopped))
"""
FITTING = """
import asyncio, sys
from tutelage.trainer.running import run_blocking

async def training():
    try:
        print("ready", flush=True)
        await asyncio.sleep(600)
    finally:
        print("saved", flush=True)

run_blocking(training())
"""

IN_A_NOTEBOOK = FITTING.replace(
    "run_blocking(training())",
    """
async def cell():
    try:
        run_blocking(training())
    except KeyboardInterrupt:
        print("interrupted", flush=True)

asyncio.run(cell())
""",
)


@contextmanager
def program(code: str, *before: str) -> Generator[subprocess.Popen[str]]:
    """A program that has said that it is ready."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*before, sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_an_interruption_with_its_own_exit_code(number: signal.Signals) -> None:
    with program(LISTENING) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert (out, process.returncode) == ("saved\n", 128 + number), err


def test_under_nohup_a_hangup_is_not_heard() -> None:
    with program(LISTENING, "nohup") as process:
        process.send_signal(signal.SIGHUP)
        out, err = process.communicate("go on\n", timeout=120)
    assert (out, process.returncode) == ("went on\n", 0), err


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.full)]
)
def test_a_trainer_saves_before_the_signal_ends_its_program(number: signal.Signals) -> None:
    with program(FITTING) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert (out, process.returncode) == ("saved\n", -number), err


@pytest.mark.full
def test_an_interrupted_notebook_cell_cancels_its_training_and_waits() -> None:
    with program(IN_A_NOTEBOOK) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (out, process.returncode) == ("saved\ninterrupted\n", 0), err
