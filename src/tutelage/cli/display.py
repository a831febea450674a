"""Progress of a job: a live display on a terminal, plain lines elsewhere.

On a terminal the current phase is redrawn a few times per second below finished phases, which stay
in the scrollback. A file, a pipe or a log gets one line at the start and the end of each phase, and
one every few seconds between. A display never stops a job: it prints nothing more once its stream
is closed or its disk is full, and the run folder has the job's record.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import isfinite, nan

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.text import Text

from tutelage.cli.console import (
    discard_stream,
    echo,
    echo_pairs,
    echo_text,
    escape,
    is_utf8,
    messages,
    number,
    percent,
)
from tutelage.errors import pluralize
from tutelage.runs.estimate import duration
from tutelage.runs.progress import LATER, Progress
from tutelage.statistics.outcome import format_cause, too_many_lost
from tutelage.types import FailureCause

_REDRAWS_PER_SECOND = 4.0
_LINE_SECONDS = 5.0
"""Minimum seconds between two plain lines of a phase; later a sixtieth of the time since the start,
so that a night does not fill the log."""

METRICS: Mapping[str, str] = {
    "loss/policy": "loss",
    "loss/sft": "loss",
    "train_loss": "loss",
    "val_loss": "val loss",
    "val_node_f1": "node F1",
    "val_edge_f1": "edge F1",
    "train_reward": "reward",
    "max_dlogp": "max |Δlogp|",
    "staleness/mean": "versions behind",
    "tokens_per_second": "tokens/s",
    "cost": "$",
}
"""Displayed name of each metric that is shown after rewards and success, in this order."""
REWARD = "reward/mean"
_BAR_WIDTH, _PACE, _SAME = 60, 64, 1e-9


@dataclass(frozen=True, slots=True)
class Phase:
    """Progress of one phase. Times are in seconds of a monotonic clock."""

    name: str
    began: float
    steps: int | None = None
    seconds: float | None = None
    noun: str = "step"
    done: int = 0
    values: Mapping[str, float] = field(default_factory=dict[str, float])
    pace: tuple[tuple[float, int], ...] = ()
    """Latest reports as (time, steps done), from which the speed is estimated."""

    def with_report(self, now: float, done: int, values: Mapping[str, float]) -> Phase:
        """Return a copy of the phase, updated with the progress and metrics of a report."""
        pace = (*self.pace, (now, done))[-_PACE:]
        # What was measured now stands for its whole group: a rate that is missing is not the last.
        groups = {name.partition("/")[0] for name in values}
        previous = {k: v for k, v in self.values.items() if k.partition("/")[0] not in groups}
        return replace(self, done=done, values={**previous, **values}, pace=pace)

    def time_left(self, now: float) -> float | None:
        """Return the estimated seconds until the phase ends, from its time limit and its speed;
        None if unknown."""
        numbers: list[float] = []
        if self.seconds is not None:
            numbers.append(self.seconds - (now - self.began))
        if self.steps is not None and len(self.pace) > 1:
            (first, before), (last, done) = self.pace[0], self.pace[-1]
            if done > before and last > first:
                per_step = (last - first) / (done - before)
                # What has passed since the last report is part of the step in progress.
                numbers.append((self.steps - done) * per_step - min(now - last, per_step))
        return max(0.0, min(numbers)) if numbers else None

    def fraction_done(self, now: float) -> float | None:
        """Return the finished fraction of the phase, from 0 to 1; None if it has no limit."""
        fractions: list[float] = []
        if self.steps:
            fractions.append(self.done / self.steps)
        if self.seconds:
            fractions.append((now - self.began) / self.seconds)
        return min(1.0, max(0.0, *fractions)) if fractions else None

    def format_time_left(self, now: float) -> list[str]:
        """Return `2:57 left of this phase, 28:10 in all` as a list; empty if unknown."""
        seconds, later = self.time_left(now), self.values.get(LATER)
        if seconds is None:
            return []
        in_all = "" if later is None else f", {duration(seconds + later)} in all"
        return [f"{duration(seconds)} left of this phase{in_all}"]

    @property
    def step_texts(self) -> list[str]:
        """Steps as `step 57/300`, or `step 57` without a limit; empty if the phase has no steps."""
        if not (self.done or self.steps):
            return []
        limit = f"/{number(self.steps)}" if self.steps else ""
        return [f"{self.noun} {number(self.done)}{limit}"]


def metric_text(values: Mapping[str, float], *, utf8: bool = True) -> list[str]:
    """Return texts such as `reward 0.84 (128/128)`: rewards and success with the counts of judged
    rollouts, failures, then the metrics of `METRICS` that are present."""

    def rate(name: str, value: float | None, keys: str, fmt: Callable[[float], str]) -> list[str]:
        """Return a rate with its counts, or only the counts if too many rollouts were lost."""
        judged, total = (values.get(key, nan) for key in keys.split())
        finite = isfinite(judged + total)
        counts = f"{judged:.0f}/{total:.0f}" if finite else ""
        if finite and too_many_lost(int(judged), int(total)):
            return [f"{name}: {counts} judged"]
        return [] if value is None else [f"{name} {fmt(value)}" + f" ({counts})" * finite]

    texts = rate("reward", values.get(REWARD), "rollout/judged rollout/number", number)
    for kind in ("sampled", "greedy"):
        counts = f"val/judged_{kind} val/rollouts_{kind}"
        success, mean = values.get(f"val/success_{kind}"), values.get(f"val/reward_{kind}")
        rates = rate(kind, success, counts, percent)
        if success is None:
            rates = rate(f"{kind} reward", mean, counts, number)
        elif mean is not None and abs(mean - success) > _SAME and not rates[0].endswith("judged"):
            rates[0] += f", reward {number(mean)}"
        texts += rates
    for cause in FailureCause:
        count = values.get(f"rollout/{cause.value}", 0.0) * values.get("rollout/number", 0.0)
        if count and isfinite(count):
            prefix = "lost: " if cause.infrastructure else ""
            texts.append(f"{round(count)} {prefix}{format_cause(cause)}")
    if (rows := values.get("rollout/rows", 1.0)) > 1:
        texts.append(f"{number(rows)} rows a rollout")
    texts += [f"{name} {number(values[key])}" for key, name in METRICS.items() if key in values]
    return texts if utf8 else [word.replace("Δ", "d") for word in texts]


class LiveDisplay(Progress):
    """Progress display on `console`, by default on the error stream. `finish` may be called twice.

    A closed stream is ignored. Lines are printed with the time since the start.
    """

    shows = True
    noun = "step"
    """Unit of the progress of a phase."""

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
        """Start drawing before the first report of the job, because loading takes time."""
        if self._live is not None:
            with self._ignore_closed_stream():
                self._live.start()
        return self

    def __enter__(self) -> LiveDisplay:
        return self.open()

    def __exit__(self, *raised: object) -> None:
        self.finish()

    def start(self, title: str, lines: Mapping[str, str]) -> None:
        """Print the title and settings of the job, and start the progress display."""
        self._began, self.worked = self._clock(), True
        with self._ignore_closed_stream():
            echo(self._console, (escape(title), "bold"))
            echo_pairs(self._console, lines.items(), indent=2)
        self.open()

    def phase(self, name: str, *, steps: int | None = None, seconds: float | None = None) -> None:
        """End the current phase and begin a new one."""
        self._close_phase()
        now, self.worked = self._clock(), True
        with self._lock:
            self._phase = Phase(escape(name), now, steps, seconds, self.noun)
            self._measuring = None
        self._line_at = self._step_at = now
        if self._live is None:
            bounds = [f"at most {pluralize(steps, self.noun)}"] if steps else []
            bounds += [f"at most {duration(seconds)}"] if seconds else []
            self._print_line(": ".join([self._phase.name, *[" and ".join(bounds)] * bool(bounds)]))

    def step(self, done: int, values: Mapping[str, float]) -> None:
        """Record the metrics of a step."""
        now, self.worked = self._clock(), True
        with self._lock:
            before = self._phase or Phase("Steps", now)
            self._phase = before.with_report(now, done, values)
            self._measuring = None
        # A line of a measurement is no reason to leave out the next step's.
        if self._live is None and self._is_due(now, self._step_at):
            self._line_at = self._step_at = now
            texts = [", ".join([self._phase.name, *self._phase.step_texts])]
            texts += [
                *metric_text(self._phase.values, utf8=self._utf8),
                *self._phase.format_time_left(now),
            ]
            self._print_line("   ".join(texts))

    def evaluation(self, label: str, done: int, total: int) -> None:
        """Record the progress of an evaluation; its line is removed after the last rollout."""
        now, self.worked = self._clock(), True
        finished, message = done >= total, f"measuring {escape(label)}: {done} of {total}"
        with self._lock:
            self._measuring = None if finished else message
        if self._live is None and (finished or self._is_due(now, self._line_at)):
            self._line_at = now
            self._print_line(message)

    def note(self, text: str) -> None:
        """Print a permanent line above the live display."""
        if self._live is None:
            self._print_line(escape(text))
        else:
            with self._ignore_closed_stream():
                echo_text(self._console, f"Note: {text}", "yellow")

    def finish(self) -> None:
        """End the last phase and stop drawing."""
        self._close_phase()
        if self._live is not None:
            with self._ignore_closed_stream():
                self._live.stop()
        with self._lock:
            self._phase = self._measuring = None

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        with self._lock:
            phase, measuring = self._phase, self._measuring
        if phase is None and measuring is None:
            yield Text("getting ready ...", style="dim")
        now, width = self._clock(), options.max_width
        if phase is not None:
            elapsed = f"{duration(now - phase.began)} gone"
            suffix = "   ".join(["", *phase.step_texts, elapsed, *phase.format_time_left(now)])
            yield Text.assemble((phase.name[: max(8, width - len(suffix))], "bold"), suffix)[:width]
            bar = ProgressBar(1.0, phase.fraction_done(now) or 0.0, width=min(width, _BAR_WIDTH))
            yield Padding(bar, 0)
            texts = metric_text(phase.values, utf8=self._utf8)
            yield Columns(map(Text, texts), padding=(0, 3, 0, 0))
        if measuring is not None:
            yield Text(measuring[:width], style="dim")

    def _is_due(self, now: float, last: float) -> bool:
        return now - last >= max(_LINE_SECONDS, (now - self._began) / 60)

    def _print_line(self, text: str) -> None:
        # What is said before the job begins has no time: it counts from there.
        since = duration(self._clock() - self._began) if self.worked else ""
        with self._ignore_closed_stream():
            echo_pairs(self._console, [(f"{since:>7}", text)])

    @contextmanager
    def _ignore_closed_stream(self) -> Generator[None]:
        """Context that silences the console if its stream is closed."""
        try:
            yield
        except OSError:
            self._console.quiet = True
            discard_stream(self._console.file)

    def _close_phase(self) -> None:
        """Print the summary line of the finished phase."""
        phase = self._phase
        if phase is None:
            return
        elapsed = duration(self._clock() - phase.began)
        texts = metric_text(phase.values, utf8=self._utf8)
        done = f"{pluralize(phase.done, phase.noun)} in " if phase.step_texts else ""
        message = f"{phase.name}: {done}{elapsed}"
        if self._live is None:
            self._print_line("   ".join([f"{message}, ended", *texts]))
            return
        with self._ignore_closed_stream():
            echo(self._console, (message, "green"))
            echo_text(self._console, "  " + "   ".join(texts), "dim", indent=2)
