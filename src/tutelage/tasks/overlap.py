"""Tasks that occur in more than one split, or repeatedly in one, found by content.

Success on training tasks is not success on held-out tasks. Two tasks are equal if their input and
the fields that the reward reads are, whatever their ids; if any field may be read (a custom agent,
an environment, a reward that takes the task), all fields are compared. Compared is canonical JSON:
sorted keys, text in Unicode's composed form with single spaces, numbers as text, since a CSV file
has no numbers. Every kind of run counts here (weights, supervised, prompts, planner, `eval`), and
every title with "held-out" comes from `success_title`.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar, cast

from tutelage.types import Task

T = TypeVar("T")


def hash_task(task: Task, fields: Collection[str] | None = None) -> str:
    """Return a hash of a task's input and `fields`; with None, of all its fields except the id."""
    if fields is None or not task.has_input:
        return hash_value({name: value for name, value in task.fields.items() if name != "id"})
    held = {name: task.fields[name] for name in sorted(fields) if name in task.fields}
    return hash_value([task.input, held])


def hash_value(value: Any) -> str:
    """Return a hash of a JSON value, independent of spacing, key order and Unicode form."""
    text = json.dumps(_normalize(value), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _normalize(value: Any) -> Any:
    """Normalise the strings of a JSON value, and convert its numbers to strings."""
    if isinstance(value, str):
        return " ".join(unicodedata.normalize("NFC", value).split())
    if isinstance(value, Mapping):
        return {key: _normalize(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_normalize(item) for item in cast("Sequence[Any]", value)]
    return value if value is None or isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Numbers of tasks per split, of validation and test tasks that are also training tasks, and of
    duplicates within each split."""

    train: int = 0
    val: int = 0
    test: int = 0
    val_in_train: int = 0
    test_in_train: int = 0
    train_repeated: int = 0
    val_repeated: int = 0
    test_repeated: int = 0

    def record(self) -> dict[str, int]:
        """Return the `overlap` entry of result.json."""
        return {name: count for name, count in asdict(self).items() if "_" in name}

    def notes(self, *, generated: bool = False) -> list[str]:
        """Return warnings about duplicate tasks. Duplicates among `generated` training tasks are
        not reported, since they occur by chance."""
        notes: list[str] = []
        if self.test_in_train:
            notes.append(
                f"{format_shared(self.test_in_train, self.test)}: results on them are not held-out "
                "results; pass other test tasks with --test FILE (in Python test_dataset=)"
            )
        elif self.val_in_train:
            notes.append(format_shared(self.val_in_train, self.val, "validation"))
        for name, count, size in (
            ("training", 0 if generated else self.train_repeated, self.train),
            ("validation", 0 if self.val_in_train else self.val_repeated, self.val),
            ("test", self.test_repeated, self.test),
        ):
            if count:
                notes.append(f"{count} of {size} {name} tasks are duplicates and count each time")
        return notes


def format_shared(shared: int, tasks: int, name: str = "test") -> str:
    """Return a sentence such as `40 of 100 test tasks are also training tasks`."""
    return f"{shared} of {tasks} {name} tasks are also training tasks"


def count_overlap(
    train: Iterable[T], val: Sequence[T], test: Sequence[T], key: Callable[[T], Hashable]
) -> Overlap:
    """Count the tasks with equal `key` between and within splits. If `test` is `val`, the counts of
    both are equal."""
    seen = [key(task) for task in train]
    known = set(seen)
    vals = [key(task) for task in val]
    tests = vals if test is val else [key(task) for task in test]
    return Overlap(
        train=len(seen),
        val=len(vals),
        test=len(tests),
        val_in_train=sum(one in known for one in vals),
        test_in_train=sum(one in known for one in tests),
        train_repeated=len(seen) - len(known),
        val_repeated=0 if tests == vals else len(vals) - len(set(vals)),
        test_repeated=len(tests) - len(set(tests)),
    )


def find_overlap(train: Iterable[T], test: Sequence[T], key: Callable[[T], Hashable]) -> list[int]:
    """Return the indices of test tasks that are also training tasks, compared by `key`."""
    known = {key(task) for task in train}
    return [place for place, task in enumerate(test) if key(task) in known]


def format_list(names: Sequence[str], max_count: int = 5) -> str:
    """Join names to a text such as `a, b, c and 114 more`."""
    told, left = ", ".join(names[:max_count]), len(names) - max_count
    return f"{told} and {left} more" if left > 0 else told


def hold_out(tasks: Sequence[Task], count: int) -> tuple[list[Task], list[Task]]:
    """Return (kept, held out): the first `count` tasks are held out, and their duplicates among the
    others are dropped."""
    held = list(tasks[:count])
    known = {hash_task(task) for task in held}
    return [task for task in tasks[count:] if hash_task(task) not in known], held


def group_duplicates(tasks: Sequence[T], key: Callable[[T], Hashable]) -> list[list[int]]:
    """Group the indices of equal tasks, in the order of first occurrence."""
    groups: dict[Hashable, list[int]] = {}
    for place, task in enumerate(tasks):
        groups.setdefault(key(task), []).append(place)
    return list(groups.values())


def count_shared(result: Mapping[str, Any], split: str = "test") -> int:
    """Return the number of a split's tasks that are also training tasks, from a result.json, or 0
    if unknown."""
    return (result.get("overlap") or {}).get(f"{split}_in_train", 0)


def success_title(result: Mapping[str, Any], measure: str, split: str = "test") -> str:
    """Return a title such as `held-out success`, without `held-out` if training used the tasks."""
    return measure if count_shared(result, split) else f"held-out {measure}"


def split_name(result: Mapping[str, Any], split: str = "test") -> str:
    """Return `held-out`, or the name of the split if training used its tasks."""
    called = {"val": "validation"}.get(split, split)
    return called if count_shared(result, split) else "held-out"


def footnote(result: Mapping[str, Any]) -> str | None:
    """Return the footnote of a table if its tasks are also training tasks, else None."""
    shared = count_shared(result)
    return f"{format_shared(shared, result.get('test_tasks', shared))}." if shared else None
