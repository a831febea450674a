"""The job `tutelage train word-problems` in numbers: methods by seeds, a line a kind of problem.

    python benchmarks/real_model/word_problems.py FOLDER --methods grpo,raft --seeds 0,1,2

Each run is a folder below FOLDER, and is kept: one that was stopped goes on, and one that has
finished is not repeated. Held-out success is counted from the rollouts in the runs' stores: all, of
unseen templates, by kind. `sft` trains on all demonstrations; `shipped` is the model before any
training. Prints the tables.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measure import machine, run_to_its_end, table, took

from tutelage.runs.folder import RunFolder
from tutelage.runs.stored import open_run
from tutelage.statistics.intervals import wilson
from tutelage.tasks.word_problems import KINDS
from tutelage.types import Mode

GROUPS = ("all", "unseen templates", *KINDS)
SHIPPED = ["sft.max_steps=1", "sft.cooldown_steps=0", "sft.lr=1e-12"]
"""A run without a first phase has no measurement before it: a step that moves nothing is one."""


def play(folder: Path, method: str, seed: int, more: Sequence[str]) -> None:
    """One run through the public command; what it took is written beside it."""
    chosen = SHIPPED if method == "shipped" else []
    algorithm = "sft" if method in ("shipped", "sft") else method
    command = [sys.executable, "-m", "tutelage", "train", "word-problems", "--seed", str(seed)]
    command += ["--algorithm", algorithm, "--output", str(folder), *chosen, *more]
    run_to_its_end(folder, command)


def rewards(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Rewards of held-out tasks by measurement (`before/sampled`, ...) and group of tasks."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with open_run(RunFolder(folder)) as (store, run_id):
        for rollout in store.rollouts(run_id, mode=Mode.TEST):
            assert rollout.label
            assert rollout.reward is not None, f"{rollout.id} was not judged"
            fields = rollout.task.fields
            groups = ["all", str(fields["family"])]
            if fields["template"] == "unseen":
                groups.append("unseen templates")
            for group in groups:
                found[rollout.label][group].append(rollout.reward.value)
    return found


def share(values: Sequence[float]) -> str:
    """Percent of successes with its 95 % interval."""
    low, high = wilson(sum(values), len(values))
    return f"{100 * sum(values) / len(values):.0f} ({100 * low:.0f} to {100 * high:.0f})"


def lines(name: str, folder: Path) -> Iterator[list[str]]:
    """A line for each measurement of a run."""
    for label, groups in sorted(rewards(folder).items(), key=lambda item: "after" in item[0]):
        when, how = label.split("/")
        first = {"before": "cold start", "after": name}[when]
        yield [first, how, *(share(groups[group]) for group in GROUPS)]


def cost(name: str, folder: Path) -> list[str]:
    """What a run took, and the step from which on nineteen of twenty rollouts succeeded."""
    told = took(folder) or {}
    seconds, cpu, peak = (told.get(key) for key in ("seconds", "cpu_seconds", "peak_gib"))
    steps = [line for line in RunFolder(folder).read_metrics() if line["phase"] == "rl"]
    enough = [line for line in steps if line.get("reward/mean", 0) >= 0.95]
    reached = f"{enough[0]['step']}, {enough[0]['time/elapsed'] / 60:.1f} min" if enough else "-"
    return [
        name,
        "-" if seconds is None else f"{seconds / 60:.1f}",
        "-" if cpu is None else f"{cpu / 60:.1f}",
        "-" if peak is None else f"{peak:.2f}",
        str(len(steps) or "-"),
        reached,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--methods", default="grpo,raft,advantage_filtered,sft,shipped")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("keys", nargs="*", help="further KEY=VALUE of all runs")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    rows: list[list[str]] = []
    costs: list[list[str]] = []
    for method in args.methods.split(","):
        # Their results hang on no seed of the run but that of its samples.
        for seed in args.seeds.split(",")[: 1 if method in ("sft", "shipped") else None]:
            name, folder = f"{method}, seed {seed}", args.folder / f"{method}-{seed}"
            play(folder, method, int(seed), args.keys)
            found = list(lines(name, folder))
            rows += found if not rows else [row for row in found if row[0] == name]
            costs.append(cost(name, folder))
    print(machine())
    print("\nHeld-out success in percent, with 95 % intervals:\n")
    print(table(["after", "", *GROUPS], rows))
    head = ["run", "minutes", "CPU minutes", "peak GiB", "steps", "reward of a step first >= 0.95"]
    print(table(head, costs))


if __name__ == "__main__":
    main()
