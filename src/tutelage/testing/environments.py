"""`check_environment`: check an environment against the protocol by playing it.

It is meant for tests by the author of an environment. Replies come from the expert or are random:
offered actions, tool calls with random arguments, or words of the conversation.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tutelage.environments import EnvironmentFactory, as_factory
from tutelage.environments.episode import (
    PlayedEpisode,
    check_deterministic,
    describe_difference,
    expert_act,
    play_episode,
    random_act,
)
from tutelage.environments.loading import load_environment
from tutelage.errors import EnvironmentFailedError
from tutelage.types import Task


def check_environment(environment: Any, tasks: Sequence[Task] = (), *, seed: int = 0) -> None:
    """Check an environment, passed as a name, class, function or factory. Not for async code.

    Plays its tasks, or `tasks`, and raises `AssertionError` with all problems: a failure, an
    episode that differs when it is played again, instances that share state, threads and child
    processes that are left behind, an expert that does not end an episode, training tasks that are
    test tasks. Raises `ConfigError` if the object is not an environment.
    """
    named = isinstance(environment, str)
    factory = load_environment(environment) if named else as_factory(environment)
    problems: list[str] = []
    if factory.tasks is not None:
        train, test = factory.tasks("train", 4, seed), factory.tasks("test", 4, seed + 10**6)
        tasks = tasks or train
        shared = [task for task in test if any(task.fields == other.fields for other in train)]
        if shared:
            problems.append(f"the test task {shared[0].id!r} is also a training task")
    if not tasks:
        raise AssertionError(f"the environment {factory.name!r} has no tasks; pass tasks=[...]")
    before = _list_running()
    problems += asyncio.run(_play_tasks(factory, tasks[:4], seed))
    deadline = time.monotonic() + 2.0
    while (leaked := sorted(_list_running() - before)) and time.monotonic() < deadline:
        time.sleep(0.02)
    problems += [f"close left the {name} behind" for name in leaked]
    if problems:
        lines = "\n".join(f"- {problem}" for problem in dict.fromkeys(problems))
        raise AssertionError(f"the environment {factory.name!r} violates the protocol:\n{lines}")


async def _play_tasks(factory: EnvironmentFactory, tasks: Sequence[Task], seed: int) -> list[str]:
    """Run every task alone, repeatedly, with the expert and concurrently; return the problems."""
    problems: list[str] = []
    episodes: list[tuple[Task, PlayedEpisode]] = []
    expert = factory.expert
    for number, task in enumerate(tasks):
        try:
            act = random_act(factory, seed + number)
            episodes.append((task, await play_episode(factory, task, seed, act)))
            if expert is not None:
                best = await play_episode(factory, task, seed, expert_act(expert))
                if best.truncated:
                    problems.append(f"the expert did not end the task {task.id!r}")
            differs = await check_deterministic(factory, task, seed)
            if factory.deterministic and differs is not None:
                problems.append(
                    f"task {task.id!r} was another episode when it was played again: {differs}; "
                    "draw random numbers from the seed of reset, or set deterministic = False"
                )
        except EnvironmentFailedError as error:
            problems.append(str(error))
    if not factory.deterministic or problems or not episodes:
        return problems
    indices = (0, len(episodes) - 1)
    at_once = [
        play_episode(factory, episodes[i][0], seed, random_act(factory, seed + i)) for i in indices
    ]
    played = await asyncio.gather(*at_once, return_exceptions=True)
    for index, second in zip(indices, played, strict=True):
        task, episode = episodes[index]
        if isinstance(second, EnvironmentFailedError):
            problems.append(f"two instances at once: {second}")
        elif isinstance(second, BaseException):
            raise second
        elif (differs := describe_difference(episode, second)) is not None:
            problems.append(
                f"two instances share state: task {task.id!r} was another episode while a second "
                f"instance was open: {differs}"
            )
    return problems


def _list_running() -> set[str]:
    """Return the names of threads and child processes, except those of this package."""
    threads = [t.name for t in threading.enumerate()]
    names = {f"thread {n!r}" for n in threads if not n.startswith(("tutelage-", "asyncio_"))}
    files = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return names | {f"child process {child}" for f in files for child in f.read_text().split()}
