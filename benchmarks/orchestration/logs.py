"""Do execution logs improve the planner? Collect, prepare, retrain, and compare on held-out tasks.

    python benchmarks/orchestration/logs.py [--start 200] [--more 1500] [--candidates 12]

A first planner learns from the logs of a few expert plans. It then plans new instructions whose
plans it never sees; what it makes of them is executed, and executions that did what was asked
become training data together with the first. The second planner learns from both, and both plan
the same held-out instructions. Every step is a command of `tutelage`. Writes RESULTS_logs.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from measure import results, table  # noqa: E402

NAMES = {"node_f1": "node F1", "edge_f1": "edge F1", "exact_nodes": "exact tools",
         "exact": "exact plan"}  # fmt: skip


def tutelage(folder: Path, *arguments: str) -> str:
    """Run a command; returns what it prints."""
    command = [sys.executable, "-c", "from tutelage.cli import main; main()", *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr[-500:]}")
    return done.stdout


def collect(folder: Path, name: str, count: int, seed: int, *more: str) -> dict[str, Any]:
    """Execute instructions; each seed has its own."""
    told = tutelage(
        folder, "orchestrate", "collect", "--num-executions", str(count), "--seed", str(seed),
        "--output-dir", name, "--json", *more,
    )  # fmt: skip
    return json.loads(told)


def prepare(folder: Path, output: str, *logs: str) -> int:
    """Make a training set of logs; returns its size."""
    given = [word for log in logs for word in ("--logs", log)]
    tutelage(folder, "orchestrate", "prepare", *given, "--output", output)
    return len(json.loads((folder / output).read_text()))


def train(folder: Path, data: str, run: str) -> None:
    """Train a planner and test it on `test.json`."""
    tutelage(
        folder, "train", "planner", "--phase", "1", "--train", data, "--test", "test.json",
        "--catalog", "seed.catalog.json", "--output", run,
    )  # fmt: skip


def compared(folder: Path) -> tuple[Any, Any, Any]:
    """Scores of both planners on the held-out tasks, and their difference."""
    from tutelage.orchestration.catalog import read_catalog
    from tutelage.orchestration.formats import read_workflows
    from tutelage.orchestration.metrics import compare, score
    from tutelage.orchestration.planner.saving import load_planner
    from tutelage.seeds import SeedTree

    catalog = read_catalog(folder / "seed.catalog.json")
    gold = read_workflows(folder / "test.json", catalog)
    texts = [workflow.instruction for workflow in gold]
    first, second = (
        score([p.plan for p in load_planner(folder / run).plan_all(texts)], gold, catalog)
        for run in ("before", "after")
    )
    return first, second, compare(second, first, SeedTree(0))


def main() -> None:
    """The whole loop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", type=int, default=200)
    parser.add_argument("--more", type=int, default=1500)
    parser.add_argument("--candidates", type=int, default=12)
    parser.add_argument("--test", type=int, default=400)
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        collect(folder, "logs-seed", args.start, 1)
        sizes = [prepare(folder, "seed.json", "logs-seed")]
        collect(folder, "logs-test", args.test, 3)
        held_out = prepare(folder, "test.json", "logs-test")
        train(folder, "seed.json", "before")
        told = collect(
            folder, "logs-more", args.more, 2, "--checkpoint", "before",
            "--candidates", str(args.candidates),
        )  # fmt: skip
        sizes.append(prepare(folder, "more.json", "logs-seed", "logs-more"))
        train(folder, "more.json", "after")
        first, second, gain = compared(folder)
    rows: list[list[str]] = []
    for name, words in NAMES.items():
        low, mean, high = (100 * getattr(gain[name], key) for key in ("low", "mean", "high"))
        before, after = (f"{100 * found.mean(name):.1f}" for found in (first, second))
        rows.append([words, before, after, f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"])
    text = (
        f"The first planner learned from {sizes[0]} examples, made of {args.start} executions of "
        f"expert plans. It planned {args.more} further instructions, at most {args.candidates} "
        f"plans each; {told['executions']} executions by simulated workers, of which "
        f"{told['succeeded']} did what was asked. The second learned from {sizes[1]} examples. "
        f"Percent on {held_out} held-out instructions (those of {args.test} whose own plan the "
        "workers could do), one seed of the loop, with 95 % intervals of a paired bootstrap.\n\n"
        + table(["score", "before", "after", "gain in points"], rows)
        + f"\nThe whole loop took {time.monotonic() - began:.0f} s on the busy machine.\n"
    )
    results(HERE / "RESULTS_logs.md", "Execution logs and the planner", text)
    print(text)


if __name__ == "__main__":
    main()
