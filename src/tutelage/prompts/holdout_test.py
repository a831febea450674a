"""The held-out test: seed against winner on test tasks that the search never saw.

The best validation score is biased: with ten validation tasks, searches over a prompt without any
effect report gains of 0.2 to 0.4. So the headline is a paired comparison on the held-out test, with
10,000 bootstrap draws; below 50 tasks, where that is too sure, the exact sign test decides.
`statistics/intervals.py` has the statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from tutelage.errors import EngineError
from tutelage.prompts.contract import Components, Episode
from tutelage.prompts.evaluator import (
    CandidateScore,
    EvaluationItem,
    EvaluationJob,
    Evaluator,
)
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
    sum_outcomes,
    too_many_lost,
)
from tutelage.types import JSON, Mode, Task


@dataclass(frozen=True, slots=True)
class HoldoutResult:
    """Result of the held-out test. Means are over tasks; `looks` is the number of tests so far."""

    verdict: Verdict
    tasks: int
    reward: Difference
    exact: Difference | None
    """Difference of right answers; None if a graded reward does not define them."""
    seed_reward: float
    best_reward: float
    seed_exact: float | None
    best_exact: float | None
    p_value: float
    """P-value of the exact two-sided sign test."""
    looks: int
    seed_sums: OutcomeSums
    """Counts and rates of the seed's rollouts."""
    best_sums: OutcomeSums

    def to_dict(self) -> JSON:
        """Convert the result to a JSON object."""
        sums = {"seed_sums": self.seed_sums.record(), "best_sums": self.best_sums.record()}
        return asdict(self) | sums | {"verdict": self.verdict.value}


async def run_holdout_test(
    evaluator: Evaluator,
    seed: Components,
    best: Components,
    tasks: Sequence[Task],
    seeds: SeedTree,
    number: int = 1,
) -> HoldoutResult:
    """Evaluate both prompts on all test tasks and compare them in pairs; `number` is the number of
    this test. Raises `EngineError` if more than 1 % of the rollouts of a prompt were lost; a resume
    repeats them."""
    samples = evaluator.settings.samples
    items = [EvaluationItem(Mode.TEST, task, sample) for task in tasks for sample in range(samples)]
    before, after = await evaluator.evaluate(
        [EvaluationJob("seed", seed, items), EvaluationJob("best", best, items)]
    )
    for name, score in (("seed", before), ("best", after)):
        if too_many_lost(len(score.judged), len(items)):
            evaluator.forget_lost()
            raise EngineError(
                f"{len(score.judged)} of {len(items)} test rollouts of the {name} prompt were "
                "judged, too few for a verdict; the others failed because of infrastructure, the "
                f"first with {score.first_error!r}; fix it, then resume"
            )
    return compare_scores(before, after, samples, seeds, number)


def compare_scores(
    before: CandidateScore, after: CandidateScore, samples: int, seeds: SeedTree, number: int = 1
) -> HoldoutResult:
    """Compare two scores over the same items, averaged over the samples of each task. Lost rollouts
    are ignored, and so are tasks that have no judged rollout on one side."""
    places = range(0, len(before.episodes), samples)
    sides = [
        [[e for e in score.episodes[i : i + samples] if not e.lost] for i in places]
        for score in (before, after)
    ]
    pairs = [(old, new) for old, new in zip(*sides, strict=True) if old and new]

    def means(value: Callable[[Episode], float]) -> list[list[float]]:
        """Return the mean of each task, for both sides."""
        return [
            [sum(map(value, part)) / len(part) for part in side]
            for side in zip(*pairs, strict=True)
        ]

    a, b = means(lambda episode: episode.value)
    reward = paired_bootstrap(a, b, seeds.child("gate", "reward").numpy())
    exact_a, exact_b = means(lambda episode: float(bool(episode.exact)))
    exact = paired_bootstrap(exact_a, exact_b, seeds.child("gate", "exact").numpy())
    defined = None not in (before.exact, after.exact)
    kind = RewardKind(has_success=defined)
    return HoldoutResult(
        verdict=judge_difference(reward),
        tasks=len(a),
        reward=reward,
        exact=exact if defined else None,
        seed_reward=sum(a) / len(a),
        best_reward=sum(b) / len(b),
        seed_exact=sum(exact_a) / len(a) if defined else None,
        best_exact=sum(exact_b) / len(b) if defined else None,
        p_value=sign_test(reward.wins, reward.losses),
        looks=number,
        seed_sums=_sum_outcomes(before, kind),
        best_sums=_sum_outcomes(after, kind),
    )


def _sum_outcomes(score: CandidateScore, kind: RewardKind) -> OutcomeSums:
    """Compute the counts and rates of the rollouts of a score."""
    outcomes: list[RolloutOutcome] = []
    for item, e, reward in zip(score.items, score.episodes, score.outcomes, strict=True):
        cause, called = e.failure and e.failure.value, e.usage.calls > 0
        outcomes.append(
            RolloutOutcome(item.task.id, reward, bool(e.exact), cause, e.feedback, called)
        )
    return sum_outcomes(outcomes, kind)
