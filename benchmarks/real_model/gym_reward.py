"""Tasks of reasoning-gym, and its own scorer as a reward (`pip install reasoning-gym`).

A dataset of the package is a file of tasks, whose fields are those of its entries. What it scores 1
succeeds; it gives a part for an answer that has the right one in it. `others.py` uses it.
"""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

from tutelage import reward


def write(folder: Path, family: str, counts: dict[str, int], **settings: Any) -> dict[str, str]:
    """Write a file of tasks of a dataset for each split, no task twice, and return them."""
    try:
        from reasoning_gym import create_dataset
    except ImportError as error:
        raise SystemExit("the tasks are those of a package: pip install reasoning-gym") from error
    size = sum(counts.values())
    drawn = create_dataset(family, seed=0, size=20 * size, **settings)
    kept = list({x["question"]: x for x in drawn}.values())[:size]
    random.Random(0).shuffle(kept)
    entries, files = iter(kept), dict[str, str]()
    for split, count in counts.items():
        file = folder / f"{family}-{split}.jsonl"
        fields = ("question", "answer", "metadata")
        lines = [
            {key: x[key] for key in fields} | {"family": family} for x in islice(entries, count)
        ]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        files[split] = str(file)
    return files


@reward(isolation="none")
def score(
    prediction: str, question: str, answer: str, metadata: dict[str, Any], family: str
) -> dict[str, float]:
    """The dataset's own score of the last message."""
    from reasoning_gym import get_score_answer_fn

    entry = {"question": question, "answer": answer, "metadata": metadata}
    value = float(get_score_answer_fn(family)(prediction.strip(), entry))
    return {"reward": value, "exact": float(value == 1.0)}


if __name__ == "__main__":
    raise SystemExit(__doc__)
