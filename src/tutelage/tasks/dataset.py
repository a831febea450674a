"""Dataset: a validated, immutable sequence of tasks.

An invalid row is refused when it is read, with file, line and field, since the same error inside a
rollout costs a model load and looks like a failure of the agent. Only JSON values are accepted, so
that a task can be stored, hashed and sent to another process. `readers.py` reads files to rows;
`Task` is in `types.py`.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, cast, overload

from tutelage.errors import DataError, pluralize
from tutelage.seeds import SeedTree
from tutelage.tasks.messages import check_order, read_messages
from tutelage.tasks.overlap import group_duplicates, hash_task
from tutelage.tasks.readers import RawRow, check_characters, read_rows, short_repr
from tutelage.types import INPUT_FIELDS, Task

RowT = TypeVar("RowT", bound=Mapping[str, Any])


def _make_task(row: RawRow, *, input_required: bool = True) -> Task:
    """Create a task from one raw row. Raises `DataError` with the row's location and the field."""
    if not isinstance(row.value, Mapping):
        raise DataError(
            f"{row.place}: a row must be an object of named fields, not "
            f"{type(row.value).__name__} {short_repr(row.value)}"
        )
    fields: dict[str, Any] = {}
    for key, value in cast("Mapping[Any, Any]", row.value).items():
        if not isinstance(key, str):
            raise DataError(f"{row.place}: field names must be strings, not {key!r}")
        try:  # as JSON holds it: tuples become lists
            fields[key] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(
                f"{row.place}: field {key!r} is {short_repr(value)}, which is not JSON "
                f"({error}); use strings, finite numbers, booleans, null, lists and objects"
            ) from error
    if input_required:
        _check_input(row.place, fields)
    task_id = fields.get("id", "")
    if "id" not in fields:
        # A hash of the fields, whatever their order.
        text = json.dumps(fields, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        task_id = "task_" + hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    if isinstance(task_id, bool) or not isinstance(task_id, (str, int)) or task_id == "":
        raise DataError(
            f"{row.place}: field 'id' must be a non-empty string or an integer, not {task_id!r}"
        )
    return Task(str(task_id), fields, row.place)


class Dataset(Sequence[Task], Generic[RowT]):
    """An ordered collection of tasks with unique ids: `Dataset(rows)`, `Dataset.load(path)`.

    Rows are mappings or `Task`s. A field `id` (string or integer) is the task's id; without it the
    id is a hash of the content, so the same row has the same id in every run. A repeated row gets
    the id of the first one with the suffix `-2`, and so on.
    """

    def __init__(
        self,
        rows: Iterable[RowT | Task],
        *,
        name: str = "dataset",
        input_required: bool = True,
    ) -> None:
        """Create a dataset. Raises `DataError` for an invalid row (with its index), for different
        rows with the same id, and without rows.

        A custom agent may read any field: `input_required=False` accepts rows without a question.
        """
        tasks: list[tuple[str, Task]] = []
        for i, row in enumerate(rows):
            place = f"{name} (index {i})"
            check_characters(place, row.fields if isinstance(row, Task) else row)
            if not isinstance(row, Task):
                row = _make_task(RawRow(place, row), input_required=input_required)
            elif input_required:
                _check_input(row.place or place, row.fields)
            tasks.append((row.place or place, row))
        if not tasks:
            raise DataError(f"{name} has no rows; a run needs at least one task")
        self._tasks = _assign_unique_ids(tasks)
        self.name = name

    @classmethod
    def load(cls, path: str | Path, *, input_required: bool = True) -> Self:
        """Read .json, .jsonl, .csv or .parquet. Raises `DataError` with file, line and field."""
        rows = [
            (row.place, _make_task(row, input_required=input_required)) for row in read_rows(path)
        ]
        return cls._from_tasks(_assign_unique_ids(rows), str(path))

    @classmethod
    def recorded(cls, path: str | Path) -> Self:
        """Read the tasks recorded by a run; they may lack a question, since custom agents need
        none. Raises `DataError`."""
        return cls.load(path, input_required=False)

    @classmethod
    def _from_tasks(cls, tasks: tuple[Task, ...], name: str) -> Self:
        """Create a dataset of validated tasks."""
        made = cls.__new__(cls)
        made._tasks = tasks
        made.name = name
        return made

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the field names common to all tasks, in the order of the first task."""
        first = self._tasks[0].fields if self._tasks else ()
        return tuple(name for name in first if all(name in task.fields for task in self._tasks))

    def split(self, fraction: float, seed: int) -> tuple[Self, Self]:
        """Split into two disjoint, non-empty datasets; the first has about `fraction` of the tasks.

        The assignment depends on `seed` alone; both parts keep the order of the dataset. Equal rows
        stay together.
        """
        if not 0.0 < fraction < 1.0:
            raise DataError(f"split fraction must be between 0 and 1, not {fraction!r}")
        groups = group_duplicates(self._tasks, hash_task)
        size = len(groups)
        if size < 2:
            tasks = pluralize(size, "different task")
            raise DataError(f"{self.name} has {tasks}; a split needs at least two")
        SeedTree(seed).child("dataset", "split").python().shuffle(groups)
        count = min(max(round(size * fraction), 1), size - 1)

        def select(subset: Iterable[Sequence[int]]) -> Self:
            """Return a dataset of the tasks in some groups, in order."""
            places = sorted(itertools.chain.from_iterable(subset))
            return self._from_tasks(tuple(self._tasks[i] for i in places), self.name)

        return select(groups[:count]), select(groups[count:])

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Task | Self:
        if isinstance(index, slice):
            return self._from_tasks(self._tasks[index], self.name)
        return self._tasks[index]

    def __len__(self) -> int:
        return len(self._tasks)


def _assign_unique_ids(entries: Iterable[tuple[str, Task]]) -> tuple[Task, ...]:
    """Return the tasks with unique ids for repeated rows.

    Raises `DataError` if different rows have the same id.
    """
    rows = list(entries)
    taken = {task.id for _, task in rows}
    first: dict[str, tuple[str, Task]] = {}
    times: Counter[str] = Counter()
    tasks: list[Task] = []
    for place, task in rows:
        earlier = first.setdefault(task.id, (place, task))
        times[task.id] += 1
        if times[task.id] > 1:
            if dict(earlier[1].fields) != dict(task.fields):
                raise DataError(
                    f"{place}: duplicate id {task.id!r}, already used by a different row, "
                    f"{earlier[0]}; use a unique id for each row"
                )
            # `name-2` for the second row of a name, and so on past what other rows are called.
            while (made := f"{task.id}-{times[task.id]}") in taken:
                times[task.id] += 1
            taken.add(made)
            task = replace(task, id=made)
        tasks.append(task)
    return tuple(tasks)


def _check_input(place: str, fields: Mapping[str, Any]) -> None:
    """Raise `DataError` for a row without a valid input field."""
    name = next((field for field in INPUT_FIELDS if field in fields), None)
    if name is None:
        names = ", ".join(repr(field) for field in fields) or "nothing"
        near = [n for f in fields for n in difflib.get_close_matches(f.lower(), INPUT_FIELDS, n=1)]
        raise DataError(
            f"{place}: no input field; the row has {names}; "
            f"expected one of {', '.join(INPUT_FIELDS)}"
            + (f"; did you mean {near[0]!r}?" if near else "")
        )
    value = fields[name]
    if isinstance(value, str) and name != "messages":
        if not value.strip():
            raise DataError(f"{place}: field {name!r} must not be empty: it is the agent's input")
    elif isinstance(value, list) or name == "messages":
        check_order(place, name, read_messages(place, name, value), complete=False)
    else:
        raise DataError(
            f"{place}: field {name!r} must be a string or a list of chat messages, "
            f"not {short_repr(value)}"
        )
