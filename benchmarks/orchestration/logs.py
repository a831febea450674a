"""Do execution logs improve the planner? Collect, prepare, retrain, and compare on held-out tasks.

    python benchmarks/orchestration/logs.py [--start 200] [--more 1500] [--seeds 3]

A first planner learns from the logs of a few expert plans. It then plans new instructions whose
plans it never sees; what it makes of them is executed, and executions that did what was asked
become training data together with the first. The second planner learns from both, and both plan
the same held-out instructions. Every step is a command of `tutelage`, and each seed has its own
instructions, planners and luck. Writes RESULTS_logs.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
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
    tutelage(folder, "orchestrate", "collect", *given, "--prepare", output)
    return len(json.loads((folder / output).read_text()))


def train(folder: Path, data: str, run: str, *more: str) -> None:
    """Train a planner and test it on `test.json`."""
    tutelage(
        folder, "train", "planner", "--phase", "1", "--train", data, "--test", "test.json",
        "--catalog", "seed.catalog.json", "--output", run, *more,
    )  # fmt: skip


def planned(folder: Path) -> tuple[list[Any], list[Any], list[Any]]:
    """The held-out workflows, and what both planners make of them."""
    from tutelage.orchestration.data.workflows import read_workflows
    from tutelage.orchestration.plan.catalog import read_catalog
    from tutelage.orchestration.planner.saving import load_planner

    gold = read_workflows(folder / "test.json", read_catalog(folder / "seed.catalog.json"))
    texts = [workflow.instruction for workflow in gold]
    before, after = (
        [found.plan for found in load_planner(folder / run).plan_all(texts)]
        for run in ("before", "after")
    )
    return gold, before, after


def loop(folder: Path, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One seed of the whole loop: its instructions, its workers' luck and its planners are own."""
    folder.mkdir()
    own, base = ("--seed", str(seed)), 10 * seed
    collect(folder, "logs-seed", args.start, base + 1)
    sizes = [prepare(folder, "seed.json", "logs-seed")]
    collect(folder, "logs-test", args.test, base + 3)
    prepare(folder, "test.json", "logs-test")
    train(folder, "seed.json", "before", *own)
    told = collect(folder, "logs-more", args.more, base + 2, "--checkpoint", "before")
    sizes.append(prepare(folder, "more.json", "logs-seed", "logs-more"))
    train(folder, "more.json", "after", *own)
    gold, before, after = planned(folder)
    return {
        "sizes": sizes,
        "executions": told["executions"],
        "succeeded": told["succeeded"],
        "gold": gold,
        "before": before,
        "after": after,
    }


def scores(parts: list[dict[str, Any]]) -> tuple[Any, Any, Any]:
    """Scores of both planners on the tasks of these seeds together, and their difference."""
    from tutelage.orchestration.evaluation.metrics import PlanScores
    from tutelage.seeds import SeedTree

    gold = [workflow for part in parts for workflow in part["gold"]]
    first, second = (
        PlanScores.of([plan for part in parts for plan in part[name]], gold)
        for name in ("before", "after")
    )
    return first, second, second.gain(first, SeedTree(0))


def rows_of(parts: list[dict[str, Any]]) -> list[list[str]]:
    """A line a score: before, after, the pooled gain with its interval, and each seed's gain."""
    first, second, gain = scores(parts)
    each = [scores([part])[2] for part in parts]
    rows: list[list[str]] = []
    for name, words in NAMES.items():
        low, mean, high = (100 * getattr(gain[name], key) for key in ("low", "mean", "high"))
        before, after = (f"{100 * found.summary()[name]:.1f}" for found in (first, second))
        apart = ", ".join(f"{100 * one[name].mean:+.1f}" for one in each)
        rows.append([words, before, after, f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]", apart])
    return rows


def main() -> None:
    """The loop for each seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--start", type=int, default=200)
    parser.add_argument("--more", type=int, default=1500)
    parser.add_argument("--test", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=HERE / "RESULTS_logs.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        parts: list[dict[str, Any]] = []
        for seed in range(args.seeds):
            parts.append(loop(Path(place) / str(seed), args, seed))
            print(f"seed {seed}: {rows_of(parts[-1:])}", flush=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    listed = {
        key: ", ".join(str(part[key]) for part in parts) for key in ("executions", "succeeded")
    }
    learned = [", ".join(str(part["sizes"][i]) for part in parts) for i in (0, 1)]
    held_out = ", ".join(str(len(part["gold"])) for part in parts)
    text = (
        f"{args.seeds} seeds of the whole loop, numbers of each in turn. The first planner learned "
        f"from {learned[0]} examples, made of {args.start} executions of expert plans. It planned "
        f"{args.more} further instructions: "
        f"{listed['executions']} executions by simulated workers, of which {listed['succeeded']} "
        f"did what was asked. The second learned from {learned[1]} examples. Percent on the "
        f"held-out instructions of all seeds ({held_out}: those of {args.test} whose own plan the "
        "workers could do), with 95 % intervals of a paired bootstrap over them.\n\n"
        + table(["score", "before", "after", "gain in points", "by seed"], rows_of(parts))
        + f"\nIt took {used.ru_utime + used.ru_stime:.0f} CPU seconds in all.\n"
    )
    results(args.results, "Execution logs and the planner", text)
    print(text)


if __name__ == "__main__":
    main()
