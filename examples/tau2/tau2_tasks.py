"""tau2-bench's airline tasks: where they lie, as rows of strings, and the split in two halves.

A task is a deep object, so it travels as a JSON string beside its id (`SerializedTask`). The halves
are those of a shuffle by `random.Random(42)`. `tau2_benchmark.py` plays these tasks with the
benchmark's own code, `tau2_small.py` those of the small domain that comes with the example.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import TypedDict

from tutelage import Dataset
from tutelage.errors import ConfigError, DataError

SMALL = Path(__file__).parent / "small"
"""The data folder of the small domain, laid out as the benchmark's."""
VARIABLE = "TAU2_DATA_DIR"
HOW = f"""\
The benchmark is a git checkout of its own, with the code that grades, for Python 3.12 or 3.13:

    git clone https://github.com/sierra-research/tau2-bench
    pip install -e ./tau2-bench
    export {VARIABLE}=$PWD/tau2-bench

Do not `pip install tau2`: the package of that name in the Python index is a tool for chemists.
Without the benchmark, `--small` plays a small airline of the same format."""


class SerializedTask(TypedDict):
    """One row: the task's id, and the whole task as JSON."""

    id: str
    data: str


def data_folder() -> Path:
    """The benchmark's `data` folder, from `TAU2_DATA_DIR`: the checkout, or that folder in it.

    Raises `ConfigError` that says what to do when there is none.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        raise ConfigError(f"{VARIABLE} is not set.\n{HOW}")
    root = Path(named).expanduser().absolute()
    for folder in (root / "data", root):
        if _tasks_file(folder).is_file():
            return folder
    raise ConfigError(
        f"{VARIABLE}={named!r} has no data/tau2/domains/airline/tasks.json, so it is no checkout "
        f"of tau2-bench.\n{HOW}"
    )


def load_rows(folder: Path) -> list[SerializedTask]:
    """All airline tasks of a data folder, in the file's order. Raises `DataError` for no list."""
    path = _tasks_file(folder)
    tasks = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(tasks, list) or not all(isinstance(t, dict) and "id" in t for t in tasks):
        raise DataError(f"{path}: expected a JSON list of objects with an 'id'")
    return [{"id": str(task["id"]), "data": json.dumps(task)} for task in tasks]


def load_dataset(folder: Path) -> tuple[Dataset[SerializedTask], Dataset[SerializedTask]]:
    """The half to train on and the half to measure on."""
    rows = load_rows(folder)
    indices = list(range(len(rows)))
    random.Random(42).shuffle(indices)
    half = int(len(rows) * 0.5)
    train, val = ([rows[i] for i in part] for part in (indices[:half], indices[half:]))
    return (
        Dataset(train, name="tau2 train", input_required=False),
        Dataset(val, name="tau2 val", input_required=False),
    )


def _tasks_file(folder: Path) -> Path:
    return folder / "tau2" / "domains" / "airline" / "tasks.json"
