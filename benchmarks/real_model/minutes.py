"""The job `tutelage train word-problems` in minutes and success: seeds, and demonstrations alone.

    python -m benchmarks.real_model.minutes FOLDER [--seeds 0,1,2] [--beside 2] [KEY=VALUE ...]

`start` shows the demonstrations alone, which are the same for every seed, and measures greedy
success before reinforcement. `control` shows them again and again, from that policy, for the
processor time that reinforcement took. Each run is a folder below FOLDER with a log beside it, on
one thread: one that was stopped goes on, and one that has finished is not repeated. Prints a table.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.measure import machine, run_to_its_end, table, took

from tutelage.runs.estimate import duration
from tutelage.runs.folder import RunFolder
from tutelage.tasks.word_problems import LEVELS
from tutelage.weights.config.presets import WORD_PROBLEMS, WORD_PROBLEMS_LEVELS

PHASES = ("cold_start", "before", "rl", "after")
GROUPS = ("all", *LEVELS["default"], "seen templates", "unseen templates")
MEASURED = ("before_sampled", "before_greedy", "after_sampled", "after_greedy")
JOB = WORD_PROBLEMS | WORD_PROBLEMS_LEVELS["default"]
RATE = [f"{key}={value}" for key, value in JOB.items() if key.startswith("sft.")]
"""The keys of the job's own cold start, which `--algorithm sft` has others for."""


def play(folder: Path, name: str, *words: str) -> None:
    """One run through the public command, on one thread; what it says goes into a log."""
    command = [sys.executable, "-m", "tutelage", "train", "word-problems", *words]
    with (folder / f"{name}.log").open("a", encoding="utf-8") as log:
        run_to_its_end(folder / name, [*command, "--output", str(folder / name)], stdout=log)


def result(folder: Path, name: str) -> dict[str, Any]:
    """What stands in the result of a run, with its own success before, where that was measured on
    the start alone."""
    found = RunFolder(folder / name).read_result() or {}
    if name != "start":
        start = RunFolder(folder / "start").read_result() or {}
        for when in ("before_greedy", "before_sampled"):
            if found.get(f"success_{when}") is None:
                for what in ("success", "families"):
                    found[f"{what}_{when}"] = start[f"{what}_{when.replace('before', 'after')}"]
    return found


def processor_seconds(folder: Path, name: str, phase: str) -> float:
    """Processor time of a phase: its share of the clock, of what the whole run took."""
    found, used = RunFolder(folder / name).read_result() or {}, took(folder / name)
    assert used is not None
    return used["cpu_seconds"] * found["phases"][phase] / found["wall_seconds"]


def success(found: Mapping[str, Any], measured: str, group: str) -> float | None:
    """Success of a group of tasks in percent; None where it was not measured."""
    if group == "all":
        value = found.get(f"success_{measured}")
    else:
        value = (found.get(f"families_{measured}") or {}).get(group, {}).get("success")
    return None if value is None else 100 * value


def foretold(folder: Path, name: str) -> str:
    """The expected total before a run began and after its first step, as its log has them."""
    text = (folder / f"{name}.log").read_text(encoding="utf-8")
    words = (r"total +about ([\d:,]+) minutes", r"whole run: about ([\d:,]+) minutes")
    return ", ".join(found[1] for word in words if (found := re.search(word, text)))


def lines(folder: Path, names: Sequence[str], seeds: Sequence[str]) -> list[list[str]]:
    """The rows of the table, a column a run, with the mean of the seeds."""
    found = {name: result(folder, name) for name in names}
    used = {name: took(folder / name) or {} for name in names}

    def row(title: str, values: Mapping[str, float | None], form: str) -> list[str]:
        of_seeds = [value for name in seeds if (value := values[name]) is not None]
        cells = [*values.values(), mean(of_seeds) if of_seeds else None]
        return [title, *("" if cell is None else format(cell, form) for cell in cells)]

    rows = [
        row(
            f"minutes, {phase}",
            {n: s / 60 if (s := r["phases"].get(phase)) else None for n, r in found.items()},
            ".1f",
        )
        for phase in PHASES
    ]
    rows += [
        row("minutes, all", {n: r["wall_seconds"] / 60 for n, r in found.items()}, ".1f"),
        row("minutes of the processor", {n: u["cpu_seconds"] / 60 for n, u in used.items()}, ".1f"),
        ["foretold before, and after a step", *(foretold(folder, name) for name in names), ""],
        row("peak memory, GiB", {n: u["peak_gib"] for n, u in used.items()}, ".2f"),
        row("disk, GB", {n: disk(folder / n) for n in names}, ".2f"),
    ]
    for measured in MEASURED:
        rows += [
            row(
                f"{measured.replace('_', ', ')}: {group}",
                {name: success(r, measured, group) for name, r in found.items()},
                ".0f",
            )
            for group in GROUPS
        ]
    return [line for line in rows if any(line[1:])]


def disk(folder: Path) -> float:
    """Gigabytes of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--beside", type=int, default=1, help="runs at once, each on one thread")
    parser.add_argument("keys", nargs="*", help="further KEY=VALUE of all runs")
    args = parser.parse_intermixed_args()
    folder, seeds = args.folder, [f"seed{seed}" for seed in args.seeds.split(",")]
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    sft = ["--algorithm", "sft", *args.keys]
    work = {"start": [*sft, *RATE]}
    work |= {name: ["--seed", name.removeprefix("seed"), *args.keys] for name in seeds}
    with ThreadPoolExecutor(args.beside) as pool:
        list(pool.map(lambda name: play(folder, name, *work[name]), work))
    time = mean(processor_seconds(folder, name, "rl") for name in seeds)
    shown = (RunFolder(folder / "start").read_result() or {})["cold_start_steps"]
    steps = round(time / (processor_seconds(folder, "start", "cold_start") / shown))
    first = max(1, steps // 2)
    keys = [*RATE, f"sft.max_steps={first}", f"sft.cooldown_steps={max(1, steps - first)}"]
    play(folder, "control", *sft, "--model", str(folder / "start" / "policy"), *keys)
    names = [*seeds, "start", "control"]
    print(f"{machine()}\n\nThe control is {steps} steps, for {duration(time)} of the processor.\n")
    print(table(["", *names, "mean of seeds"], lines(folder, names, seeds)))


if __name__ == "__main__":
    main()
