"""Writes a corpus, demonstrations and questions into a folder: where people live, what they do.

Half of the demonstrations search before they answer, in the ReAct form, and see what the tool
finds; the other half guess. The people asked about in `train`, `val` and `test` are different ones;
all of them are in the corpus. `python make_data.py FOLDER [DEMONSTRATIONS]`, after which
`tutelage index` makes the index that the agent searches.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tutelage.files import write_files
from tutelage.seeds import SeedTree
from tutelage.tools import corpus
from tutelage.tools.search import RESULTS, format_passages
from tutelage.types import Message, Task

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent_tasks import corpus_rows, demonstration, search_tasks

GUESSES = 0.5


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    write_files({path: "".join(json.dumps(row) + "\n" for row in rows)}, "folder")


def shown(task: Task, guess: bool, index: Path, rng: Any) -> list[Message]:
    """One demonstration, with what a search for the person finds."""
    said = demonstration("search", task, guess, rng)
    if guess:
        return [*task.messages(), *said]
    seen = Message("user", f"Observation: {found(index, task.fields['person']['name'])}")
    return [*task.messages(), said[0], seen, said[2]]


@functools.cache
def found(index: Path, name: str) -> str:
    return format_passages(corpus.search(index, name, RESULTS))


folder, count = Path(sys.argv[1]), int([*sys.argv, "6000"][2])
folder.mkdir(parents=True, exist_ok=True)
write(folder / "corpus.jsonl", corpus_rows(0))
train = search_tasks("train", 2000, 0)
rng = SeedTree(0).child("demonstrations").python()
rows: list[dict[str, Any]] = []
with tempfile.TemporaryDirectory() as place:
    index = Path(place) / "corpus.db"
    corpus.build([folder / "corpus.jsonl"], index)
    for i in range(count):
        said = shown(train[i % len(train)], rng.random() < GUESSES, index, rng)
        rows.append({"messages": [m.to_dict() for m in said]})
write(folder / "demonstrations.jsonl", rows)
for name, tasks in (
    ("train", train),
    ("val", search_tasks("val", 100, 0)),
    ("test", search_tasks("test", 150, 0)),
):
    fields = ({k: t.fields[k] for k in ("question", "answer")} for t in tasks)
    write(folder / f"{name}.jsonl", fields)
