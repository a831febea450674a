"""What rollouts add up to: rates over what was judged, failures by name, success if defined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.builders import make_attempt, make_rollout

from tutelage.errors import RewardError
from tutelage.runs.stored_evaluation import (
    evaluation_keys,
    format_judged,
    parse_evaluation,
    read_evaluation,
)
from tutelage.statistics.outcome import RewardKind, Success, summarise
from tutelage.types import (
    Failure,
    FailureCause,
    Mode,
    Reward,
    Rollout,
    Task,
)


def rollout(
    task: str, value: float | None, cause: FailureCause | None = None, **parts: float
) -> Rollout:
    """A rollout of a task that earned this, or failed so."""
    reward = None if value is None else Reward(value, parts)
    failure = None if cause is None else Failure(cause, f"{cause.value} on {task}")
    attempt = make_attempt(id=f"att_{task}", reward=reward, failure=failure)
    asked = Task(task, {"question": task, "family": task[0]})
    return make_rollout(f"roll_{task}", attempt, task=asked, mode=Mode.TEST, group=task)


def rollouts(values: Sequence[float]) -> list[Rollout]:
    return [rollout(f"t{i}", value) for i, value in enumerate(values)]


def test_a_grader_that_raised_is_no_success_of_the_others() -> None:
    """The one task that was judged was right: 25 % of four, which was told as 100 %."""
    lost = [rollout(f"t{i}", None, FailureCause.REWARD_ERROR) for i in range(3)]
    found = summarise([rollout("t3", 1.0), *lost])
    assert (found.success, found.interval, found.mean_reward) == (None, None, None)
    assert (found.judged, found.rollouts, dict(found.lost)) == (1, 4, {"reward_error": 3})
    assert format_judged(parse_evaluation(found.record())) == (
        "1 of 4 judged; 3 lost: 3 no reward (reward_error on t0)"
    )


@pytest.mark.parametrize(("lost", "told"), [(2, True), (3, False)])
def test_a_rate_is_told_as_long_as_one_in_a_hundred_is_lost(lost: int, told: bool) -> None:
    good = rollouts([1.0, 0.0] * ((200 - lost) // 2) + [1.0] * (lost % 2))
    bad = [rollout(f"x{i}", None, FailureCause.ENGINE_ERROR) for i in range(lost)]
    found = summarise([*good, *bad])
    assert (found.success is not None) is told
    assert (found.mean_reward is not None) is told
    assert found.judged == 200 - lost


def test_a_timeout_counts_and_is_named() -> None:
    found = summarise([*rollouts([1.0, 1.0, 1.0]), rollout("t9", 0.0, FailureCause.TIMEOUT)])
    assert found.success == 0.75
    assert dict(found.failed) == {"timeout": 1}
    assert format_judged(parse_evaluation(found.record())) == (
        "4 of 4 judged; failed, and counted so: 1 timeout"
    )


def test_the_reward_of_a_failure_makes_no_grades() -> None:
    found = summarise([*rollouts([1.0, 0.0]), rollout("t9", -0.5, FailureCause.TIMEOUT)])
    assert not found.kind.graded
    assert found.success == pytest.approx(1 / 3)
    assert found.mean_reward == pytest.approx(0.5 / 3)


def test_a_graded_reward_has_a_mean_with_its_interval_and_no_success() -> None:
    found = summarise(rollouts([0.2, 0.4, 0.6, 1.0]))
    assert found.kind == RewardKind(graded=True, has_success=False)
    assert found.success is None
    assert found.mean_reward == pytest.approx(0.55)
    assert found.reward_interval is not None
    # scipy.stats.t.interval(0.95, 3, 0.55, scipy.stats.sem([...])), which ends at 1.0934
    assert found.reward_interval == pytest.approx((0.0066, 1.0), abs=1e-3)
    beyond = summarise(rollouts([0.2, 0.4, 0.6, 1.01])).reward_interval
    assert beyond is not None
    assert beyond[1] > 1.05  # the range of such rewards is not known


def test_rewards_that_are_0_or_1_are_a_proportion() -> None:
    found = summarise(rollouts([1.0, 1.0, 1.0, 1.0]))
    assert found.reward_interval == found.interval
    assert found.interval is not None
    assert found.interval[0] < 0.6  # and not 1 to 1


def test_rows_of_one_table_are_of_one_kind() -> None:
    """Before, every reward happened to be 0 or 1; after, they were graded: neither has a rate."""
    before, after = rollouts([0.0, 0.0, 1.0, 0.0]), rollouts([0.75, 0.5, 0.9, 0.75])
    kind = RewardKind().update([*before, *after])
    first = evaluation_keys("before_sampled", summarise(before).record(), kind)
    second = evaluation_keys("after_sampled", summarise(after).record(), kind)
    assert first["success_before_sampled"] is second["success_after_sampled"] is None
    told = read_evaluation(first | second, "after_sampled")
    assert told is not None
    assert told.reward == pytest.approx(0.725)


@pytest.mark.parametrize(
    ("rule", "expected"), [("right", 0.5), (">=0.5", 0.75), ("right>=0.2", 0.75)]
)
def test_the_user_says_what_succeeds(rule: str, expected: float) -> None:
    some = [
        rollout("a", 0.9, right=1.0),
        rollout("b", 0.5, right=0.3),
        rollout("c", 0.4, right=1.0),
        rollout("d", 0.7, right=0.1),
    ]
    found = summarise(some, Success.parse(rule))
    assert found.kind == RewardKind(graded=True)
    assert found.success == expected


def test_what_failed_is_no_success_whatever_it_earned() -> None:
    failed = rollout("d", 0.9, FailureCause.TIMEOUT)
    assert summarise([failed], Success.parse(">=0.5")).success == 0.0


def test_a_part_that_no_reward_has_is_refused() -> None:
    with pytest.raises(
        RewardError, match=r"reward.success='right' is not a part of the reward of task 't0'.*none"
    ):
        summarise(rollouts([1.0]), Success.parse("right"))


def test_a_grader_that_says_exact_needs_no_rule() -> None:
    found = summarise([rollout("a", 0.7, exact=0.0), rollout("b", 1.0, exact=1.0)])
    assert found.kind == RewardKind(graded=True)
    assert (found.success, found.mean_reward) == (0.5, 0.85)


def test_families_are_of_the_kind_of_the_whole() -> None:
    found = summarise([rollout("a1", 1.0), rollout("a2", 0.0), rollout("b1", 0.5)])
    assert found.by_family["a"].success is None
    assert found.by_family["a"].mean_reward == 0.5


def test_templates_that_training_has_seen_are_told_apart_after_the_families() -> None:
    some = [rollout("b", 1.0), rollout("a", 0.0), rollout("c", 1.0), rollout("d", 1.0)]
    templates = ("unseen", "seen", "unseen", "mine {x}")
    told = [
        replace(r, task=Task(r.task.id, {**r.task.fields, "template": template}))
        for r, template in zip(some, templates, strict=True)
    ]
    found = summarise(told).by_family
    assert list(found) == ["a", "b", "c", "d", "seen templates", "unseen templates"]
    assert [found[f"{name} templates"].success for name in ("seen", "unseen")] == [0.0, 1.0]
    assert found["unseen templates"].rollouts == 2


@pytest.mark.parametrize("rule", ["", ">=", ">=much", "0.5", ">=nan"])
def test_what_says_no_success_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match=r"number|>=|no part"):
        Success.parse(rule)


def test_nothing_judged_is_no_rate() -> None:
    assert summarise([]).success is None
    assert read_evaluation({"success_after_sampled": None}, "after_sampled") is None
