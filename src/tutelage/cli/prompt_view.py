"""What a prompt search shows: the plan first, each round as it ends, the sealed test at the last.

`PromptDisplay` is what the search reports to. On a terminal a bar shows how far it is, how fast it
goes and how long it will take; elsewhere a line comes every few seconds. Results are shown from
`result.json`, so that the end of a search and `tutelage show RUN` say the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

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
    facts,
    next_steps,
    number,
    one_line,
    plain_table,
    prose,
    say,
    shown_path,
    visible,
)
from tutelage.cli.display import Lines
from tutelage.engine.usage import Spend
from tutelage.prompts.figures import (
    SEALED,
    UNCHANGED,
    judged_lines,
    read_verdict,
    sealed_rows,
    spent_words,
)
from tutelage.prompts.plan import Plan
from tutelage.runs.folder import RunFolder
from tutelage.runs.rounds import Observer, Round, Standing
from tutelage.statistics.intervals import FEW

_SHOWN = 20
"""Rewards of a round that are written out, and candidates that get a line."""
_SOME = 0.05
"""Reward from which on a change is also told in percent."""
EXPERIMENT = "experiment"
"""The decision on entries of the lineage that are no candidates."""
_WHOLE = 1000
"""Columns that no line of a round passes."""
_PLURALS = {"win": "wins", "loss": "losses", "tie": "ties"}
_STYLES = {"good": "green", "open": "yellow", "bad": "red"}


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


def plan_lines(plan: Plan, *, tests: int, ended_by: str) -> list[tuple[str, str]]:
    """The plan as facts."""
    test, search = plan.test, plan.search
    calls = ""
    if search.optimiser_calls or not plan.calls_bounded:
        known = counted(search.optimiser_calls, "optimiser call")
        calls = f", {known if plan.calls_bounded else 'any number of optimiser calls'}"
    lines = [
        ("search", f"at most {counted(search.rollouts, 'rollout')}{calls}; {ended_by}"),
        (
            "sealed test",
            f"{counted(tests, 'task')}, seed and best: {counted(test.rollouts, 'rollout')}",
        ),
    ]
    total = plan.total
    if total.tokens:
        lines.append(("worst case", _worst(plan)))
    return lines


def _worst(plan: Plan) -> str:
    total = plan.total
    told = f"{counted(total.rollouts, 'rollout')}, {counted(total.tokens, 'token')}"
    if not plan.calls_bounded:
        told += " beside the optimiser's"
    if not plan.dollars_known:
        return f"{told}; dollars are not known"
    return f"{told}, ${total.dollars:.2f}" if total.dollars else f"{told}, no money"


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
        pairs = (("win", standing.wins), ("loss", standing.losses), ("tie", standing.ties))
        counts = ", ".join(f"{n} {word if n == 1 else _PLURALS[word]}" for word, n in pairs)
        head += f"  {score} on {standing.tasks:>2} tasks  {counts}"
    return (
        f"{head}  {one_line(f'{standing.decision}: {standing.reason}', max(20, width - len(head)))}"
    )


# ---------------------------------------------------------------- the outcome


def show_prompt_outcome(console: Console, folder: RunFolder, result: Mapping[str, Any]) -> None:
    """The sealed test with its interval and verdict, what it took, and where things lie."""
    for text in sorted(result["components"].items()):
        say(
            console,
            ("Best prompt", "bold"),
            "" if len(result["components"]) == 1 else f" {text[0]}",
        )
        for line in visible(text[1]).split("\n"):
            say(console, f"  {line}")
    say(console)
    same = result["components"] == result["seed_components"]
    show_sealed(console, result["test"], same=same)
    for look in result.get("confirmations", ()):
        say(console, ("\nConfirmation on fresh tasks", "bold"))
        show_sealed(console, look, same=same)
    say(console)
    facts(console, _totals(folder, result))


def show_sealed(console: Console, test: Mapping[str, Any], *, same: bool = False) -> None:
    """One sealed test: the table, the verdict, the improvement. `same`: the seed prompt won."""
    table = plain_table(f"sealed test, {test['tasks']} tasks", *SEALED, right=SEALED)
    for row in sealed_rows(test):
        table.add_row(*row)
    console.print(table)
    for line in judged_lines(test):
        say(console, (line, "dim"))
    verdict = read_verdict(test)
    told = verdict.words
    if test["tasks"] < FEW:
        told += f" (sign test, p = {test['p_value']:.2g}: on so few tasks it decides)"
    elif verdict.tone != "open":
        told += f": the interval {verdict.rests_on}"
    told = UNCHANGED if same else told
    style = _STYLES[verdict.tone]
    say(console, ("Verdict: ", "bold"), (test["verdict"], style), f", {told}")
    before, after = test["seed_reward"], test["best_reward"]
    # A share of next to nothing would be a large number without a meaning.
    share = f" ({100 * (after - before) / before:+.0f} %)" if before >= _SOME else ""
    word = "Improvement: " if test["verdict"] == "improved" else "Change: "
    say(console, (word, "bold"), f"{before:.2f} -> {after:.2f}{share}")
    looks = int(test["looks"])
    if looks > 1:
        prose(console, f"This is look {looks} at test tasks; each look makes a verdict weaker.")


def show_prompt_next(console: Console, folder: RunFolder) -> None:
    """Commands that go on from this run."""
    path = shown_path(folder.path)
    next_steps(
        console,
        f"tutelage prompts tree {path}",
        f"tutelage prompts diff {path} seed best",
        f"tutelage prompts confirm {path}",
        f"tutelage show {path} --rollouts 20",
    )


def _totals(folder: RunFolder, result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "algorithm", str(result["reason"])
    yield "ended", str(result["ended"])
    spent, test = (spent_words(result[name], number) for name in ("spent", "test_spent"))
    yield "spent", f"{spent}; on the test {test}"
    if unknown := result.get("calls_without_usage"):
        yield "without usage", f"{counted(unknown, 'call')}, charged at the bytes of their text"
    words = [f"{duration(result['wall_seconds'])} wall time", f"seed {result['seed']}"]
    yield "took", ", ".join(words)
    yield "run", shown_path(folder.path)
    yield "best prompt", shown_path(folder.path / "best_prompt.txt")
    for name in ("report.html", "lineage.html"):
        if (folder.path / name).is_file():
            yield name.partition(".")[0], shown_path(folder.path / name)
