"""The final gate: seed against winner on test tasks that the search never saw.

Best-on-validation is not a result: with ten validation tasks, searches over a prompt without any
effect report gains of 0.2 to 0.4. So the headline is a paired comparison on the sealed test, with
10,000 bootstrap draws; below 50 tasks, where that is too sure, the exact sign test decides. Looks
are counted in the journal. `evaluate/statistics.py` has the statistics.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tutelage.algorithms.prompt.contract import Components
from tutelage.algorithms.prompt.evaluator import Evaluator, Item, Job, Score
from tutelage.algorithms.prompt.journal import Journal
from tutelage.errors import EngineError
from tutelage.evaluate.statistics import (
    Difference,
    Verdict,
    judge_difference,
    paired_bootstrap,
    sign_test,
)
from tutelage.seeds import SeedTree
from tutelage.types import JSON, Mode, Task


@dataclass(frozen=True, slots=True)
class Sealed:
    """The result of the sealed test; means are over tasks, `looks` counts openings so far."""

    verdict: Verdict
    tasks: int
    reward: Difference
    exact: Difference
    seed_reward: float
    best_reward: float
    seed_exact: float
    best_exact: float
    p_value: float
    """Of the exact sign test, two-sided."""
    looks: int

    def to_dict(self) -> JSON:
        """As JSON."""
        return asdict(self) | {"verdict": self.verdict.value}


async def sealed_test(
    evaluator: Evaluator,
    journal: Journal,
    seed: Components,
    best: Components,
    tasks: Sequence[Task],
    seeds: SeedTree,
    samples: int = 1,
) -> Sealed:
    """Play both on every test task, paired. Raises `EngineError` when too much was lost."""
    items = [Item(Mode.TEST, task, sample) for task in tasks for sample in range(samples)]
    before, after = await evaluator.evaluate([Job("seed", seed, items), Job("best", best, items)])
    if before.infra_error or after.infra_error:
        raise EngineError(
            "too many test rollouts were lost to infrastructure for a verdict, the first with "
            f"{before.first_loss or after.first_loss!r}; mend that, then resume"
        )
    return judge(before, after, samples, seeds, _look(journal, before, after))


def judge(before: Score, after: Score, samples: int, seeds: SeedTree, looks: int = 1) -> Sealed:
    """The verdict on two scores over the same items; repeats of a task are averaged first."""
    a, b = _by_task(before.rewards, samples), _by_task(after.rewards, samples)
    exact_a = _by_task([float(e.exact) for e in before.episodes], samples)
    exact_b = _by_task([float(e.exact) for e in after.episodes], samples)
    reward = paired_bootstrap(a, b, seeds.child("gate", "reward").numpy())
    exact = paired_bootstrap(exact_a, exact_b, seeds.child("gate", "exact").numpy())
    p_value = sign_test(reward.wins, reward.losses)
    return Sealed(
        verdict=judge_difference(reward),
        tasks=len(a),
        reward=reward,
        exact=exact,
        seed_reward=sum(a) / len(a),
        best_reward=sum(b) / len(b),
        seed_exact=sum(exact_a) / len(a),
        best_exact=sum(exact_b) / len(b),
        p_value=p_value,
        looks=looks,
    )


def _by_task(values: Sequence[float], samples: int) -> list[float]:
    return [sum(values[i : i + samples]) / samples for i in range(0, len(values), samples)]


def _look(journal: Journal, before: Score, after: Score) -> int:
    """How often the test was opened; opening it again for the same two scores is no new look."""
    known = journal.get("looks") or {"seen": []}
    # Other tasks are another look, also where they earn the same.
    tasks = [(item.task.id, item.sample) for item in before.items]
    said = repr((tasks, before.rewards, after.rewards))
    mark = hashlib.blake2b(said.encode(), digest_size=16).hexdigest()
    if mark not in known["seen"]:
        known["seen"].append(mark)
        journal.forget(["looks"])
        journal.put("looks", known)
    return len(known["seen"])
