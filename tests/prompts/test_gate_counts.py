"""The held-out test says how many rollouts were judged, and gives no verdict over too few."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tutelage.errors import EngineError
from tutelage.prompts.budget import Limits, SearchBudget, WorstCase
from tutelage.prompts.contract import Components, Episode, RolloutSlot, Settings
from tutelage.prompts.evaluator import (
    CandidateScore,
    EvaluationItem,
    Evaluator,
    SearchJournal,
)
from tutelage.prompts.holdout_test import compare_scores, run_holdout_test
from tutelage.seeds import SeedTree
from tutelage.store import open_store
from tutelage.types import FailureCause, Mode, Task

TASKS = [Task(f"t{i}", {"question": str(i)}) for i in range(60)]
LOST = Episode(None, failure=FailureCause.GRADER_ERROR, feedback="the judge is down")


def score(episodes: list[Episode]) -> CandidateScore:
    items = tuple(EvaluationItem(Mode.TEST, task) for task in TASKS[: len(episodes)])
    return CandidateScore(items, tuple(episodes))


def test_a_graded_reward_has_no_share_of_right_answers() -> None:
    """Full rewards fell from half to none while the mean rose: that was told as a loss in exact."""
    before = score([Episode(1.0, exact=True), Episode(0.1, exact=None)] * 30)
    after = score([Episode(0.8, exact=None)] * 60)
    found = compare_scores(before, after, 1, SeedTree(0))
    assert (found.exact, found.seed_exact, found.best_exact) == (None, None, None)
    assert found.reward.mean == pytest.approx(0.25)
    assert (found.seed_sums.success, found.seed_sums.mean_reward) == (None, pytest.approx(0.55))


def test_what_was_lost_is_no_wrong_answer() -> None:
    before = score([Episode(1.0, exact=True)] * 60)
    after = score([LOST, *[Episode(1.0, exact=True)] * 59])
    found = compare_scores(before, after, 1, SeedTree(0))
    assert (found.tasks, found.best_reward, found.reward.mean) == (59, 1.0, 0.0)
    assert dict(found.best_sums.lost) == {"grader_error": 1}
    assert after.reward == after.exact == 1.0


def test_a_test_of_which_too_much_was_lost_is_played_again(tmp_path: Path) -> None:
    down = True

    async def play(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        return LOST if down and task.id in ("t3", "t5") else Episode(1.0, exact=True)

    async def opened() -> int:
        with open_store(tmp_path / "store.db") as store:
            return await played(SearchJournal(store))

    async def played(journal: SearchJournal) -> int:
        evaluator = Evaluator(play, SearchBudget(Limits(), WorstCase()), journal, Settings("f"))
        seed, best = {"prompt": "a"}, {"prompt": "b"}
        found = await run_holdout_test(evaluator, seed, best, TASKS, SeedTree(0))
        return found.seed_sums.judged

    with pytest.raises(EngineError, match=r"58 of 60 test rollouts of the seed prompt.*judge is"):
        asyncio.run(opened())
    down = False
    assert asyncio.run(opened()) == 60
