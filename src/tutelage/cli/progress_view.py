"""What the live display shows, as pure functions: a phase and a time in, lines out.

Nothing here touches a terminal, so that each width and each state can be tested. Lines are never
longer than the width that was asked for. `display.py` keeps the state and draws it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isfinite

from rich.text import Text

from tutelage.cli.console import number, percent
from tutelage.runs.estimate import duration
from tutelage.runs.progress import LATER
from tutelage.statistics.outcome import cause_words, too_many_lost
from tutelage.types import FailureCause

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
"""The metrics that are shown after rewards and success, in this order, and their names."""
REWARD = "reward/mean"
BAR_WIDTH = 60
_PACE = 64
_HUGE = 1e100
_SAME = 1e-9
_LEVELS = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS = "_.:-=+*#"


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase so far. Times are in seconds of one monotonic clock."""

    name: str
    began: float
    steps: int | None = None
    seconds: float | None = None
    noun: str = "step"
    done: int = 0
    values: Mapping[str, float] = field(default_factory=dict[str, float])
    pace: tuple[tuple[float, int], ...] = ()
    """The latest reports as (time, steps done): how fast it goes now."""

    def after(self, now: float, done: int, values: Mapping[str, float]) -> Phase:
        """The phase when one more report has come."""
        pace = (*self.pace, (now, done))[-_PACE:]
        # What was measured now stands for its whole group: a rate that is missing is not the last.
        fresh = {name.partition("/")[0] for name in values}
        kept = {k: v for k, v in self.values.items() if k.partition("/")[0] not in fresh}
        return replace(self, done=done, values={**kept, **values}, pace=pace)

    def time_left(self, now: float) -> float | None:
        """Seconds until the phase ends, by its budget or its pace; None while nothing tells."""
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

    def share_done(self, now: float) -> float | None:
        """How much of the phase is behind, from 0 to 1; None when it has no bound."""
        parts: list[float] = []
        if self.steps:
            parts.append(self.done / self.steps)
        if self.seconds:
            parts.append((now - self.began) / self.seconds)
        return min(1.0, max(0.0, *parts)) if parts else None

    def left_words(self, now: float) -> list[str]:
        """`2:57 left of this phase, 28:10 in all`, as far as that is known."""
        left, later = self.time_left(now), self.values.get(LATER)
        if left is None:
            return []
        in_all = "" if later is None else f", {duration(left + later)} in all"
        return [f"{duration(left)} left of this phase{in_all}"]

    @property
    def steps_words(self) -> list[str]:
        """`step 57/300`, or `step 57` without a bound; nothing for a phase that has no steps."""
        if not (self.done or self.steps):
            return []
        most = f"/{number(self.steps)}" if self.steps else ""
        return [f"{self.noun} {number(self.done)}{most}"]


def metric_text(values: Mapping[str, float], *, utf8: bool = True) -> list[str]:
    """`reward 0.84 (128/128)` and so on: rewards and success with how many were judged of how many,
    what failed, then the metrics in `METRICS` that are there."""
    of_step = values.get("rollout/judged"), values.get("rollout/number")
    words = [*_rate_words("reward", values.get(REWARD), *of_step, number)]
    for kind in ("sampled", "greedy"):
        counts = values.get(f"val/judged_{kind}"), values.get(f"val/rollouts_{kind}")
        success, mean = values.get(f"val/success_{kind}"), values.get(f"val/reward_{kind}")
        rates = [*_rate_words(kind, success, *counts, percent)]
        if success is None:
            rates = [*_rate_words(f"{kind} reward", mean, *counts, number)]
        elif mean is not None and abs(mean - success) > _SAME and not rates[0].endswith("judged"):
            rates[0] += f", reward {number(mean)}"
        words += rates
    for cause in FailureCause:
        many = values.get(f"rollout/{cause.value}", 0.0) * values.get("rollout/number", 0.0)
        if many and isfinite(many):
            lost = "lost: " if cause.infrastructure else ""
            words.append(f"{round(many)} {lost}{cause_words(cause)}")
    if (rows := values.get("rollout/rows", 1.0)) > 1:
        words.append(f"{number(rows)} rows a rollout")
    words += [f"{name} {number(values[key])}" for key, name in METRICS.items() if key in values]
    return words if utf8 else [word.replace("Δ", "d") for word in words]


def _rate_words(
    name: str,
    value: float | None,
    judged: float | None,
    total: float | None,
    words: Callable[[float], str],
) -> Iterator[str]:
    """A rate with its counts; the counts alone where too many were lost."""
    known = judged is not None and total is not None and isfinite(judged + total)
    counts = f"{judged:.0f}/{total:.0f}" if known else ""
    if known and too_many_lost(int(judged or 0), int(total or 0)):
        yield f"{name}: {counts} judged"
    elif value is not None:
        yield f"{name} {words(value)}" + (f" ({counts})" if counts else "")


def sparkline(values: Sequence[float], width: int, *, utf8: bool = True) -> str:
    """The course of a metric in at most `width` characters, each the mean of its stretch.

    The scale includes 0 and 1 whatever the values are, so that a good curve looks good.
    """
    # Clipped, so that means and the height stay finite.
    finite = [max(-_HUGE, min(_HUGE, v)) for v in values if abs(v) < float("inf")]
    if not finite or width < 1:
        return ""
    levels = _LEVELS if utf8 else _ASCII_LEVELS
    low, high = min(0.0, *finite), max(1.0, *finite)
    count = min(width, len(finite))
    edges = [round(i * len(finite) / count) for i in range(count + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in pairwise(edges)]
    top = len(levels) - 1
    return "".join(levels[round((mean - low) / (high - low) * top)] for mean in means)


def flow(words: Sequence[str], width: int, gap: str = "   ") -> Iterator[str]:
    """Words on as few lines of `width` characters as they fit, none cut unless it is longer."""
    line = ""
    for word in words:
        if line and len(line) + len(gap) + len(word) > width:
            yield line
            line = ""
        line = (line + gap + word if line else word)[:width]
    if line:
        yield line


def bar(share: float | None, width: int, *, utf8: bool = True) -> Text:
    """A bar of `width` characters; without a share, only its ground."""
    full, ground = ("━", "─") if utf8 else ("#", ".")
    filled = round((share or 0.0) * width)
    return Text.assemble((full * filled, "green"), (ground * (width - filled), "dim"))


def render_progress(
    phase: Phase | None,
    measuring: str | None,
    rewards: Sequence[float],
    now: float,
    width: int,
    *,
    utf8: bool = True,
) -> list[Text]:
    """The live lines: phase, bar, metrics, course of the reward, evaluation."""
    lines: list[Text] = []
    if phase is not None:
        gone = f"{duration(now - phase.began)} gone"
        rest = "   ".join(["", *phase.steps_words, gone, *phase.left_words(now)])
        name = phase.name[: max(8, width - len(rest))]
        lines.append(Text.assemble((name, "bold"), rest)[:width])
        lines.append(bar(phase.share_done(now), min(width, BAR_WIDTH), utf8=utf8))
        lines += [Text(line) for line in flow(metric_text(phase.values, utf8=utf8), width)]
        if len(rewards) > 1 and REWARD in phase.values:
            course = sparkline(rewards, min(width, BAR_WIDTH) - len(" reward"), utf8=utf8)
            lines.append(Text.assemble((course, "cyan"), (" reward", "dim")))
    if measuring is not None:
        lines.append(Text(measuring[:width], style="dim"))
    return lines
