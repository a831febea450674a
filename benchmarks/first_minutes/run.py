"""Measure the first commands of a newcomer: `make train`, from random weights, a search, a plan.

    python -m benchmarks.first_minutes.run [NAME ...]       # about 25 minutes, on a quiet machine

Each command runs in a process of its own with empty caches. `results.json` keeps minutes by phase,
processor time, success before and after, and what the command foretold; the table is printed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.house.artefacts import machine

RESULTS = Path(__file__).with_name("results.json")
COMMANDS: dict[str, list[str]] = {
    **{f"shipped start, seed {s}": ["train", "math", "--seed", str(s)] for s in range(3)},
    **{
        f"from scratch, seed {s}": ["train", "math", "--from-scratch", "--seed", str(s)]
        for s in range(3)
    },
    "control": ["train", "math", "trainer.control=true"],
    "prompt search": ["train", "math", "--algorithm", "screen"],
    "plan": ["orchestrate", "plan", "Summarise the article and translate it to French"],
}


def run(words: list[str], folder: Path) -> dict[str, Any]:
    """Run a command to its end in a folder; returns what it took and what it says of itself."""
    command = [str(Path(sys.executable).parent / "tutelage"), *words]
    if words[0] == "train":
        command += ["--output", str(folder / "run")]
    began = time.monotonic()
    with (folder / "log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=folder,
            env=os.environ | {"XDG_CACHE_HOME": str(folder / "cache")},
        )  # fmt: skip
        _, status, used = os.wait4(process.pid, 0)
    row: dict[str, Any] = {
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "memory_mb": used.ru_maxrss // 1024,
        "exit": os.waitstatus_to_exitcode(status),
    }
    text = (folder / "log").read_text(encoding="utf-8")
    if found := re.search(r"^ +total +(.*)", text, re.MULTILINE):
        row["foretold"] = found[1]
    if (folder / "run" / "result.json").is_file():
        result = json.loads((folder / "run" / "result.json").read_text(encoding="utf-8"))
        names = ("success_clean_greedy", "cold_start_steps", "mixed_steps", "rl_steps", "phases")
        kinds = [f"success_{when}_{how}" for when in ("before", "after", "control")
                 for how in ("sampled", "greedy")]  # fmt: skip
        row |= {name: result[name] for name in (*names, *kinds) if result.get(name)}
        row |= {k: v for k, v in result.get("test", {}).items() if isinstance(v, float)}
    return row


def main() -> None:
    """Run the chosen commands and keep each row as it is made."""
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in sys.argv[1:] or COMMANDS:
        with tempfile.TemporaryDirectory() as place:
            row = run(COMMANDS[name], Path(place))
        kept[name] = row | {"date": date.today().isoformat(), "machine": machine()}
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        print(f"{name:24}", {k: v for k, v in row.items() if k != "machine"}, flush=True)


if __name__ == "__main__":
    main()
