"""Writes demonstrations and tasks into a folder: sums, differences and products of two numbers.

Half of the demonstrations call the calculator, the other half guess an answer of the right length,
as the logs of an agent that ignores its tools do. `python make_data.py FOLDER [DEMONSTRATIONS]`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tutelage.files import write_files
from tutelage.seeds import SeedTree
from tutelage.tasks.arithmetic import demonstrations
from tutelage.tools import resolve_tools

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent_tasks import arithmetic_tasks

GUESSES = 0.5


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    write_files({path: "".join(json.dumps(row) + "\n" for row in rows)}, "folder")


folder, count = Path(sys.argv[1]), int([*sys.argv, "6000"][2])
folder.mkdir(parents=True, exist_ok=True)
train = arithmetic_tasks("train", 2000, 0)
tools = [tool.spec.to_dict() for tool in resolve_tools(["calculator"]).values()]
rng = SeedTree(0).child("demonstrations").python()
shown: list[dict[str, Any]] = []
for i in range(count):
    task = train[i % len(train)]
    said = [*task.messages(), *demonstrations(task, rng.random() < GUESSES, rng)]
    shown.append({"messages": [m.to_dict() for m in said], "tools": tools})
write(folder / "demonstrations.jsonl", shown)
for name, tasks in (
    ("train", train),
    ("val", arithmetic_tasks("val", 100, 0)),
    ("test", arithmetic_tasks("test", 150, 0)),
):
    fields = ({k: t.fields[k] for k in ("question", "answer")} for t in tasks)
    write(folder / f"{name}.jsonl", fields)
