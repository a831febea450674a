"""The three splits of a search: generated, from files, or one dataset split 40/20/40.

The test is held out: the search never sees it, and no test task may be in train or val. `fresh`
returns new test tasks for `tutelage prompts confirm`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tutelage.bounded import json_lines
from tutelage.environments.protocol import EnvironmentFactory
from tutelage.environments.start import environment_tasks
from tutelage.errors import ConfigError, pluralize
from tutelage.prompts.config import PromptConfig
from tutelage.prompts.contract import Splits
from tutelage.prompts.embedded import load_embedded_defaults
from tutelage.runs import job_inputs
from tutelage.runs.folder import RunFolder
from tutelage.seeds import SeedTree
from tutelage.tasks.arithmetic import Split
from tutelage.tasks.dataset import Dataset
from tutelage.tasks.overlap import group_duplicates, hash_task
from tutelage.types import Task

SPLITS: tuple[Split, ...] = ("train", "val", "test")
TRAIN, VAL, TEST = 20, 20, 200
"""Default numbers of generated tasks."""
SHARES = (0.4, 0.2)
"""Shares of training and validation of one dataset; the rest is the test."""
LEAST = 5
"""Minimum number of tasks of a dataset that is split in three."""


def make_splits(config: PromptConfig, environment: EnvironmentFactory | None = None) -> Splits:
    """Create the splits from a configuration. Raises `ConfigError` or `DataError`."""
    counts = (config.train_size or TRAIN, config.val_size or VAL, config.test_size or TEST)
    if not config.train and environment is not None:
        sizes: dict[str, int] = dict(zip(SPLITS, counts, strict=True))
        return Splits(**environment_tasks(environment, sizes, config.seed))
    if not config.train:  # math tasks for the tools `calculator` and `sum_1_to_n`
        tasks = load_embedded_defaults().tasks
        return Splits(*(tasks(n, k, config.seed) for n, k in zip(SPLITS, counts, strict=True)))
    own = config.agent is not None or environment is not None
    val, test = (
        (_load_files(paths, own) if paths else None) for paths in (config.val, config.test)
    )
    return limit_splits(_load_files(config.train, own), val, test, config)


def limit_splits(
    train: Sequence[Task],
    val: Sequence[Task] | None,
    test: Sequence[Task] | None,
    config: PromptConfig,
) -> Splits:
    """Return the datasets as splits with the configured maximum sizes; a single dataset is split
    40/20/40."""
    if val is None or test is None:
        parts = split_dataset(train, config.seed)
        train, val, test = parts.train, parts.val, parts.test
    sizes = (config.train_size, config.val_size, config.test_size)
    return Splits(*(tasks[:n] for tasks, n in zip((train, val, test), sizes, strict=True)))


def split_dataset(tasks: Sequence[Task], seed: int) -> Splits:
    """Split a dataset randomly into 40 % train, 20 % val and 40 % test tasks."""
    order = group_duplicates(tasks, hash_task)  # equal tasks stay together
    if len(order) < LEAST:
        raise ConfigError(
            f"{pluralize(len(order), 'different task')} cannot be split into train, val and test; "
            f"pass at least {LEAST}, or the three splits separately"
        )
    SeedTree(seed).child("prompt", "split").python().shuffle(order)
    first = max(1, round(len(order) * SHARES[0]))
    second = first + max(1, round(len(order) * SHARES[1]))
    parts = (order[:first], order[first:second], order[second:])
    places = (sorted(itertools.chain.from_iterable(part)) for part in parts)
    return Splits(*([tasks[i] for i in part] for part in places))


def draw_fresh_tasks(
    config: PromptConfig,
    offset: int,
    files: Sequence[str] = (),
    environment: EnvironmentFactory | None = None,
) -> list[Task]:
    """Return new test tasks: generated ones after the first `offset` tasks, or tasks from files."""
    if files:
        return list(_load_files(files, config.agent is not None or environment is not None))
    if config.train or (config.recipe != "math" and environment is None):
        raise ConfigError(
            "this run used your own tasks, so fresh test tasks must be passed too: --test FILE "
            "with tasks that were not tested yet"
        )
    wider = {"test_size": offset + (config.test_size or TEST)}
    return list(make_splits(config.model_copy(update=wider), environment).test[offset:])


def _load_files(paths: Sequence[str], is_custom: bool) -> Sequence[Task]:
    """Load tasks from files; the tasks of a custom agent need no question."""
    read = Dataset[Any].recorded if is_custom else Dataset[Any].load
    tasks = [task for path in paths for task in read(Path(path))]
    return Dataset[Any](tasks, input_required=not is_custom)


def write_tasks(folder: RunFolder, splits: Splits) -> None:
    """Write the splits to the run folder, so that a resume does not need the original files.

    Fields keep their order, since the store identifies a task by its text.
    """
    for name in SPLITS:
        job_inputs.write_tasks(folder.tasks(name), getattr(splits, name))


def read_tasks(folder: RunFolder) -> Splits | None:
    """Read the splits of a run; return None if they have not been written yet."""
    paths = [folder.tasks(name) for name in SPLITS]
    if not all(path.is_file() for path in paths):
        return None
    parts: list[list[Task]] = []
    for path in paths:
        rows = [json.loads(line) for _, line in json_lines(path.read_bytes())]
        # An id that was a number is one as a field; the task's own id is its text.
        parts.append([Task(str(r["id"]), {k: v for k, v in r.items() if k != "id"}) for r in rows])
    return Splits(*parts)
