"""Write train.jsonl and val.jsonl: arithmetic questions as `id, question, chain, result, source`.

`chain` is how the result comes about, for people: training does not read it.
"""

import json
from pathlib import Path

from tutelage.files import write_files
from tutelage.tasks.arithmetic import make_tasks

SIZES = {"train": 400, "val": 100}

for split, size in SIZES.items():
    drawn = make_tasks("default", split, 3 * size, seed=4)
    rows = []
    for task in drawn:
        if task.fields["family"] != "arithmetic" or len(rows) == size:
            continue
        expression = task.fields["calls"][0]["arguments"]["expression"]
        rows.append(
            {
                "id": task.id,
                "question": task.fields["question"],
                "chain": f"calculator: {expression} = {task.fields['answer']}",
                "result": task.fields["answer"],
                "source": "generated",
            }
        )
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write_files({Path(f"{split}.jsonl"): text}, "folder to run this in")
