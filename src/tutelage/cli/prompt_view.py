"""What a prompt search shows while it goes on: each round as it ends, and how far it is.

`PromptDisplay` is what the search reports to. On a terminal a bar shows how far it is, how fast it
goes and how long it will take; elsewhere a line comes every few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from tutelage.cli.console import (
    counted,
    duration,
    number,
    one_line,
    prose,
    say,
    visible,
)
from tutelage.cli.display import Lines
from tutelage.engine.usage import Spend
from tutelage.prompts.figures import (
    spent_words,
)
from tutelage.runs.rounds import Observer, Round, Standing

_SHOWN = 20
"""Rewards of a round that are written out, and candidates that get a line."""
EXPERIMENT = "experiment"
"""The decision on entries of the lineage that are no candidates."""
_WHOLE = 1000
"""Columns that no line of a round passes."""
_COUNTS = {"win": "wins", "loss": "losses", "tie": "ties"}


class PromptDisplay(Lines, Observer):
    """A `Progress` and an `Observer` that draws on `console`; `finish` may be called twice."""

    def __init__(
        self,
        console: Console,
        *,
        rollouts: int | None = None,
        test: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`rollouts` is the most that the search may play, `test` what the sealed test plays."""
        super().__init__(console, clock=clock)
        self._most = {"search": rollouts, "test": test}
        self._first = dict[str, tuple[float, int]]()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._stage = ""

    # ------------------------------------------------------------ Progress

    def phase(self, name: str, *, steps: int | None = None, seconds: float | None = None) -> None:
        """A phase begins."""
        self._line(visible(name))

    def note(self, text: str) -> None:
        """Show a line that stays."""
        with self._quietly():
            prose(self._console, text, "yellow")

    def finish(self) -> None:
        """Take the bar down."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    # ------------------------------------------------------------ Observer

    def played(self, stage: str, done: int, total: int, spent: Spend) -> None:
        """Move the bar."""
        at = spent.rollouts + done
        most = max(self._most.get(stage) or 0, spent.rollouts + total)
        now = self._clock()
        self._first.setdefault(stage, (now, at))
        words = "sealed test" if stage == "test" else "searching"
        with self._quietly():
            if self._console.is_terminal and not self._console.is_dumb_terminal:
                self._draw(stage, words, at, most, spent)
            elif self._is_time(now):
                told = f"{words}: {number(at)} of at most {counted(most, 'rollout')}"
                self._line(told + self._pace(stage, at, most, now))

    def round(self, found: Round) -> None:
        """Show what a round began with, what it tried, and what is spent."""
        with self._quietly():
            # In a file or a pipe a line stays whole.
            width = self._console.width if self._console.is_terminal else _WHOLE
            say(self._console, "\n".join(round_lines(found, width)))

    def _pace(self, stage: str, at: int, most: int, now: float) -> str:
        began, first = self._first[stage]
        if now <= began or at <= first:
            return ""
        rate = (at - first) / (now - began)
        return f", {number(round(rate, 1))} a second, {duration((most - at) / rate)} left"

    def _draw(self, stage: str, words: str, at: int, most: int, spent: Spend) -> None:
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._bar.start()
        if stage != self._stage or self._task is None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(words, total=most, rate="")
            self._stage = stage
        rate = self._pace(stage, at, most, self._clock()).split(", ")
        dollars = f" ${spent.dollars:.4f}" if spent.dollars else ""
        told = (rate[1].replace(" a second", "/s") if len(rate) > 1 else "") + dollars
        self._bar.update(self._task, completed=at, total=most, rate=told)


# ---------------------------------------------------------------- words


def _average(found: Round) -> str:
    """The mean reward; how many were judged where not all were, without a mean for too few."""
    told = [] if found.average is None else [f"{found.average:.2f}"]
    if found.lost:
        judged = f"{len(found.rewards)} of {found.rollouts} judged"
        told.append(f"{judged}, the others lost to infrastructure")
    return "; ".join(told)


def round_lines(found: Round, width: int) -> Iterator[str]:
    """A round, in the form of the document that the flow comes from, then its candidates."""
    yield f"\nIteration {found.number}"
    many = len(found.components) > 1
    for name, text in sorted(found.components.items()):
        label = f"Prompt {name}" if many else "Prompt"
        yield f'  {label}: "{one_line(text, max(40, min(width, 100) - 14))}"'
    if found.rollouts:
        kind = "training" if found.split == "train" else "validation"
        yield f"  Tasks: {counted(found.rollouts, f'{kind} task')}"
        yield f"  Rewards: [{_rewards(found.rewards)}]"
        yield f"  Average: {_average(found)}"
    if not found.standings:
        yield "  Nothing new was tried: every task of the round was solved, or edits were repeats"
    trials = [s for s in found.standings if s.decision == EXPERIMENT]
    tried = [s for s in found.standings if s.decision != EXPERIMENT]
    for standing in tried[:_SHOWN]:
        yield f"  {_standing(standing, max(60, width) - 2)}"
    if len(tried) > _SHOWN:
        yield f"  and {counted(len(tried) - _SHOWN, 'more candidate')}"
    if trials:
        yield f"  {counted(len(trials), 'experiment')}: texts played on one training task each"
    yield f"  Spent: {spent_words(found.spent.to_dict(), number)}"


def _rewards(rewards: Sequence[float]) -> str:
    told = ", ".join(f"{value:.2g}" if value % 1 else f"{value:.1f}" for value in rewards[:_SHOWN])
    return told + (", ..." if len(rewards) > _SHOWN else "")


def _standing(standing: Standing, width: int) -> str:
    head = f"{standing.id[:11]}  {standing.operation:<13}"
    if standing.tasks:
        score = "" if standing.reward is None else f"{standing.reward:.2f}"
        pairs = zip(_COUNTS.items(), (standing.wins, standing.losses, standing.ties), strict=True)
        counts = ", ".join(f"{n} {one if n == 1 else many}" for (one, many), n in pairs)
        head += f"  {score} on {standing.tasks:>2} tasks  {counts}"
    why = one_line(f"{standing.decision}: {standing.reason}", max(20, width - len(head)))
    return f"{head}  {why}"
