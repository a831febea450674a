"""What is seen while a job runs: a live picture on a terminal, plain lines anywhere else.

On a terminal the present phase is redrawn a few times a second below what has already ended, which
stays in the scrollback. Into a file, a pipe or a log goes one line at the start and end of each
phase, and one every few seconds between. A display never stops a job: when its stream is closed or
its disk is full it falls silent, and the job's record is in the run folder anyway. The lines
themselves are made in `progress_view.py`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.text import Text

from tutelage.cli.console import facts, is_utf8, leave_stream, messages, prose, say, visible
from tutelage.cli.progress_view import (
    REWARD,
    Phase,
    flow,
    metric_text,
    render_progress,
)
from tutelage.errors import counted
from tutelage.runs.estimate import duration
from tutelage.runs.progress import Progress

_REDRAWS_PER_SECOND = 4.0
_LINE_SECONDS = 5.0
"""Seconds between two plain lines of one phase; a sixtieth of the time since the start once that is
more, so that a night is no thousand lines."""


class LiveDisplay(Progress):
    """A `Progress` drawn on `console`, else on the error stream. `finish` takes it down and may
    be called twice.

    The console may go away. Lines that stay have the time since the start.
    """

    shows = True
    noun = "step"
    """What a phase counts."""

    def __init__(
        self, console: Console | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._clock = console or messages(), clock
        self._began = self._line_at = self._step_at = clock()
        self._utf8 = is_utf8(self._console)
        # A thread of its own draws the picture. Reentrant: a signal may come at any time.
        self._lock = threading.RLock()
        self._phase: Phase | None = None
        self._measuring: str | None = None
        self._rewards: list[float] = []
        self._live: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                self,
                console=self._console,
                refresh_per_second=_REDRAWS_PER_SECOND,
                transient=True,
                # What is piped elsewhere must not be drawn into the picture.
                redirect_stdout=sys.stdout.isatty(),
            )

    def open(self) -> LiveDisplay:
        """Begin to draw before the job has anything to say, since it takes a moment to load."""
        if self._live is not None:
            with self._quietly():
                self._live.start()
        return self

    def start(self, title: str, lines: Mapping[str, str]) -> None:
        """Show the title and the facts, and begin to draw."""
        self._began, self.worked = self._clock(), True
        with self._quietly():
            say(self._console, (visible(title), "bold"))
            facts(self._console, lines.items(), indent=2)
        self.open()

    def phase(self, name: str, *, steps: int | None = None, seconds: float | None = None) -> None:
        """End the phase before and begin this one."""
        self._close_phase()
        now, self.worked = self._clock(), True
        with self._lock:
            self._phase = Phase(visible(name), now, steps, seconds, self.noun)
            self._measuring = None
            self._rewards = []
        self._line_at = self._step_at = now
        if self._live is None:
            bounds = [f"at most {counted(steps, self.noun)}"] if steps else []
            bounds += [f"at most {duration(seconds)}"] if seconds else []
            self._line(": ".join([self._phase.name, *[" and ".join(bounds)] * bool(bounds)]))

    def step(self, done: int, values: Mapping[str, float]) -> None:
        """Take note of a step."""
        now, self.worked = self._clock(), True
        with self._lock:
            before = self._phase or Phase("Steps", now)
            self._phase = before.after(now, done, values)
            self._measuring = None
            if REWARD in values:
                self._rewards.append(values[REWARD])
        # A line of a measurement is no reason to leave out the next step's.
        if self._live is None and self._is_time(now, self._step_at):
            self._line_at = self._step_at = now
            words = [", ".join([self._phase.name, *self._phase.steps_words])]
            words += [
                *metric_text(self._phase.values, utf8=self._utf8),
                *self._phase.left_words(now),
            ]
            self._line("   ".join(words))

    def evaluation(self, label: str, done: int, total: int) -> None:
        """Take note of rollouts that measure; the last one ends the line."""
        now, self.worked = self._clock(), True
        ended, message = done >= total, f"measuring {visible(label)}: {done} of {total}"
        with self._lock:
            self._measuring = None if ended else message
        if self._live is None and (ended or self._is_time(now, self._line_at)):
            self._line_at = now
            self._line(message)

    def sampled(self, tokens: int) -> None:
        """Add the tokens of replies in progress to what is said of the measurement."""
        with self._lock:
            if self._measuring is None:
                return
            more = f", {counted(tokens, 'token')} sampled" * bool(tokens)
            self._measuring = message = self._measuring.partition(", ")[0] + more
        if self._live is None and self._is_time(now := self._clock(), self._line_at):
            self._line_at = now
            self._line(message)

    def note(self, text: str) -> None:
        """Show a line that stays."""
        if self._live is None:
            self._line(visible(text))
        else:
            with self._quietly():
                prose(self._console, f"Note: {text}", "yellow")

    def finish(self) -> None:
        """End the last phase and take the picture down."""
        self._close_phase()
        if self._live is not None:
            with self._quietly():
                self._live.stop()
        with self._lock:
            self._phase = self._measuring = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        with self._lock:
            phase, measuring, rewards = self._phase, self._measuring, list(self._rewards)
        if phase is None and measuring is None:
            yield Text("getting ready ...", style="dim")
        now, width = self._clock(), options.max_width
        yield from render_progress(phase, measuring, rewards, now, width, utf8=self._utf8)

    def _is_time(self, now: float, last: float) -> bool:
        return now - last >= max(_LINE_SECONDS, (now - self._began) / 60)

    def _line(self, text: str) -> None:
        # What is said before the job begins has no time: it counts from there.
        since = duration(self._clock() - self._began) if self.worked else ""
        with self._quietly():
            facts(self._console, [(f"{since:>7}", text)])

    @contextmanager
    def _quietly(self) -> Generator[None]:
        """Draw; fall silent for good when the stream is gone."""
        try:
            yield
        except OSError:
            self._console.quiet = True
            leave_stream(self._console.file)

    def _close_phase(self) -> None:
        """The line of a phase that has ended."""
        phase = self._phase
        if phase is None:
            return
        taken = duration(self._clock() - phase.began)
        words = metric_text(phase.values, utf8=self._utf8)
        done = f"{counted(phase.done, phase.noun)} in " if phase.steps_words else ""
        message = f"{phase.name}: {done}{taken}"
        if self._live is None:
            self._line("   ".join([f"{message}, ended", *words]))
            return
        with self._quietly():
            say(self._console, (message, "green"))
            for line in flow(words, max(20, self._console.width - 2)):
                say(self._console, "  ", (line, "dim"))
