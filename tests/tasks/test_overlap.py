"""Tasks of several splits: which count as the same, and what is said about it."""

from __future__ import annotations

from typing import Any

import pytest

from tutelage.rewards import resolve_reward, reward
from tutelage.tasks.overlap import (
    Overlap,
    count_overlap,
    hash_task,
    hold_out,
)
from tutelage.types import Task


def task(name: str, **fields: Any) -> Task:
    return Task(name, fields)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ({"question": "a", "answer": 1}, {"answer": 1, "question": "a"}, True),
        ({"id": 1, "question": "a", "answer": 1}, {"id": 2, "question": "a", "answer": 1}, True),
        ({"question": "What is\n 1 + 1?", "answer": 2}, {"question": " What is 1 + 1? ",
         "answer": "2"}, True),
        ({"question": "caf\u00e9", "answer": 1}, {"question": "cafe\u0301", "answer": 1}, True),
        ({"question": "a", "answer": 1}, {"prompt": "a", "answer": 1}, True),
        ({"question": "a", "answer": 1, "source": "x"}, {"question": "a", "answer": 1}, True),
        ({"question": "a", "answer": 1}, {"question": "a", "answer": 2}, False),
        ({"question": "a", "answer": 1}, {"question": "A", "answer": 1}, False),
        ({"question": "a", "answer": True}, {"question": "a", "answer": "True"}, False),
        ({"messages": [{"role": "user", "content": "a"}], "answer": 1},
         {"messages": [{"content": "a", "role": "user"}], "answer": 1}, True),
    ],
)  # fmt: skip
def test_the_same_task(first: Any, second: Any, same: bool) -> None:
    a, b = task("a", **first), task("b", **second)
    assert (hash_task(a, {"answer"}) == hash_task(b, {"answer"})) is same


def test_without_a_list_of_fields_all_but_the_id_count() -> None:
    assert hash_task(task("a", id=1, world=3)) == hash_task(task("b", id=2, world=3))
    assert hash_task(task("a", question="q", world=3)) != hash_task(
        task("b", question="q", world=4)
    )
    assert hash_task(task("a", world=3), {"answer"}) != hash_task(task("a", world=4), {"answer"})


def test_which_fields_a_reward_reads() -> None:
    @reward
    def of_task(prediction: str, task: Task) -> float:
        return 0.0

    @reward
    def of_any(prediction: str, **fields: Any) -> float:
        return 0.0

    assert resolve_reward("math").task_fields == {"answer"}
    assert of_task.task_fields is None
    assert of_any.task_fields is None


def test_counts_and_what_is_said() -> None:
    train = [task(str(i), question=f"q{i % 4}") for i in range(6)]
    test = [task(str(i), question=f"q{i}") for i in (2, 3, 8, 8)]
    found = count_overlap(train, test, test, hash_task)
    assert found == Overlap(
        train=6, val=4, test=4, val_in_train=2, test_in_train=2, train_repeated=2, test_repeated=1
    )
    said = found.notes()
    assert said[0].startswith("2 of 4 test tasks are also training tasks")
    assert said[1].startswith("2 of 6 training tasks are duplicates")
    assert said[2] == "1 of 4 test tasks are duplicates and count each time"
    assert len(said) == 3
    assert Overlap(train=9, val=3, test=3).notes() == []
    assert found.notes(generated=True) == [said[0], said[2]]


def test_what_is_held_out_is_not_kept() -> None:
    tasks = [task(str(i), question=f"q{i % 5}") for i in range(12)]
    kept, held = hold_out(tasks, 2)
    assert [t.id for t in held] == ["0", "1"]
    assert [t.id for t in kept] == ["2", "3", "4", "7", "8", "9"]
