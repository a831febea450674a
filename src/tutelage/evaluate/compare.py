"""Runs side by side: what each gained on held-out tasks, what it cost, and which one is better.

A run of any kind comes down to `RunFacts`: scores by task before and after, and what was spent.
`compare` pairs them by task, within a run and between runs, and says in words where two runs cannot
be compared. It reads no file: `compared.py` makes the facts from run folders,
`cli/compare.py` shows what is found here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from pydantic import TypeAdapter

from tutelage.rewards.registry import BUILTIN_REWARDS
from tutelage.runs.figures import MEASURES, Measure, ResourceUsage, TrainedSummary
from tutelage.runs.report.formatting import listed
from tutelage.runs.stored_evaluation import TOO_MANY_LOST, StoredEvaluation, judged_text
from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import Difference, Verdict, judge_difference, paired_bootstrap
from tutelage.types import JSON


@dataclass(frozen=True, slots=True)
class TaskScore:
    """What one task earned, in the mean of its rollouts that were judged."""

    reward: float
    exact: float | None
    """The share of successes; None where the run's graded reward does not say what one is."""


@dataclass(frozen=True, slots=True)
class TaskScores:
    """The test tasks before a training or after it."""

    tasks: Mapping[str, TaskScore] = field(default_factory=dict[str, TaskScore])
    """By the content of the task, so that files that number their tasks otherwise still meet; none
    where too many rollouts were lost for a rate."""
    played: StoredEvaluation | None = None
    """How many rollouts were judged of how many; None where that is not known."""

    def mean(self, part: str) -> float | None:
        """The mean over the tasks; None where one has no such score."""
        values = [getattr(score, part) for score in self.tasks.values()]
        return sum(values) / len(values) if values and None not in values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts(TrainedSummary):
    """One run, as far as its folder tells."""

    name: str
    folder: str
    status: str
    measured: Mapping[Measure, tuple[TaskScores, TaskScores]]
    """The tests before and after; either may be empty."""
    spent: ResourceUsage
    success: str = ""
    """What counts as success, in words; empty where the graded reward does not say."""
    best: str | None = None
    """Where the best prompt or policy lies."""
    remarks: tuple[str, ...] = ()
    trained_on: int = 0
    """Test tasks that are also training tasks."""

    @property
    def evaluation(self) -> bool:
        """Whether nothing was trained, so that there is one side only."""
        return self.trained == self.UNTRAINED


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedScores:
    """Scores of one test against those of another one, on the tasks that both have played."""

    tasks: int
    reward: Difference | None
    exact: Difference | None
    verdict: Verdict | None
    """By the reward; None where there is no task."""
    exact_verdict: Verdict | None
    """The same by exact answers, which partial credit can hide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow(PairedScores):
    """A run with its gain, after its training against before it."""

    run: RunFacts
    measure: Measure | None
    means: Mapping[str, float | None]
    """Over the tasks of that side: `reward_before`, `reward_after`, and so for `exact`; None was
    not measured."""
    played: tuple[StoredEvaluation | None, StoredEvaluation | None] = (None, None)
    """How many rollouts were judged of how many, before and after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison(PairedScores):
    """The second run against the first, both after training."""

    first: str
    second: str
    caveats: tuple[str, ...]
    """What else differs between the two than their training."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All of it. `remarks` are sentences about what makes numbers hard to compare, `conclusion` one
    about who leads, where that can be said."""

    rows: tuple[ComparisonRow, ...]
    pairs: tuple[PairedComparison, ...]
    shared_tasks: int
    """Test tasks that every run has played after its training."""
    same_tasks: bool
    conclusion: str | None
    remarks: tuple[str, ...]

    def to_dict(self) -> JSON:
        """As JSON, every number as it is; scores by task are left out."""
        hidden = {"rows": {"__all__": {"run": {"measured"}}}}
        found = TypeAdapter(Comparison).dump_python(self, mode="json", exclude=hidden)
        return {"runs": found.pop("rows"), **found}


def compare(
    runs: Sequence[RunFacts], measure: Measure | None = None, *, seed: int = 0
) -> Comparison:
    """Compare runs in the order given; `measure` None takes the first that every run has.

    Intervals are of 10,000 paired bootstrap draws over tasks, drawn from `seed`.
    """
    rows, tested = list[ComparisonRow](), list[Mapping[str, TaskScore]]()
    for run in runs:
        name = _measure_of(run, runs, measure)
        before, after = (TaskScores(),) * 2 if name is None else run.measured[name]
        row = ComparisonRow(
            run=run,
            measure=name,
            means={
                f"{part}_{when}": side.mean(part)
                for part in ("reward", "exact")
                for when, side in (("before", before), ("after", after))
            },
            played=(before.played, after.played),
            **_paired(before.tasks, after.tasks, seed),
        )
        one_side = len(after.tasks or before.tasks)
        rows.append(row if row.tasks else replace(row, tasks=one_side))
        tested.append(after.tasks)
    pairs = list[PairedComparison]()
    for (a, first), (b, second) in itertools.combinations(zip(rows, tested, strict=True), 2):
        pair = PairedComparison(
            first=a.run.name,
            second=b.run.name,
            caveats=tuple(_caveats(a, b, {*first}, {*second})),
            **_paired(first, second, seed),
        )
        pairs.append(pair)
    shared = set[str].intersection(*map(set, tested)) if tested else set[str]()
    same = all({*tasks} == shared for tasks in tested)
    return Comparison(
        rows=tuple(rows),
        pairs=tuple(pairs),
        shared_tasks=len(shared),
        same_tasks=same,
        conclusion=_conclusion(rows, pairs) if same and shared else None,
        remarks=tuple(_remarks(rows)),
    )


def _measure_of(run: RunFacts, runs: Sequence[RunFacts], wanted: Measure | None) -> Measure | None:
    """What is shown of a run: what is wanted, else what all have, else the first that it has."""
    if wanted is not None:
        return wanted if wanted in run.measured else None
    has: list[Measure] = [name for name in MEASURES if name in run.measured]
    measured = [one.measured for one in runs if one.measured]
    common: list[Measure] = [name for name in has if all(name in some for some in measured)]
    return next(iter(common or has), None)


def _paired(
    before: Mapping[str, TaskScore], after: Mapping[str, TaskScore], seed: int
) -> dict[str, Any]:
    """The fields of `PairedScores`, after minus before. The draws are the same for all, so that
    equal scores have equal intervals."""
    seeds, gaps = SeedTree(seed).child("compare", "pair", "reward"), list[Difference | None]()
    keys = sorted({*before} & {*after})
    for part in ("reward", "exact"):
        old, new = ([getattr(side[key], part) for key in keys] for side in (before, after))
        known = keys and None not in (*old, *new)
        gaps.append(paired_bootstrap(old, new, seeds.numpy()) if known else None)
    verdicts = [gap and judge_difference(gap) for gap in gaps]
    values = (len(keys), *gaps, *verdicts)
    return dict(zip((entry.name for entry in fields(PairedScores)), values, strict=True))


def _caveats(
    a: ComparisonRow, b: ComparisonRow, first: set[str], second: set[str]
) -> Iterator[str]:
    """Why a difference between two runs is not that of their training alone."""
    if not first or not second:
        without = [row.run.name for row, some in ((a, first), (b, second)) if not some]
        yield f"no scores by task of {listed(without)}"
    elif not first & second:
        yield "no test task in common"
    elif first != second:
        yield f"other test tasks: {len(first & second)} of {len(first | second)} shared"
    one, two = a.run, b.run
    if BUILTIN_REWARDS.get(one.grader, one.grader) != BUILTIN_REWARDS.get(two.grader, two.grader):
        yield f"other grader: {one.grader} and {two.grader}"  # a built-in one may have two names
    # An own agent is the same in any place that its code has.
    known = one.agent_mark and two.agent_mark
    same = known and one.agent_mark == two.agent_mark
    if one.agent and two.agent and not same and (known or one.agent != two.agent):
        yield f"other agent, or other code of it: {one.agent} and {two.agent}"
    played, trained = (one, two) if one.evaluation else (two, one)
    left = trained.tested_mark if one.evaluation != two.evaluation else None
    if one.base_mark is None or two.base_mark is None:
        yield "model not known for certain"
    elif played.base_mark not in (trained.base_mark, left):
        yield f"other model: {one.base} and {two.base}"
    if a.measure != b.measure and a.measure is not None and b.measure is not None:
        yield f"other sampling: {a.measure} and {b.measure}"


def _conclusion(rows: Sequence[ComparisonRow], pairs: Sequence[PairedComparison]) -> str | None:
    """Who leads on the tasks that all runs share, and over which others the lead is more than
    chance."""
    means = {row.run.name: row.means["reward_after"] for row in rows}
    led = {name: mean for name, mean in means.items() if mean is not None}
    if len(led) < 2:
        return None
    top, least = max(led.values()), min(led.values())
    if top - least < 1e-12:
        return f"{listed([*led])} have the same reward, {top:.3f}."
    first = next(name for name, mean in led.items() if mean == top)
    ahead, level, caveats = list[str](), list[str](), dict[str, None]()
    for pair in pairs:
        if first in (pair.first, pair.second):
            other = pair.second if pair.first == first else pair.first
            won = Verdict.IMPROVED if pair.second == first else Verdict.REGRESSED
            (ahead if pair.verdict is won else level).append(other)
            caveats |= dict.fromkeys(pair.caveats) if pair.verdict is won else {}
    text = f"{first} has the highest reward, {top:.3f}"
    if ahead:
        text += f"; its lead over {listed(ahead)} is more than chance"
        text += f" ({listed([*caveats])})" if caveats else ""
    if level:
        text += f"; there is no evidence that it is better than {listed(level)}"
    return text + "."


def _remarks(rows: Sequence[ComparisonRow]) -> Iterator[str]:
    """What stands in the way of reading the rows against each other, then what each run lacks."""
    rules = dict.fromkeys(row.run.success or "none" for row in rows if row.run.measured)
    if len(rules) > 1:
        yield (
            f"Success is not the same thing in all runs ({'; '.join(rules)}), so compare them by "
            "their mean reward."
        )
    for row in rows:
        name = row.run.name
        for when, played in zip(("before", "after"), row.played, strict=True):
            if played is not None and played.lost:
                yield f"{name}, {when}: {judged_text(played)}."
        if any(played is not None and played.withheld for played in row.played):
            yield f"{name} has no rate there. {TOO_MANY_LOST}"
        if row.run.status != "finished":
            yield f"{name} is {row.run.status}, so its numbers are not final."
    yield from (f"{row.run.name}: {text}" for row in rows for text in row.run.remarks)
