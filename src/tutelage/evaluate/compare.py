"""Runs side by side: what each gained on held-out tasks, what it cost, and which one is better.

A run of any kind comes down to `RunFacts`: scores by task before and after, and what was spent.
`compare` pairs them by task, within a run and between runs, and says in words where two runs cannot
be compared. It reads no file: `compared.py` makes the facts from run folders,
`cli/compare.py` shows what is found here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

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


Scores = Mapping[str, TaskScore]
"""By the content of the task, so that files that number their tasks otherwise still meet."""


@dataclass(frozen=True, slots=True)
class TaskScores:
    """The test tasks before and after; either may be empty."""

    before: Scores = field(default_factory=dict[str, TaskScore])
    after: Scores = field(default_factory=dict[str, TaskScore])
    played_before: StoredEvaluation | None = None
    """How many rollouts were judged of how many; None where that is not known."""
    played_after: StoredEvaluation | None = None


Means = Mapping[str, float | None]
"""Means over test tasks: `reward_before`, `reward_after`, and so for `exact`; None was not
measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts(TrainedSummary):
    """One run, as far as its folder tells."""

    name: str
    folder: str
    status: str
    measured: Mapping[Measure, TaskScores]
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


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """A run with its gain. Means are over the tasks of that side; differences are paired."""

    run: RunFacts
    measure: Measure | None
    tasks: int
    """Test tasks that were played on both sides, or on the one there is."""
    means: Means
    reward: Difference | None
    exact: Difference | None
    verdict: Verdict | None
    played: tuple[StoredEvaluation | None, StoredEvaluation | None] = (None, None)
    """How many rollouts were judged of how many, before and after."""


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """The second run against the first, both after training, on the tasks that they share."""

    first: str
    second: str
    tasks: int
    reward: Difference | None
    exact: Difference | None
    verdict: Verdict | None
    """Of the second one, by its reward; None where they share no task."""
    exact_verdict: Verdict | None
    """The same by exact answers, which partial credit can hide."""
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
        rows = [asdict(row) for row in self.rows]
        for row in rows:
            row["run"].pop("measured")
            row["played"] = [side and side.model_dump(mode="json") for side in row["played"]]
        return {
            "shared_tasks": self.shared_tasks,
            "same_tasks": self.same_tasks,
            "runs": rows,
            "pairs": [asdict(pair) for pair in self.pairs],
            "conclusion": self.conclusion,
            "remarks": list(self.remarks),
        }


def compare(
    runs: Sequence[RunFacts], measure: Measure | None = None, *, seed: int = 0
) -> Comparison:
    """Compare runs in the order given; `measure` None takes the first that every run has.

    Intervals are of 10,000 paired bootstrap draws over tasks, drawn from `seed`.
    """
    seeds = SeedTree(seed).child("compare", "pair", "reward")
    sides = list[tuple[ComparisonRow, Scores]]()
    for run in runs:
        name = _measure_of(run, runs, measure)
        scores = TaskScores() if name is None else run.measured.get(name, TaskScores())
        before = {} if _withheld(scores.played_before) else scores.before
        after = {} if _withheld(scores.played_after) else scores.after
        reward, exact = _differences(before, after, seeds)
        means: dict[str, float | None] = {}
        for part, (when, side) in itertools.product(
            ("reward", "exact"), (("before", before), ("after", after))
        ):
            values = [getattr(score, part) for score in side.values()]
            known = bool(values) and None not in values
            means[f"{part}_{when}"] = sum(values) / len(values) if known else None
        row = ComparisonRow(
            run=run,
            measure=name,
            tasks=len({*before} & {*after} or after or before),
            means=means,
            played=(scores.played_before, scores.played_after),
            reward=reward,
            exact=exact,
            verdict=reward and judge_difference(reward),
        )
        sides.append((row, after))
    pairs = list[PairedComparison]()
    for (a, first), (b, second) in itertools.combinations(sides, 2):
        reward, exact = _differences(first, second, seeds)
        pair = PairedComparison(
            first=a.run.name,
            second=b.run.name,
            tasks=len({*first} & {*second}),
            reward=reward,
            exact=exact,
            verdict=reward and judge_difference(reward),
            exact_verdict=exact and judge_difference(exact),
            caveats=tuple(_caveats(a, b, {*first}, {*second})),
        )
        pairs.append(pair)
    rows, tested = [row for row, _ in sides], [{*after} for _, after in sides]
    shared = set[str].intersection(*tested) if tested else set[str]()
    same = all(tasks == shared for tasks in tested)
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


def _withheld(played: StoredEvaluation | None) -> bool:
    """Return True if too many rollouts were lost for a rate."""
    return played is not None and played.withheld


def _differences(
    before: Scores, after: Scores, seeds: SeedTree
) -> tuple[Difference | None, Difference | None]:
    """Of reward and of exactness, after minus before, over the tasks that both have. The draws are
    the same for all, so that equal scores have equal intervals."""
    keys = sorted({*before} & {*after})
    if not keys:
        return None, None
    pairs = [(before[key], after[key]) for key in keys]
    reward = paired_bootstrap(
        [a.reward for a, _ in pairs], [b.reward for _, b in pairs], seeds.numpy()
    )
    known = [(a.exact, b.exact) for a, b in pairs if a.exact is not None and b.exact is not None]
    if len(known) < len(pairs):
        return reward, None
    return reward, paired_bootstrap([a for a, _ in known], [b for _, b in known], seeds.numpy())


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
    if one.agent and two.agent and not (one.agent_mark and one.agent_mark == two.agent_mark):
        if one.agent != two.agent:
            yield f"other agent: {one.agent} and {two.agent}"
        elif one.agent_mark and two.agent_mark:
            yield f"the agent {one.agent} was edited between the two"
    what = "model" if one.evaluation or two.evaluation else "base model"
    same = _same_model(one, two)
    if same is None:
        yield f"{what} not known for certain"
    elif not same:
        yield f"other {what}: {one.base} and {two.base}"
    if a.measure != b.measure and a.measure is not None and b.measure is not None:
        yield f"other sampling: {a.measure} and {b.measure}"


def _same_model(a: RunFacts, b: RunFacts) -> bool | None:
    """Whether two runs began with the same model; an evaluation may also play what a training left.
    None where the folders do not tell."""
    if a.base_mark is None or b.base_mark is None:
        return None
    if a.evaluation == b.evaluation:
        return a.base_mark == b.base_mark
    played, trained = (a, b) if a.evaluation else (b, a)
    return played.base_mark in (trained.base_mark, trained.tested_mark)


def _conclusion(rows: Sequence[ComparisonRow], pairs: Sequence[PairedComparison]) -> str | None:
    """Who leads on the tasks that all runs share, and over which others the lead is more than
    chance."""
    means = {row.run.name: row.means["reward_after"] for row in rows}
    led = {name: mean for name, mean in means.items() if mean is not None}
    if len(led) < 2:
        return None
    top = max(led.values())
    first = [name for name, mean in led.items() if abs(mean - top) < 1e-12]
    if len(first) == len(led):
        return f"{listed(first)} have the same reward, {top:.3f}."
    ahead, level, caveats = list[str](), list[str](), dict[str, None]()
    for pair in pairs:
        names = {pair.first, pair.second}
        if first[0] in names and not names <= {*first}:
            (other,) = names - {first[0]}
            won = Verdict.IMPROVED if pair.second == first[0] else Verdict.REGRESSED
            (ahead if pair.verdict is won else level).append(other)
            caveats |= dict.fromkeys(pair.caveats) if pair.verdict is won else {}
    has, its, it_is = ("has", "its", "it is") if len(first) == 1 else ("have", "their", "they are")
    text = f"{listed(first)} {has} the highest reward, {top:.3f}"
    if ahead:
        text += f"; {its} lead over {listed(ahead)} is more than chance"
    if caveats and all(row.run.evaluation for row in rows):
        text += f" ({listed([*caveats])})"
    elif caveats:
        text += ", though more than the training differs"
    if level:
        text += f"; there is no evidence that {it_is} better than {listed(level)}"
    return text + "."


def _remarks(rows: Sequence[ComparisonRow]) -> Iterator[str]:
    """What stands in the way of reading the rows against each other, then what each run lacks."""
    trained = [row.run for row in rows if not row.run.evaluation]
    if any(_same_model(a, b) is False for a, b in itertools.combinations(trained, 2)):
        yield (
            "The base models differ: what the runs gained can be compared, but one run's lead over "
            "another is the model's as much as the training's."
        )
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
        if any(map(_withheld, row.played)):
            yield f"{name} has no rate there. {TOO_MANY_LOST}"
        if row.run.status != "finished":
            yield f"{name} is {row.run.status}, so its numbers are not final."
        if row.measure is None:
            yield f"{name} has no test scores of this kind."
        elif row.means["reward_before"] is None and not row.run.evaluation:
            yield f"{name} was not tested before and after a training, so its gain is not known."
    yield from (f"{row.run.name}: {text}" for row in rows for text in row.run.remarks)
