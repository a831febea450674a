"""`@reward`: filling by name, the check before a run, and the session for returned values."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tutelage.errors import ConfigError, RewardError
from tutelage.rewards import RewardFunction, check, compute_reward, resolve_reward, reward
from tutelage.rewards.registry import BUILTIN_REWARDS
from tutelage.tasks import Dataset
from tutelage.tools import ToolOptions
from tutelage.types import (
    Attempt,
    Call,
    Message,
    Reward,
    RolloutStatus,
    Sampled,
    Sampling,
    StopReason,
    Task,
)

TASK = Task("t1", {"question": "q", "answer": "4", "weight": 2})
ATTEMPT = Attempt("a", 0, RolloutStatus.SUCCEEDED, answer="4")
NOTHING = Sampled((), (), (), StopReason.STOP, 0)


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


@pytest.mark.parametrize(
    "name", [n for n in BUILTIN_REWARDS if n not in ("code_reward", "llm_judge")]
)
async def test_no_built_in_reward_grades_a_thought(name: str) -> None:
    grader = resolve_reward(name)
    for said, earned in (
        ("4", 1.0),
        ("<think>\nIs it 5? No.\n</think>\n\n4", 1.0),
        ("Is it 5? No.\n</think>\n\n4", 1.0),
        ("<think>\nThe answer is 4.\n</think>\n\nNobody knows.", 0.0),
        ("<think>\nSo \\boxed{4}", 0.0),
    ):
        attempt = Attempt("a", 0, RolloutStatus.SUCCEEDED, answer=said)
        assert (await compute_reward(grader, TASK, attempt)).value == earned, said
        direct = grader(said, answer="4")
        assert (direct["reward"] if isinstance(direct, dict) else direct) == earned, said


async def test_a_reward_of_ones_own_has_thought_and_answer() -> None:
    seen: list[tuple[str, str]] = []

    @reward(inline=True)
    def both(prediction: str, trajectory: Attempt) -> float:
        seen.append((prediction, trajectory.thought))
        return 1.0

    told = Message("assistant", "4", extra={"reasoning_content": "hm"})
    call = Call("c", "main", 0, (), (), NOTHING, told, Sampling())
    attempt = Attempt("a", 0, RolloutStatus.SUCCEEDED, answer="<think>hm</think> 4")
    await compute_reward(both, TASK, attempt)
    await compute_reward(both, TASK, replace(attempt, answer="4", calls=(call,)))
    assert seen == [("4", "<think>hm</think>"), ("4", "hm")]
    assert both("<think>hm</think> 4", attempt) == 1.0
    assert seen[-1][0] == "<think>hm</think> 4"


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
        float("nan"),
        [1.0],
        {"score": 1.0},
        {"reward": 1.0, "part": float("nan")},
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


def test_a_parameter_that_cannot_be_filled_is_refused_before_the_run() -> None:
    dataset = Dataset([TASK])
    with pytest.raises(RewardError, match=r"needs 'answers'.*'answer'.*did you mean 'answer'\?"):
        check(reward(needs_solution), dataset)
    # Also when only some tasks lack the field.
    with pytest.raises(RewardError, match="needs 'answer'"):
        check(resolve_reward("math"), Dataset([TASK, {"id": "t2", "question": "q"}]))
    check(resolve_reward("math"), dataset)


EMPTY: list[Any] = [None, " \n", ["4", None]]


@pytest.mark.parametrize("name", BUILTIN_REWARDS)
def test_a_row_without_an_answer_is_refused_where_a_built_in_reward_reads_it(
    tmp_path: Path, name: str
) -> None:
    options = ToolOptions(judge_base_url="http://h/v1", judge_model="m", allow_unsandboxed=True)
    function = resolve_reward(name, options)
    for i, empty in enumerate(EMPTY):
        path = tmp_path / f"{i}.jsonl"
        rows = [{"question": "q", "answer": "4"}, {"question": "r", "answer": empty}]
        path.write_text("\n".join(map(json.dumps, rows)))
        with pytest.raises(RewardError, match=rf"{i}\.jsonl:2: field 'answer' is .*{name!r}"):
            check(function, Dataset.load(path))
    path = tmp_path / "cells.csv"
    path.write_text("question,answer\nq,N/A\nr,NULL\ns,NaN\nt,0\nu,\n")
    with pytest.raises(RewardError, match=r"cells\.csv:6: field 'answer' is ''"):
        check(function, Dataset.load(path))
    check(function, Dataset.load(path)[:4])


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
    with pytest.raises(RewardError, match="not a function or a @reward"):
        resolve_reward(f"{file}:number")
    with pytest.raises(ConfigError, match="did you mean 'plain'"):
        resolve_reward(f"{file}:plane")
    with pytest.raises(RewardError, match=r"did you mean 'math_grader'\?"):
        resolve_reward("math_grade")
    names = ("math", "exact_number")
    assert [resolve_reward(name).name for name in names] == [*names]
    assert len({resolve_reward(name).fn for name in names}) == 1


@pytest.mark.parametrize(
    "grader",
    [lambda prediction, answer: 1.0, lambda prediction, task: 1.0, lambda **fields: 1.0],
)
def test_an_own_reward_is_warned_of_rows_without_an_answer_once(
    grader: Callable[..., float], caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"question": str(i), "answer": None if i % 2 else "4"} for i in range(20)]
    check(reward("own")(grader), Dataset(rows, name="rows"))
    (record,) = caplog.records
    assert "'own'" in record.message
    assert "rows (index 1): field 'answer' is None" in record.message
    assert "5 more" in record.message
    check(reward("own")(grader), [TASK, Task("t", {"solution": None, "answer": "4"})])
    assert len(caplog.records) == 1


def test_a_reward_knows_whether_it_is_given_what_the_agent_did() -> None:
    graders: list[Callable[..., float]] = [
        lambda prediction, answer: 1.0,
        lambda trajectory: 1.0,
        lambda **fields: 1.0,
        lambda task, answer: 1.0,
    ]
    assert [reward(grader).uses_attempt for grader in graders] == [True, True, True, False]
