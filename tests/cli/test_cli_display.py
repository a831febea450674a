"""The display on a terminal and on anything else."""

import io
import time

from rich.console import Console

from tutelage.cli.console import PlainConsole
from tutelage.cli.display import LiveDisplay
from tutelage.runs.progress import LATER, Progress


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def console(*, terminal: bool, width: int = 80, file: io.TextIOBase | None = None) -> Console:
    return PlainConsole(
        file=file or io.StringIO(),  # pyright: ignore[reportArgumentType]
        force_terminal=terminal,
        width=width,
        highlight=False,
        markup=False,
        _environ={"TERM": "xterm-256color"},
    )


def written(to: Console) -> str:
    assert isinstance(to.file, io.StringIO)
    return to.file.getvalue()


def play(display: Progress, clock: Clock) -> None:
    """A short job."""
    display.start("math", {"device": "cpu", "run": "runs/x"})
    display.phase("cold start", steps=3)
    for step in range(1, 4):
        clock.now += 3
        display.step(step, {"loss/sft": 1 / step, LATER: 60.0})
    display.phase("measure before")
    for done in range(1, 5):
        clock.now += 1
        display.evaluation("before/greedy", done, 4)
    display.note("saved a checkpoint")
    display.phase("reinforcement learning", seconds=60)
    clock.now += 10
    display.step(1, {"reward/mean": 0.5})
    display.finish()


def test_a_pipe_gets_plain_lines() -> None:
    to, clock = console(terminal=False), Clock()
    display = LiveDisplay(to, clock=clock)
    play(display, clock)
    assert written(to).splitlines() == [
        "math",
        "  device  cpu",
        "  run     runs/x",
        "   0:00  cold start: at most 3 steps",
        "   0:06  cold start, step 2/3   loss 0.5   0:03 left of this phase, 1:03 in all",
        "   0:09  cold start: 3 steps in 0:09, ended   loss 0.3333",
        "   0:09  measure before",
        "   0:13  measuring before/greedy: 4 of 4",
        "   0:13  saved a checkpoint",
        "   0:13  measure before: 0:04, ended",
        "   0:13  reinforcement learning: at most 1:00",
        "   0:23  reinforcement learning, step 1   reward 0.5   0:50 left of this phase",
        "   0:23  reinforcement learning: 1 step in 0:10, ended   reward 0.5",
    ]


def test_a_pipe_is_not_flooded() -> None:
    to, clock = console(terminal=False), Clock()
    display = LiveDisplay(to, clock=clock)
    display.start("x", {})
    display.phase("p", steps=10_000)
    before = len(written(to).splitlines())
    for step in range(10_000):
        clock.now += 0.01
        display.step(step, {"loss/sft": 1.0})
        display.evaluation("e", 1, 2)
    assert 18 <= len(written(to).splitlines()) - before <= 20


def test_the_picture_is_drawn_while_the_job_works() -> None:
    to = console(terminal=True)
    display = LiveDisplay(to).open()
    display.phase("rewarded", steps=10)
    display.step(4, {"reward/mean": 0.5})
    deadline = time.monotonic() + 20
    while "step 4/10" not in written(to) and time.monotonic() < deadline:
        time.sleep(0.02)
    display.finish()
    assert "step 4/10" in written(to)
    assert "reward 0.5" in written(to)
