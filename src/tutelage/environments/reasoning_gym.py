"""`reasoning_gym:NAME`: questions of a reasoning-gym dataset, graded by the dataset's scorer.

A row holds the `seed` and `index` of its question, from which the entry is created again for
grading: the data of a scorer is not always JSON. Entries of neighbouring seeds repeat each other,
so splits are far apart, and a hash of the question decides its split.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

from tutelage.environments.gym import first_seed
from tutelage.environments.protocol import Environment, EnvironmentFactory, Observation, Step
from tutelage.errors import ConfigError, DataError
from tutelage.seeds import SeedTree
from tutelage.tools.execute import call
from tutelage.tools.loading import hint
from tutelage.types import Message, Task

REFUSED = {
    "game_of_life_halting": "its scorer gives 1.0 for any text",
    "coin_flip": "its scorer gives 1.0 for '0'",
}
"""Datasets whose scorer is wrong in reasoning-gym 0.1.25, with the reason."""
SHARES = {"train": range(6), "val": range(6, 7), "test": range(7, 10)}
"""Tenths of all questions that belong to each split."""
WINDOW = 100
"""Entries created with one seed: some datasets take time, or change, with their size."""
PATIENCE = 500
"""Consecutive entries without a new question after which a dataset counts as exhausted."""


def make_factory(argument: str, kwargs: Mapping[str, Any]) -> EnvironmentFactory:
    """Return the environment factory of a dataset. `kwargs` are its difficulty keys and `scoring`:
    `exact` (the default) rewards only a full score, `graded` the score itself.

    Raises `ConfigError` for an unknown or refused dataset and wrong keys, and `ModuleNotFoundError`
    without reasoning-gym.
    """
    from reasoning_gym.factory import DATASETS

    config = dict(kwargs)
    scoring = config.pop("scoring", "exact")
    if argument not in DATASETS:
        near = hint(argument, DATASETS)
        raise ConfigError(f"reasoning-gym has no dataset {argument!r}{near}")
    if argument in REFUSED:
        raise ConfigError(f"reasoning_gym:{argument} is not supported: {REFUSED[argument]}")
    if scoring not in ("exact", "graded"):
        raise ConfigError(f"scoring must be 'exact' or 'graded', got {scoring!r}")
    entries = _EntryCache(argument, config)
    try:
        first: Mapping[str, Any] = entries.dataset(0)[0]
    except Exception as error:
        keys = ", ".join(f.name for f in fields(DATASETS[argument][1]))
        raise ConfigError(
            f"cannot create reasoning_gym:{argument} with {config!r}: {type(error).__name__}: "
            f"{error}; its keys are {keys}"
        ) from error
    return EnvironmentFactory(
        f"reasoning_gym:{argument}",
        lambda: _QuestionEnvironment(entries, scoring == "graded"),
        tasks=entries.tasks,
        expert=_expert_answer if isinstance(first["answer"], str) else None,
    )


def _expert_answer(task: Task, messages: Sequence[Message]) -> Message:
    """Return the dataset's answer as an assistant message."""
    return Message("assistant", str(task["answer"]))


class _EntryCache:
    """Entries of a dataset by seed and index, created on first use."""

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        self._name, self._config = name, config
        self._lock = threading.Lock()
        self.dataset = lru_cache(32)(self._create_dataset)  # some hold megabytes

    def _create_dataset(self, seed: int) -> Any:
        """Create the dataset of `WINDOW` entries for one seed."""
        from reasoning_gym.composite import DatasetSpec
        from reasoning_gym.factory import create_dataset

        config = dict(self._config)
        if self._name == "composite":
            config["datasets"] = [DatasetSpec(**each) for each in config.get("datasets", ())]
        return create_dataset(self._name, seed=seed, size=WINDOW, **config)

    def tasks(self, split: str, n: int, seed: int) -> Sequence[Task]:
        """Return `n` tasks with different questions, or fewer if the dataset is exhausted."""
        found, number, last = dict[str, Task](), 0, 0
        while len(found) < n and number - last < PATIENCE:
            window, index = first_seed(split, seed) + number // WINDOW * WINDOW, number % WINDOW
            entry, number = self.dataset(window)[index], number + 1
            question = entry["question"]
            tenth = SeedTree(0, (question,)).value() % 10
            if tenth in SHARES[split] and question not in found:
                place = {"answer": entry["answer"], "seed": window, "index": index}
                row, last = {"question": question, **place}, number
                found[question] = Task(f"{split}-{window + index}", row)
        return [*found.values()]

    def score(self, task: Task, reply: str) -> float:
        """Return the score of a reply, from 0 to 1, and 0 if the scorer raises an exception."""
        from reasoning_gym.utils import extract_answer

        if "seed" not in task.fields or "index" not in task.fields:
            raise DataError(f"task {task.id!r} has no seed and index; use tasks of this dataset")
        with self._lock:
            dataset = self.dataset(int(task["seed"]))
            entry = dataset[int(task["index"])]
        answer = extract_answer(reply) or reply.strip()
        try:
            return float(dataset.score_answer(answer=answer, entry=entry))
        except Exception:
            return 0.0


class _QuestionEnvironment(Environment):
    """Single-turn episode with one question."""

    def __init__(self, entries: _EntryCache, graded: bool) -> None:
        self._entries, self._graded = entries, graded
        self._task = Task("", {})

    async def reset(self, task: Task, seed: int) -> Observation:
        """Return an empty observation, since the question is in the task."""
        self._task = task
        return Observation()

    async def step(self, action: Message) -> Step:
        """Score the reply."""
        score = await call(self._entries.score, self._task, action.content or "")
        reward = score if self._graded else float(score >= 1)
        info = {"score": score, "success": score >= 1}
        return Step(reward=reward, terminated=True, info=info)

    async def close(self) -> None:
        """Do nothing, since there are no resources to free."""
