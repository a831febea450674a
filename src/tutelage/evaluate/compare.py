"""Runs side by side: what each gained on held-out tasks, what it cost, and which one is better.

A run of any kind comes down to `RunFacts`: scores by task before and after, and what was spent.
`compare` pairs them by task, within a run and between runs, and says in words where two runs cannot
be compared. It reads no file: `compared.py` makes the facts from run folders,
`cli/compare.py` shows what is found here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

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

    @property
    def judged(self) -> TaskScores:
        """Without the sides of which too many rollouts were lost for a rate."""
        before = {} if _withheld(self.played_before) else self.before
        after = {} if _withheld(self.played_after) else self.after
        return replace(self, before=before, after=after)


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
    means: Mapping[Measure, Means] = field(default_factory=dict[Measure, Means])
    """What stands in for scores that cannot be read."""
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
            row["run"].pop("means")
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
    chosen: list[Measure | None] = [_measure_of(run, runs, measure) for run in runs]
    rows = [_row(run, one, seeds) for run, one in zip(runs, chosen, strict=True)]
    pairs = [_pair(a, b, seeds) for a, b in itertools.combinations(rows, 2)]
    tested = [{*_tested(row)} for row in rows]
    shared = set[str].intersection(*tested) if tested else set[str]()
    same = all(t == shared for t in tested)
    remarks = [f"{row.run.name}: {text}" for row in rows for text in row.run.remarks]
    return Comparison(
        rows=tuple(rows),
        pairs=tuple(pairs),
        shared_tasks=len(shared),
        same_tasks=same,
        conclusion=_conclusion(rows, pairs) if same and shared else None,
        remarks=(*_remarks(rows, len(shared), same), *remarks),
    )


def _measure_of(run: RunFacts, runs: Sequence[RunFacts], wanted: Measure | None) -> Measure | None:
    """What is shown of a run: what is wanted, else what all have, else the first that it has."""
    has = _has(run)
    if wanted is not None:
        return wanted if wanted in has else None
    tested = [_has(one) for one in runs if _has(one)]
    common: list[Measure] = [name for name in has if all(name in some for some in tested)]
    return next(iter(common or has), None)


def _row(run: RunFacts, measure: Measure | None, seeds: SeedTree) -> ComparisonRow:
    task_scores = _scores(run, measure)
    reward, exact = _differences(task_scores.before, task_scores.after, seeds)
    paired = {*task_scores.before} & {*task_scores.after}
    return ComparisonRow(
        run=run,
        measure=measure,
        tasks=len(paired or task_scores.after or task_scores.before),
        means=_means(task_scores, {} if measure is None else run.means.get(measure, {})),
        played=(task_scores.played_before, task_scores.played_after),
        reward=reward,
        exact=exact,
        verdict=reward and judge_difference(reward),
    )


def _pair(a: ComparisonRow, b: ComparisonRow, seeds: SeedTree) -> PairedComparison:
    first, second = _tested(a), _tested(b)
    reward, exact = _differences(first, second, seeds)
    return PairedComparison(
        first=a.run.name,
        second=b.run.name,
        tasks=len({*first} & {*second}),
        reward=reward,
        exact=exact,
        verdict=reward and judge_difference(reward),
        exact_verdict=exact and judge_difference(exact),
        caveats=tuple(_caveats(a, b)),
    )


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


def _caveats(a: ComparisonRow, b: ComparisonRow) -> Iterator[str]:
    """Why a difference between two runs is not that of their training alone."""
    first, second = {*_tested(a)}, {*_tested(b)}
    if not first or not second:
        without = [row.run.name for row, some in ((a, first), (b, second)) if not some]
        yield f"no scores by task of {listed(without)}"
    elif not first & second:
        yield "no test task in common"
    elif first != second:
        yield f"other test tasks: {len(first & second)} of {len(first | second)} shared"
    if _grader(a.run) != _grader(b.run):
        yield f"other grader: {a.run.grader} and {b.run.grader}"
    if (agent := _agents_differ(a.run, b.run)) is not None:
        yield agent
    what = "model" if a.run.evaluation or b.run.evaluation else "base model"
    same = _same_model(a.run, b.run)
    if same is None:
        yield f"{what} not known for certain"
    elif not same:
        yield f"other {what}: {a.run.base} and {b.run.base}"
    if a.measure != b.measure and a.measure is not None and b.measure is not None:
        yield f"other sampling: {a.measure} and {b.measure}"


def _grader(run: RunFacts) -> str:
    """What graded a run: a built-in reward may have two names."""
    return BUILTIN_REWARDS.get(run.grader, run.grader)


def _same_model(a: RunFacts, b: RunFacts) -> bool | None:
    """Whether two runs began with the same model; an evaluation may also play what a training left.
    None where the folders do not tell."""
    if a.base_mark is None or b.base_mark is None:
        return None
    if a.evaluation == b.evaluation:
        return a.base_mark == b.base_mark
    played, trained = (a, b) if a.evaluation else (b, a)
    return played.base_mark in (trained.base_mark, trained.tested_mark)


def _agents_differ(a: RunFacts, b: RunFacts) -> str | None:
    """How the agents differ, None where they do not or it is not known. An own agent is the same
    in any place that its code has."""
    if not (a.agent and b.agent) or (a.agent_mark and a.agent_mark == b.agent_mark):
        return None
    if a.agent != b.agent:
        return f"other agent: {a.agent} and {b.agent}"
    edited = a.agent_mark and b.agent_mark
    return f"the agent {a.agent} was edited between the two" if edited else None


def _conclusion(rows: Sequence[ComparisonRow], pairs: Sequence[PairedComparison]) -> str | None:
    """Who leads on the tasks that all runs share, and over which others the lead is more than
    chance."""
    means = [(row.run.name, row.means["reward_after"]) for row in rows]
    led = [(name, mean) for name, mean in means if mean is not None]
    if len(led) < 2:
        return None
    top = max(mean for _, mean in led)
    first = [name for name, mean in led if abs(mean - top) < 1e-12]
    if len(first) == len(led):
        return f"{listed(first)} have the same reward, {top:.3f}."
    rivals = [(p, p.first, Verdict.IMPROVED) for p in pairs if p.second == first[0]]
    rivals += [(p, p.second, Verdict.REGRESSED) for p in pairs if p.first == first[0]]
    others = [(p, name, p.verdict is won) for p, name, won in rivals if name not in first]
    ahead = [name for _, name, won in others if won]
    level = [name for _, name, won in others if not won]
    one = len(first) == 1
    has, its, it_is = ("has", "its", "it is") if one else ("have", "their", "they are")
    text = f"{listed(first)} {has} the highest reward, {top:.3f}"
    if ahead:
        text += f"; {its} lead over {listed(ahead)} is more than chance"
        if caveats := dict.fromkeys(c for pair, _, won in others if won for c in pair.caveats):
            trained = not all(row.run.evaluation for row in rows)
            text += (
                ", though more than the training differs" if trained else f" ({listed([*caveats])})"
            )
    if level:
        text += f"; there is no evidence that {it_is} better than {listed(level)}"
    return text + "."


def _remarks(rows: Sequence[ComparisonRow], shared: int, same: bool) -> Iterator[str]:
    """What stands in the way of reading the rows against each other."""
    if len(rows) > 1 and not same:
        if shared:
            yield (
                f"The runs were tested on other tasks; {shared} are shared by all. Each run's gain "
                "is over its own tasks, pairs are compared on what the two share."
            )
        else:
            yield (
                "No test task is shared by all runs, so their rewards stand side by side and "
                "cannot be ranked."
            )
    graders = {_grader(row.run): row.run.grader for row in rows}
    if len(graders) > 1:
        names = ", ".join(graders.values())
        yield f"The graders differ ({names}): equal rewards do not mean equal answers."
    trained = [row.run for row in rows if not row.run.evaluation]
    unknown = [row.run.name for row in rows if row.run.base_mark is None]
    if unknown and len(rows) > 1:
        names = ", ".join(unknown)
        yield f"Which model it was is not known for certain from the folder of {names}."
    elif any(_same_model(a, b) is False for a, b in itertools.combinations(trained, 2)):
        yield (
            "The base models differ: what the runs gained can be compared, but one run's lead over "
            "another is the model's as much as the training's."
        )
    measures = {row.measure for row in rows if row.measure is not None}
    if len(measures) > 1:
        yield "Some runs were tested greedily and others sampled; --measure chooses where both are."
    scored = [row for row in rows if row.run.measured]
    rules = dict.fromkeys(row.run.success or "none" for row in scored)
    if len(rules) > 1:
        yield (
            f"Success is not the same thing in all runs ({'; '.join(rules)}), so compare them by "
            "their mean reward."
        )
    for row in rows:
        yield from _row_remarks(row)


def _row_remarks(row: ComparisonRow) -> Iterator[str]:
    """What a row lacks."""
    for when, played in zip(("before", "after"), row.played, strict=True):
        if played is not None and played.lost:
            yield f"{row.run.name}, {when}: {judged_text(played)}."
    if any(_withheld(played) for played in row.played):
        yield f"{row.run.name} has no rate there. {TOO_MANY_LOST}"
    if row.run.status != "finished":
        yield f"{row.run.name} is {row.run.status}, so its numbers are not final."
    if row.measure is None:
        yield f"{row.run.name} has no test scores of this kind."
    elif row.means["reward_before"] is None and not row.run.evaluation:
        message = "was not tested before and after a training, so its gain is not known"
        yield f"{row.run.name} {message}."


def _has(run: RunFacts) -> list[Measure]:
    return [name for name in MEASURES if name in run.measured or name in run.means]


def _scores(run: RunFacts, measure: Measure | None) -> TaskScores:
    """The observers of a measure; none without one."""
    task_scores = None if measure is None else run.measured.get(measure)
    return (task_scores or TaskScores()).judged


def _tested(row: ComparisonRow) -> Scores:
    """What was played after training."""
    return _scores(row.run, row.measure).after


def _withheld(played: StoredEvaluation | None) -> bool:
    return played is not None and played.withheld


def _means(found: TaskScores, told: Means) -> Means:
    """Over tasks where scores are known, else as the run told them."""
    means: dict[str, float | None] = {}
    for part in ("reward", "exact"):
        for when, scores in (("before", found.before), ("after", found.after)):
            values = [getattr(score, part) for score in scores.values()]
            known = bool(values) and None not in values
            name = f"{part}_{when}"
            means[name] = sum(values) / len(values) if known else told.get(name)
    return means
