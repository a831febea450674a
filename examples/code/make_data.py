"""Writes demonstrations and tasks into a folder: calculations, to be done by running Python.

Half of the demonstrations run a block of code before they answer, the other half guess.
`python make_data.py FOLDER [DEMONSTRATIONS]`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tutelage.files import write_files
from tutelage.seeds import SeedTree

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent_tasks import arithmetic_tasks, demonstration

GUESSES = 0.5


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    write_files({path: "".join(json.dumps(row) + "\n" for row in rows)}, "folder")


folder, count = Path(sys.argv[1]), int([*sys.argv, "6000"][2])
folder.mkdir(parents=True, exist_ok=True)
train = arithmetic_tasks("train", 2000, 0)
rng = SeedTree(0).child("demonstrations").python()
shown: list[dict[str, Any]] = []
for i in range(count):
    task = train[i % len(train)]
    said = [*task.messages(), *demonstration("code", task, rng.random() < GUESSES, rng)]
    shown.append({"messages": [m.to_dict() for m in said]})
write(folder / "demonstrations.jsonl", shown)
for name, tasks in (
    ("train", train),
    ("val", arithmetic_tasks("val", 100, 0)),
    ("test", arithmetic_tasks("test", 150, 0)),
):
    fields = ({k: t.fields[k] for k in ("question", "answer")} for t in tasks)
    write(folder / f"{name}.jsonl", fields)
