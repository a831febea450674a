"""Proving a reward: ours pass on their kind of task, and each kind of hole is found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.marks import long
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.errors import DataError, RewardError
from tutelage.rewards import resolve_reward, reward
from tutelage.rewards.validation import validate_reward
from tutelage.tools.sandbox import tier_problems
from tutelage.types import Task

NUMBERS = [
    Task(f"n{i}", {"question": f"What is {a} * {b}?", "answer": str(a * b)})
    for i, (a, b) in enumerate([(3, 4), (12, 5), (7, 8), (101, 9)])
]
TEXTS = [
    Task(f"q{i}", {"question": q, "answer": a})
    for i, (q, a) in enumerate([("Capital of Norway?", "Oslo"), ("Author of Hamlet?", "William "
    "Shakespeare"), ("Highest mountain?", "Mount Everest")])
]  # fmt: skip
PROGRAMS = [
    Task("c0", {"question": "Add.", "solution": "def add(a, b):\n    return a + b",
                "tests": ["assert add(1, 2) == 3", "assert add(5, 5) == 10"]}),
    Task("c1", {"question": "Double.", "solution": "print(2 * int(input()))",
                "tests": [{"input": "4", "output": "8"}]}),
]  # fmt: skip


async def failed(function: Any, tasks: list[Task]) -> set[str]:
    probes = await validate_reward(function, tasks)
    numbers = ("two answers", "changed number")
    assert all(probe.trials for probe in probes if probe.name not in numbers)
    return {probe.name for probe in probes if not probe.passed}


@pytest.mark.parametrize(
    "name", ["math", "numeric_partial_credit", *long("math_grader", "exact_text")]
)
async def test_the_maths_rewards_pass(name: str) -> None:
    assert await failed(resolve_reward(name), NUMBERS) == set()


async def test_the_last_number_is_shown_to_be_lenient() -> None:
    lenient = {"two answers", "negated answer", "changed number", "answer stuffing"}
    holes = await failed(resolve_reward("math_reward_string_equal"), NUMBERS)
    assert {"two answers", "negated answer"} <= holes <= lenient


@pytest.mark.parametrize("name", ["qa_f1_reward", *long("exact_match", "gaia_scorer")])
async def test_the_rewards_of_short_answers_pass(name: str) -> None:
    assert await failed(resolve_reward(name), TEXTS) == set()


@pytest.mark.skipif(
    all(tier_problems()[t] is not None for t in ("namespaces", "rlimit")), reason="no sandbox here"
)
async def test_the_reward_of_code_passes() -> None:
    probes = await validate_reward(resolve_reward("code_reward"), PROGRAMS)
    assert [p.name for p in probes if not p.passed] == []


def contains(prediction: str, answer: str) -> bool:
    return answer in prediction


def contains_none(prediction: str) -> bool:
    return False


def always(prediction: str, answer: str) -> float:
    return 1.0


def never(prediction: str, answer: str) -> float:
    return 0.0


def kind_to_silence(prediction: str, answer: str) -> bool:
    return not prediction or prediction == answer


def first_number(prediction: str, answer: str) -> bool:
    found = re.search(r"[0-9]+", prediction)
    return found is not None and found.group() == answer and len(prediction) < 40


def raises(prediction: str, answer: str) -> float:
    return float(prediction) == float(answer)


@pytest.mark.full
@pytest.mark.parametrize(
    ("function", "holes"),
    [
        (
            contains,
            {
                "two answers",
                "answer stuffing",
                "negated answer",
                "changed number",
            },
        ),
        (always, {"empty", "another task's answer", "constant answer"}),
        (never, {"gold answer"}),
        (kind_to_silence, {"empty"}),
        (first_number, {"negated answer", "changed number", "two answers"}),
        (raises, {"empty", "two answers", "negated answer"}),
    ],
)
async def test_a_hole_is_found(function: Callable[..., Any], holes: set[str]) -> None:
    assert holes <= await failed(reward(function), NUMBERS)


async def test_tasks_that_are_nearly_all_alike_are_found() -> None:
    tasks = [Task(str(i), {"question": f"q{i}", "answer": "yes" if i else "no"}) for i in range(5)]
    probes = await validate_reward(resolve_reward("exact_match"), tasks)
    assert [p.name for p in probes if not p.passed] == ["constant answer"]


async def test_errors_of_the_tasks_come_through() -> None:
    with pytest.raises(RewardError, match="needs 'answer'"):
        await validate_reward(
            resolve_reward("math"), [Task("t", {"question": "q", "solution": "1"})]
        )
    with pytest.raises(DataError, match="--gold FIELD"):
        await validate_reward(reward(contains_none), [Task("t", {"question": "q"})])


@pytest.mark.full
def test_the_command_shows_a_table_and_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.json").write_text(json.dumps([dict(t.fields) for t in NUMBERS]))
    Path("mine.py").write_text("def lax(prediction, answer):\n    return answer in prediction\n")
    good = CliRunner().invoke(build_app(), ["validate", "t.json", "--reward", "math"])
    assert good.exit_code == 0, good.output
    assert "passes all checks on 4 tasks" in good.output
    bad = CliRunner().invoke(build_app(), ["validate", "t.json", "--reward", "mine.py:lax"])
    assert bad.exit_code == 1
    assert "two answers" in bad.output
    assert "To fix" in bad.output
    told = CliRunner().invoke(
        build_app(), ["validate", "t.json", "--reward", "mine.py:lax", "--json"]
    )
    record = json.loads(told.output)
    assert record["passed"] is False
    assert {c["check"] for c in record["checks"] if not c["passed"]} >= {"answer stuffing"}
