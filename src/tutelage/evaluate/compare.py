"""Comparison of runs: gains on held-out tasks, costs, and which run is better.

A run of any kind is reduced to `RunFacts`: scores by task before and after training, and costs.
`compare` pairs them by task, within a run and between runs, and reports why two runs cannot be
compared. It reads no files: `compared.py` makes the facts from run folders, and `cli/compare.py`
shows the comparison.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from pydantic import TypeAdapter

from tutelage.rewards.registry import BUILTIN_REWARDS
from tutelage.runs.figures import MEASURES, Measure, ResourceUsage, TrainedSummary
from tutelage.runs.report.formatting import join_words
from tutelage.runs.stored_evaluation import TOO_MANY_LOST, StoredEvaluation, format_judged
from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import Difference, Verdict, judge_difference, paired_bootstrap
from tutelage.types import JSON


@dataclass(frozen=True, slots=True)
class TaskScore:
    """Mean scores over the judged rollouts of a task."""

    reward: float
    exact: float | None
    """Success rate; None if the run's graded reward does not define success."""


@dataclass(frozen=True, slots=True)
class TaskScores:
    """Scores of the test tasks before or after training."""

    tasks: Mapping[str, TaskScore] = field(default_factory=dict[str, TaskScore])
    """Scores by a hash of the task's content, so that tasks match between files with other ids;
    empty if too many rollouts were lost."""
    played: StoredEvaluation | None = None
    """Counts of rollouts and of judged ones; None if unknown."""

    def mean(self, part: str) -> float | None:
        """Return the mean score over the tasks, or None if the score of a task is missing."""
        values = [getattr(score, part) for score in self.tasks.values()]
        return sum(values) / len(values) if values and None not in values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts(TrainedSummary):
    """Summary of one run, read from its folder."""

    name: str
    folder: str
    status: str
    measured: Mapping[Measure, tuple[TaskScores, TaskScores]]
    """Scores before and after training; either may be empty."""
    spent: ResourceUsage
    success: str = ""
    """Definition of success as text; empty if the graded reward has none."""
    best: str | None = None
    """Path of the best prompt or policy."""
    remarks: tuple[str, ...] = ()
    trained_on: int = 0
    """Number of test tasks that are also training tasks."""

    @property
    def evaluation(self) -> bool:
        """True if the run is an evaluation, which trains nothing and has only final scores."""
        return self.trained == self.UNTRAINED


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedScores:
    """Paired score differences of two tests on their common tasks."""

    tasks: int
    reward: Difference | None
    exact: Difference | None
    verdict: Verdict | None
    """Verdict by the reward; None without common tasks."""
    exact_verdict: Verdict | None
    """Verdict by success, which partial credit in the reward can hide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow(PairedScores):
    """One run and its improvement from before to after training."""

    run: RunFacts
    measure: Measure | None
    means: Mapping[str, float | None]
    """Means over the tasks of `reward_before`, `reward_after`, `exact_before` and `exact_after`;
    None if not measured."""
    played: tuple[StoredEvaluation | None, StoredEvaluation | None] = (None, None)
    """Counts of rollouts and of judged ones, before and after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison(PairedScores):
    """Comparison of two runs after training: the second run relative to the first."""

    first: str
    second: str
    caveats: tuple[str, ...]
    """Differences between the two runs other than their training."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of several runs. `remarks` are sentences about its limitations, `conclusion` names
    the leading run, if there is one."""

    rows: tuple[ComparisonRow, ...]
    pairs: tuple[PairedComparison, ...]
    shared_tasks: int
    """Number of test tasks that every run has played after its training."""
    same_tasks: bool
    conclusion: str | None
    remarks: tuple[str, ...]

    def to_dict(self) -> JSON:
        """Convert the comparison to JSON data, without the scores of single tasks."""
        hidden = {"rows": {"__all__": {"run": {"measured"}}}}
        found = TypeAdapter(Comparison).dump_python(self, mode="json", exclude=hidden)
        return {"runs": found.pop("rows"), **found}


def compare(
    runs: Sequence[RunFacts], measure: Measure | None = None, *, seed: int = 0
) -> Comparison:
    """Compare runs in the given order. If `measure` is None, the first measure common to all runs
    is used.

    Intervals come from 10,000 paired bootstrap draws over tasks with the seed `seed`.
    """
    rows, tested = list[ComparisonRow](), list[Mapping[str, TaskScore]]()
    for run in runs:
        name = _get_measure(run, runs, measure)
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
            **_pair_scores(before.tasks, after.tasks, seed),
        )
        one_side = len(after.tasks or before.tasks)
        rows.append(row if row.tasks else replace(row, tasks=one_side))
        tested.append(after.tasks)
    pairs = list[PairedComparison]()
    for (a, first), (b, second) in itertools.combinations(zip(rows, tested, strict=True), 2):
        pair = PairedComparison(
            first=a.run.name,
            second=b.run.name,
            caveats=tuple(_list_caveats(a, b, {*first}, {*second})),
            **_pair_scores(first, second, seed),
        )
        pairs.append(pair)
    shared = set[str].intersection(*map(set, tested)) if tested else set[str]()
    same = all({*tasks} == shared for tasks in tested)
    return Comparison(
        rows=tuple(rows),
        pairs=tuple(pairs),
        shared_tasks=len(shared),
        same_tasks=same,
        conclusion=_conclude(rows, pairs) if same and shared else None,
        remarks=tuple(_list_remarks(rows)),
    )


def _get_measure(run: RunFacts, runs: Sequence[RunFacts], key: Measure | None) -> Measure | None:
    """Return the measure to show for a run: `key`, else the first measure common to all runs,
    else the run's first measure."""
    if key is not None:
        return key if key in run.measured else None
    has: list[Measure] = [name for name in MEASURES if name in run.measured]
    measured = [one.measured for one in runs if one.measured]
    common: list[Measure] = [name for name in has if all(name in some for some in measured)]
    return next(iter(common or has), None)


def _pair_scores(
    before: Mapping[str, TaskScore], after: Mapping[str, TaskScore], seed: int
) -> dict[str, Any]:
    """Return the fields of `PairedScores` for the difference `after` minus `before`. All pairs use
    the same random draws, so that equal scores have equal intervals."""
    seeds, gaps = SeedTree(seed).child("compare", "pair", "reward"), list[Difference | None]()
    keys = sorted({*before} & {*after})
    for part in ("reward", "exact"):
        old, new = ([getattr(side[key], part) for key in keys] for side in (before, after))
        known = keys and None not in (*old, *new)
        gaps.append(paired_bootstrap(old, new, seeds.numpy()) if known else None)
    verdicts = [gap and judge_difference(gap) for gap in gaps]
    values = (len(keys), *gaps, *verdicts)
    return dict(zip((entry.name for entry in fields(PairedScores)), values, strict=True))


def _list_caveats(
    a: ComparisonRow, b: ComparisonRow, first: set[str], second: set[str]
) -> Iterator[str]:
    """Yield the differences between two runs apart from their training."""
    if not first or not second:
        without = [row.run.name for row, some in ((a, first), (b, second)) if not some]
        yield f"no scores by task of {join_words(without)}"
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


def _conclude(rows: Sequence[ComparisonRow], pairs: Sequence[PairedComparison]) -> str | None:
    """Return a sentence that names the leading run on the shared tasks, and the runs with a
    significantly lower reward."""
    means = {row.run.name: row.means["reward_after"] for row in rows}
    led = {name: mean for name, mean in means.items() if mean is not None}
    if len(led) < 2:
        return None
    top, least = max(led.values()), min(led.values())
    if top - least < 1e-12:
        return f"{join_words([*led])} have the same reward, {top:.3f}."
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
        text += f"; its lead over {join_words(ahead)} is more than chance"
        text += f" ({join_words([*caveats])})" if caveats else ""
    if level:
        text += f"; there is no evidence that it is better than {join_words(level)}"
    return text + "."


def _list_remarks(rows: Sequence[ComparisonRow]) -> Iterator[str]:
    """Yield sentences about the limitations of the comparison, then the remarks of each run."""
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
                yield f"{name}, {when}: {format_judged(played)}."
        if any(played is not None and played.is_withheld for played in row.played):
            yield f"{name} has no rate there. {TOO_MANY_LOST}"
        if row.run.status != "finished":
            yield f"{name} is {row.run.status}, so its numbers are not final."
    yield from (f"{row.run.name}: {text}" for row in rows for text in row.run.remarks)
