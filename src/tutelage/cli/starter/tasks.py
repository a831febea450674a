"""Write train.jsonl, val.jsonl and test.jsonl: one task a line, with its question and answer."""

import json
import random
from pathlib import Path

from agent import PRICES

orders = [(count, item) for count in range(2, 70) for item in PRICES]
random.Random(0).shuffle(orders)
rows = [
    json.dumps({"question": f"What do {n} {item}s cost?", "answer": str(n * PRICES[item])}) + "\n"
    for n, item in orders
]
for name, part in {"train": rows[:300], "val": rows[300:340], "test": rows[340:440]}.items():
    Path(f"{name}.jsonl").write_text("".join(part), encoding="utf-8")
