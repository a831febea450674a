"""The final gate: seed against winner on test tasks that the search never saw.

Best-on-validation is not a result: with ten validation tasks, searches over a prompt without any
effect report gains of 0.2 to 0.4. So the headline is a paired comparison on the held-out test, with
10,000 bootstrap draws; below 50 tasks, where that is too sure, the exact sign test decides. Looks
are counted in the journal. `statistics/intervals.py` has the statistics.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from tutelage.errors import EngineError
from tutelage.prompts.contract import Components, Episode
from tutelage.prompts.evaluator import CandidateScore, EvaluationItem, EvaluationJob, Evaluator
from tutelage.prompts.journal import SearchJournal
from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import (
    Difference,
    Verdict,
    judge_difference,
    paired_bootstrap,
    sign_test,
)
from tutelage.statistics.outcome import (
    OutcomeSums,
    RewardKind,
    RolloutOutcome,
    add_up,
    too_many_lost,
)
from tutelage.types import JSON, Mode, Task


@dataclass(frozen=True, slots=True)
class HoldoutResult:
    """The result of the held-out test; means are over tasks, `looks` counts openings so far."""

    verdict: Verdict
    tasks: int
    reward: Difference
    exact: Difference | None
    """Of right answers; None where a graded reward does not say what is right."""
    seed_reward: float
    best_reward: float
    seed_exact: float | None
    best_exact: float | None
    p_value: float
    """Of the exact sign test, two-sided."""
    looks: int
    seed_sums: OutcomeSums
    """What the seed's rollouts add up to by themselves, and how many of them were judged."""
    best_sums: OutcomeSums

    def to_dict(self) -> JSON:
        """As JSON."""
        sums = {"seed_sums": self.seed_sums.record(), "best_sums": self.best_sums.record()}
        return asdict(self) | sums | {"verdict": self.verdict.value}


async def run_holdout_test(
    evaluator: Evaluator,
    seed: Components,
    best: Components,
    tasks: Sequence[Task],
    seeds: SeedTree,
) -> HoldoutResult:
    """Play both on every test task, paired. Raises `EngineError` where more than 1 % of either
    was lost: a resume plays those again."""
    samples = evaluator.settings.samples
    items = [EvaluationItem(Mode.TEST, task, sample) for task in tasks for sample in range(samples)]
    before, after = await evaluator.evaluate(
        [EvaluationJob("seed", seed, items), EvaluationJob("best", best, items)]
    )
    sides = (("seed", seed, before), ("best", best, after))
    for name, _, score in sides:
        if too_many_lost(len(score.judged), len(items)):
            for who, components, _ in sides:
                evaluator.forget_infrastructure(EvaluationJob(who, components, items))
            raise EngineError(
                f"{len(score.judged)} of {len(items)} test rollouts of the {name} prompt were "
                "judged, too few for a verdict; the others failed because of infrastructure, the "
                f"first with {score.first_loss!r}; fix it, then resume"
            )
    return judge(before, after, samples, seeds, _look(evaluator.journal, before, after))


def judge(
    before: CandidateScore, after: CandidateScore, samples: int, seeds: SeedTree, looks: int = 1
) -> HoldoutResult:
    """The verdict on two scores over the same items; repeats of a task are averaged first. What
    was lost is left out, and a task of which nothing is left on one side."""
    pairs = [
        (old, new)
        for old, new in zip(_by_task(before, samples), _by_task(after, samples), strict=True)
        if old and new
    ]

    def means(value: Callable[[Episode], float]) -> list[list[float]]:
        """Of each task, on both sides."""
        return [
            [_mean([*map(value, side)]) for side in sides] for sides in zip(*pairs, strict=True)
        ]

    a, b = means(lambda episode: episode.value)
    reward = paired_bootstrap(a, b, seeds.child("gate", "reward").numpy())
    defined = before.has_exact and after.has_exact
    exact_a, exact_b = means(lambda episode: float(bool(episode.exact)))
    exact = paired_bootstrap(exact_a, exact_b, seeds.child("gate", "exact").numpy())
    kind = RewardKind(has_success=defined)
    return HoldoutResult(
        verdict=judge_difference(reward),
        tasks=len(a),
        reward=reward,
        exact=exact if defined else None,
        seed_reward=_mean(a),
        best_reward=_mean(b),
        seed_exact=_mean(exact_a) if defined else None,
        best_exact=_mean(exact_b) if defined else None,
        p_value=sign_test(reward.wins, reward.losses),
        looks=looks,
        seed_sums=_sums(before, kind),
        best_sums=_sums(after, kind),
    )


def _sums(score: CandidateScore, kind: RewardKind) -> OutcomeSums:
    judgements: list[RolloutOutcome] = []
    for item, e, reward in zip(score.items, score.episodes, score.outcomes, strict=True):
        cause = None if e.failure is None else e.failure.value
        told = (item.task.id, reward, bool(e.exact), cause, e.feedback, e.usage.calls > 0)
        judgements.append(RolloutOutcome(*told))
    return add_up(judgements, kind)


def _by_task(score: CandidateScore, samples: int) -> list[list[Episode]]:
    """The episodes of each task that were judged."""
    episodes = score.episodes
    some = [episodes[i : i + samples] for i in range(0, len(episodes), samples)]
    return [[e for e in part if not e.lost] for part in some]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _look(journal: SearchJournal, before: CandidateScore, after: CandidateScore) -> int:
    """How often the test was opened; opening it again for the same two scores is no new look."""
    known = journal.get("looks") or {"seen": []}
    # Other tasks are another look, also where they earn the same.
    tasks = [(item.task.id, item.sample) for item in before.items]
    text = repr((tasks, before.rewards, after.rewards))
    mark = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    if mark not in known["seen"]:
        known["seen"].append(mark)
        journal.forget(["looks"])
        journal.put("looks", known)
    return len(known["seen"])
