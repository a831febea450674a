"""Environments by name, and what may stand behind one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tutelage.environments import EnvironmentFactory, load_environment, play_episode
from tutelage.environments.episode import random_act
from tutelage.errors import ConfigError

from .samples import TASK

FILE = '''
from tutelage import tool
from tutelage.environments import EnvironmentFactory, Observation, Step
from tutelage.types import Message, Task

class Echo:
    deterministic = False
    def __init__(self, word="hi"):
        self.word = word
    @staticmethod
    def tasks(split, n, seed):
        return [Task(f"{split}{seed + i}", {"question": str(seed + i)}) for i in range(n)]
    @staticmethod
    def expert(task, messages):
        return Message("assistant", "done")
    async def reset(self, task, seed):
        return Observation((Message("user", self.word),))
    async def step(self, action):
        return Step(Observation((Message("user", action.content),)), 1.0, True)
    async def close(self): pass

class Pens:
    async def __aenter__(self):
        return self
    async def __aexit__(self, *_): pass
    @tool
    def buy(self, count: int) -> int:
        """Buy."""
        return count

def made(word="made"):
    return Echo(word)

def factory():
    return EnvironmentFactory("own", Echo)

def number():
    return 3

def broken():
    raise ValueError("no file")

class Nothing: pass
'''


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "worlds.py"
    path.write_text(FILE)
    return str(path)


async def first(factory: EnvironmentFactory) -> str | None:
    episode = await play_episode(factory, TASK, 0, random_act(factory, 0))
    return episode.messages[1].content


async def test_a_class_brings_its_tasks_its_expert_and_what_it_says_of_itself(file: str) -> None:
    found = load_environment(f"{file}:Echo", {"word": "hello"})
    assert (found.name, found.deterministic) == ("Echo", False)
    assert found.tasks is not None
    assert [t.id for t in found.tasks("train", 2, 5)] == ["train5", "train6"]
    assert found.expert is not None
    assert found.expert(TASK, ()).content == "done"
    assert await first(found) == "hello"


async def test_a_function_makes_an_environment_each_time_or_a_factory(file: str) -> None:
    found = load_environment(f"{file}:made", {"word": "x"})
    assert (found.name, found.deterministic) == ("made", False)
    assert await first(found) == "x"
    assert found.make() is not found.make()
    assert load_environment(f"{file}:factory").name == "own"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sourcez", r"unknown environment 'sourcez'; did you mean 'sources'\? use FILE.py:NAME or"),
        ("FILE:Ecco", r"does not define 'Ecco'; did you mean 'Echo'"),
        ("FILE:number", r"the function 'number' returned a int; return an EnvironmentFactory"),
        ("FILE:broken", r"'broken' failed with ValueError: no file; environment.kwargs are \{\}"),
    ],
)
def test_names_that_are_none_are_refused(file: str, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_environment(name.replace("FILE", file))
