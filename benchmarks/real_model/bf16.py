"""The same training in bfloat16 and in float32, seed by seed, and how far apart they end.

    python -m benchmarks.real_model.bf16 FOLDER                      # embedded policy of size `s`
    python -m benchmarks.real_model.bf16 FOLDER --recipe word-problems --seeds 0

Each run is a folder below FOLDER, and is kept: one that was stopped goes on, and one that has
finished is not repeated. Everything but `model.dtype` and the seed is the recipe's default, with
the KEY=VALUE that are given. Both runs of a seed have the same held-out tasks. The table has final
sampled success and its difference, bfloat16 minus float32, in points: of each seed and of all by
tasks (bootstrap of pairs), then of all by seeds, whose trainings differ (t-interval). The bar is an
interval of all within 8 points of 0. `max_dlogp` and `kl/rollout` say how far sampler and trainer
were from each other in the steps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from benchmarks.measure import machine, run_to_its_end, table, took

from tutelage.runs.folder import RunFolder
from tutelage.runs.stored import open_run
from tutelage.statistics.intervals import mean_interval, paired_bootstrap
from tutelage.statistics.outcome import is_success
from tutelage.types import Mode

BAR = 8
TYPES = ("float32", "bfloat16")
RECIPES = {"math": ("model.size=s",), "word-problems": ()}
"""The keys of each recipe here."""


def play(folder: Path, recipe: str, dtype: str, seed: int, more: Sequence[str]) -> None:
    """One run through the public command; what it took is written beside it."""
    command = [sys.executable, "-m", "tutelage", "train", recipe, "--seed", str(seed)]
    command += ["--output", str(folder), f"model.dtype={dtype}", *RECIPES[recipe], *more]
    run_to_its_end(folder, command, stdout=sys.stderr)


def success(folder: Path) -> dict[str, float]:
    """Final sampled success by held-out task."""
    found: dict[str, float] = {}
    with open_run(RunFolder(folder)) as (store, run_id):
        for rollout in store.rollouts(run_id, mode=Mode.TEST):
            if rollout.label == "after/sampled":
                found[rollout.task.id] = float(is_success(rollout))
    if not found:
        raise SystemExit(f"{folder} has no measurement after training")
    return found


def course(name: str, folder: Path) -> list[str]:
    """What a run took, and how far its sampler and trainer were from each other."""
    told = took(folder)
    steps = [line for line in RunFolder(folder).read_metrics() if line["phase"] == "rl"]
    gaps = [line["max_dlogp"] for line in steps if "max_dlogp" in line] or [0.0]
    apart = [line["kl/rollout"] for line in steps if "kl/rollout" in line] or [0.0]
    return [
        name,
        "-" if told is None else f"{told['seconds'] / 60:.1f}",
        str(len(steps)),
        f"{statistics.median(gaps):.2g}",
        f"{max(gaps):.2g}",
        f"{statistics.median(apart):.2g}",
    ]


def difference(name: str, pairs: Sequence[tuple[float, float]]) -> list[str]:
    """A line of the table of pairs (float32, bfloat16), by tasks."""
    before, after = ([pair[i] for pair in pairs] for i in (0, 1))
    found = paired_bootstrap(before, after, np.random.default_rng(0))
    shares = [f"{100 * statistics.fmean(values):.1f}" for values in (before, after)]
    return [
        name,
        str(len(pairs)),
        *shares,
        points(found.mean, found.low, found.high),
        f"{found.wins}, {found.losses}, {found.ties}",
    ]


def points(mean: float, low: float, high: float) -> str:
    """A difference with its interval, and whether that is within the bar."""
    inside = "within" if max(-low, high) <= BAR / 100 else "not within"
    return f"{100 * mean:+.1f} ({100 * low:+.1f} to {100 * high:+.1f}), {inside} {BAR}"


def report(pairs: dict[int, list[tuple[float, float]]]) -> list[list[str]]:
    """A line for each seed; with several, one for all by tasks and one by seeds."""
    rows = [difference(f"seed {seed}", some) for seed, some in pairs.items()]
    if len(pairs) > 1:
        rows.append(difference("all, by tasks", [pair for some in pairs.values() for pair in some]))
        gaps = [after - before for some in pairs.values() for before, after in some]
        seeds = [str(seed) for seed, some in pairs.items() for _ in some]
        interval = mean_interval(gaps, seeds)
        assert interval is not None, "there are several seeds"
        rows.append(["all, by seeds", "", "", "", points(statistics.fmean(gaps), *interval), ""])
    return rows


def main() -> None:
    """Run what is missing and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recipe", choices=RECIPES, default="math")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("keys", nargs="*", help="further KEY=VALUE of all runs")
    args = parser.parse_intermixed_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    pairs: dict[int, list[tuple[float, float]]] = {}
    courses: list[list[str]] = []
    for seed in map(int, args.seeds.split(",")):
        found: list[dict[str, float]] = []
        for dtype in TYPES:
            folder = args.folder / f"{args.recipe}-{dtype}-{seed}"
            play(folder, args.recipe, dtype, seed, args.keys)
            found.append(success(folder))
            courses.append(course(f"{dtype}, seed {seed}", folder))
        plain, short = found
        if plain.keys() != short.keys():
            raise SystemExit(f"the runs of seed {seed} have different held-out tasks")
        pairs[seed] = [(value, short[task]) for task, value in plain.items()]
    print(machine())
    head = ["final sampled success, %", "tasks", *TYPES, "points (95 % interval)"]
    print("\n" + table([*head, "better, worse, equal"], report(pairs)))
    head = ["run", "minutes", "steps", "max_dlogp, median", "highest", "kl/rollout, median"]
    print(table(head, courses))


if __name__ == "__main__":
    main()
