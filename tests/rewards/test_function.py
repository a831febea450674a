"""`@reward`: filling by name, the check before a run, and the session for returned values."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tutelage.errors import ConfigError, RewardError
from tutelage.rewards import RewardFunction, check, compute_reward, resolve_reward, reward
from tutelage.tasks import Dataset
from tutelage.types import Attempt, Reward, RolloutStatus, Task

TASK = Task("t1", {"question": "q", "answer": "4", "weight": 2})
ATTEMPT = Attempt("a", 0, RolloutStatus.SUCCEEDED, answer="4")


def constant(value: Any) -> RewardFunction:
    @reward
    def give() -> Any:
        return value

    return give


async def test_parameters_are_filled_by_name() -> None:
    @reward
    def all_of(
        prediction: str,
        answer: str,
        trajectory: Attempt,
        task: Task,
        context: dict[str, Any],
        weight: int = 1,
        absent: int = 3,
    ) -> float:
        assert (prediction, answer, weight, absent) == ("4", "4", 2, 3)
        assert trajectory is ATTEMPT
        assert task is TASK
        return float(context["bonus"])

    assert await compute_reward(all_of, TASK, ATTEMPT, {"bonus": 7}) == Reward(7.0)


async def test_async_rewards_and_keyword_rewards() -> None:
    @reward("named")
    async def later(prediction: str, **rest: Any) -> dict[str, Any]:
        return {"reward": prediction == "4", "fields": len(rest)}

    assert later.name == "named"
    # question, answer, weight, trajectory, context, task
    assert await compute_reward(later, TASK, ATTEMPT) == Reward(1.0, {"fields": 6.0})


async def test_an_attempt_without_an_answer_has_an_empty_prediction() -> None:
    @reward
    def length(prediction: str) -> int:
        return len(prediction)

    attempt = Attempt("a", 0, RolloutStatus.FAILED)
    assert await compute_reward(length, TASK, attempt) == Reward(0.0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, Reward(1.0)),
        (3, Reward(3.0)),
        (-0.5, Reward(-0.5)),
        (Fraction(1, 4), Reward(0.25)),
        (np.float32(0.5), Reward(0.5)),
        (np.bool_(True), Reward(1.0)),
        (np.array(2.0), Reward(2.0)),
        ({"reward": 1, "format": True}, Reward(1.0, {"format": 1.0})),
        (Reward(1.0, {"x": 2.0}), Reward(1.0, {"x": 2.0})),
    ],
)
async def test_numbers_and_dicts_are_rewards(value: Any, expected: Reward) -> None:
    assert await compute_reward(constant(value), TASK, ATTEMPT) == expected


@pytest.mark.parametrize(
    "value",
    [
        None,
        "1.0",
        b"1",
        float("nan"),
        float("-inf"),
        10**400,
        1 + 2j,
        Decimal("NaN"),
        [1.0],
        np.array([1.0, 2.0]),
        np.float64("nan"),
        {},
        {"score": 1.0},
        {"reward": None},
        {"reward": 1.0, "part": float("nan")},
        {"reward": 1.0, "part": "x"},
        {"reward": 1.0, 3: 1.0},
        Reward(float("inf")),
    ],
)
async def test_anything_else_is_refused_with_the_tasks_id(value: Any) -> None:
    with pytest.raises(RewardError, match="'give' on task 't1'"):
        await compute_reward(constant(value), TASK, ATTEMPT)


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(1)])
async def test_a_reward_that_raises_is_a_reward_error(error: BaseException) -> None:
    @reward
    def broken() -> float:
        raise error

    @reward
    async def broken_async() -> float:
        raise error

    for function in (broken, broken_async):
        with pytest.raises(RewardError, match=r"failed on task 't1'") as caught:
            await compute_reward(function, TASK, ATTEMPT)
        assert caught.value.__cause__ is error


def needs_solution(prediction: str, answers: str) -> float:
    return 1.0


def reads_context(context: dict[str, Any]) -> float:
    return 1.0


def test_a_parameter_that_cannot_be_filled_is_refused_before_the_run() -> None:
    dataset = Dataset([TASK])
    with pytest.raises(RewardError, match=r"needs 'answers'.*'answer'.*did you mean 'answer'\?"):
        check(reward(needs_solution), dataset)
    # Also when only some tasks lack the field.
    with pytest.raises(RewardError, match="needs 'answer'"):
        check(resolve_reward("math"), Dataset([TASK, {"id": "t2", "question": "q"}]))
    check(resolve_reward("math"), dataset)


def test_a_name_with_two_meanings_is_refused() -> None:
    squad = Dataset([{"question": "q", "context": "a passage"}])
    with pytest.raises(RewardError, match="'context' is both"):
        check(reward(reads_context), squad)
    check(resolve_reward("math"), Dataset([{"question": "q", "context": "c", "answer": "1"}]))


def starred(*args: Any) -> float:
    return 0.0


def positional(prediction: str, /) -> float:
    return 0.0


@pytest.mark.parametrize("fn", [starred, positional])
def test_signatures_that_names_cannot_fill_are_refused(fn: Callable[..., float]) -> None:
    with pytest.raises(RewardError, match="by name"):
        reward(fn)


async def test_rewards_are_found_by_name_and_in_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from tutelage.rewards import reward\n"
        "def plain(prediction, answer): return prediction == answer\n"
        "@reward('fancy')\n"
        "async def decorated(prediction): return 0.5\n"
        "number = 1\n"
    )
    plain = resolve_reward(f"{file}:plain")
    assert await compute_reward(plain, TASK, ATTEMPT) == Reward(1.0)
    assert resolve_reward(f"{file}:decorated").name == f"{file}:decorated"
    with pytest.raises(RewardError, match="point at a function"):
        resolve_reward(f"{file}:number")
    with pytest.raises(ConfigError, match="did you mean 'plain'"):
        resolve_reward(f"{file}:plane")
    with pytest.raises(RewardError, match=r"did you mean 'math_grader'\?"):
        resolve_reward("math_grade")
    names = ("math", "exact_number")
    assert [resolve_reward(name).name for name in names] == [*names]
    assert len({resolve_reward(name).fn for name in names}) == 1


def test_a_reward_knows_whether_it_is_given_what_the_agent_did() -> None:
    graders: list[Callable[..., float]] = [
        lambda prediction, answer: 1.0,
        lambda trajectory: 1.0,
        lambda **fields: 1.0,
        lambda task, answer: 1.0,
    ]
    assert [reward(grader).sees_attempt for grader in graders] == [True, True, True, False]
