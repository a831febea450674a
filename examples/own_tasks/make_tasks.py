"""Writes train.jsonl and val.jsonl beside this file: questions to the shop, none in both files."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

from tools_and_reward import PRICES

from tutelage.files import write_files

rows = [
    {
        "question": f"What do {count} {item}{'es' if item.endswith('x') else 's'} cost?",
        "total": count * price,
    }
    for (item, price), count in itertools.product(PRICES.items(), range(10, 100))
]
random.Random(0).shuffle(rows)
for name, chosen in (("train", rows[:300]), ("val", rows[300:400])):
    text = "".join(json.dumps(row) + "\n" for row in chosen)
    write_files({Path(__file__).with_name(f"{name}.jsonl"): text}, "place to this script")
