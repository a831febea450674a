"""The display on a terminal and on anything else."""

import io
import time
from itertools import pairwise

import pytest
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


def test_what_is_said_before_a_job_begins_has_no_time() -> None:
    to, clock = console(terminal=False), Clock()
    display = LiveDisplay(to, clock=clock)
    clock.now += 45
    display.note("resumed after step 1 of cold_start")
    display.start("math", {"device": "cpu"})
    display.note("saved")
    assert written(to).splitlines() == [
        "         resumed after step 1 of cold_start",
        "math",
        "  device  cpu",
        "   0:00  saved",
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


def test_measurements_between_steps_take_no_line_of_theirs() -> None:
    """Steps of a second, five of them between two measurements of three seconds."""
    to, clock = console(terminal=False), Clock()
    display = LiveDisplay(to, clock=clock)
    display.start("x", {})
    display.phase("learning", steps=60)
    for step in range(1, 61):
        clock.now += 1
        display.step(step, {"loss/policy": 1.0})
        for done in range(1, 4) if step % 5 == 0 else ():
            clock.now += 1
            display.evaluation("rl/greedy", done, 3)
    lines = written(to).splitlines()
    steps = [int(line.split("step ")[1].split("/")[0]) for line in lines if "step " in line]
    assert len(steps) >= 12
    assert max(b - a for a, b in pairwise(steps)) <= 5


@pytest.mark.parametrize("width", [60, 80])
def test_a_terminal_keeps_ended_phases_and_nothing_is_left_live(width: int) -> None:
    to, clock = console(terminal=True, width=width), Clock()
    display = LiveDisplay(to, clock=clock).open()
    play(display, clock)
    display.finish()
    shown = written(to)
    for part in ("cold start: 3 steps in 0:09", "measure before: 0:04", "Note: saved a checkpoint"):
        assert part in shown
    assert shown.count("measure before: 0:04") == 1
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor is shown again"


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


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    for environ in ({}, {"NO_COLOR": "1"}):
        to = PlainConsole(
            file=io.StringIO(),
            force_terminal=True,
            width=80,
            _environ={"TERM": "xterm-256color", **environ},
        )
        clock = Clock()
        play(LiveDisplay(to, clock=clock), clock)
        shown.append(written(to))
    assert "\x1b[32m" in shown[0]
    assert "\x1b[32m" not in shown[1]
    assert "\x1b[33m" not in shown[1]


def test_a_dumb_terminal_gets_plain_lines() -> None:
    to = PlainConsole(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    clock = Clock()
    play(LiveDisplay(to, clock=clock), clock)
    assert "cold start, step 2/3" in written(to)
    assert "\x1b[?25l" not in written(to)


class Gone(io.StringIO):
    """A stream whose reader has gone after the first line."""

    def __init__(self, error: type[OSError]) -> None:
        super().__init__()
        self.error = error
        self.writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        if self.writes > 1:
            raise self.error(28, "gone")
        return super().write(text)


@pytest.mark.parametrize("error", [BrokenPipeError, OSError])
def test_a_display_whose_stream_is_gone_falls_silent(error: type[OSError]) -> None:
    stream, clock = Gone(error), Clock()
    to = console(terminal=False, file=stream)
    play(LiveDisplay(to, clock=clock), clock)
    assert stream.getvalue() == "math\n"
    assert stream.writes == 2, "after the first refusal nothing more may be tried"


def test_control_characters_of_labels_do_not_reach_the_terminal() -> None:
    to, clock = console(terminal=False), Clock()
    display = LiveDisplay(to, clock=clock)
    display.start("a\x1b[2J", {"run": "b\x1b[2J"})
    display.phase("c\x1b[2J")
    display.note("d\x1b[2J")
    display.evaluation("e\x1b[2J", 1, 1)
    display.finish()
    assert "\x1b" not in written(to)
