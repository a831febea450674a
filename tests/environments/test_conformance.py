"""`check_environment` catches what an author gets wrong; episodes are played twice to see it."""

from __future__ import annotations

import random
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tutelage.environments import Observation, Step
from tutelage.testing import check_environment
from tutelage.types import Message, Task

from .samples import Counter, Guess

TASKS = [Task(f"t{i}", {"question": f"{i}?"}) for i in range(3)]


@pytest.mark.parametrize("environment", [Guess, Counter])
def test_a_right_one_passes(environment: Any) -> None:
    check_environment(environment, TASKS)


class Shared(Guess):
    """The number of turns stands on the class."""

    count = 0

    async def reset(self, task: Task, seed: int) -> Observation:
        Shared.count = 0
        return await super().reset(task, seed)

    async def step(self, action: Message) -> Step:
        Shared.count += 1
        return Step(Observation((Message("user", str(Shared.count)),)), 0.0, Shared.count >= 4)


class Random(Guess):
    async def reset(self, task: Task, seed: int) -> Observation:
        await super().reset(task, seed)
        return Observation((Message("user", str(random.random())),))


class Leaky(Guess):
    @staticmethod
    def tasks(split: str, n: int, seed: int) -> list[Task]:
        return [Task(f"{split}{i}", {"question": str(i)}) for i in range(n)]


class Lingers(Guess):
    over = threading.Event()

    async def reset(self, task: Task, seed: int) -> Observation:
        threading.Thread(target=Lingers.over.wait, name="simulator", daemon=True).start()
        return await super().reset(task, seed)


class Child(Guess):
    children: list[subprocess.Popen[bytes]] = []  # noqa: RUF012

    async def reset(self, task: Task, seed: int) -> Observation:
        Child.children.append(subprocess.Popen(["sleep", "60"]))
        return await super().reset(task, seed)


@pytest.fixture(autouse=True)
def end_what_was_left() -> Iterator[None]:
    Lingers.over.clear()
    yield
    Lingers.over.set()
    for child in Child.children:
        child.kill()
        child.wait()


class Lost(Guess):
    @staticmethod
    def expert(task: Task, messages: Any) -> Message:
        return Message("assistant", "9")


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (Lingers, r"close left the thread 'simulator' behind"),
        (Child, r"close left the child process \d+ behind"),
        (Shared, r"two instances share state: task 't0' was another episode while a second"),
        (Random, r"task 't0' was another episode when it was played again: messages\[1\] is"),
        (Leaky, r"the test task 'test0' is also a training task"),
        (Lost, r"the expert did not end the task 't0'"),
        (lambda: Step, r"returned a type"),
    ],
)
def test_what_is_wrong_is_named(environment: Any, words: str) -> None:
    with pytest.raises(Exception, match=words):
        check_environment(environment, TASKS)
