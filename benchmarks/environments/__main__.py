"""Where does reinforcement learning beat imitation? The built-in environments, method by method.

    python -m benchmarks.environments FOLDER [--only sources rooms] [--seeds N] [--results FILE]
        [--commands]

Each environment has one start: the policy that imitated its demonstrations. From there four methods
get the same number of rollouts by the public command `tutelage train --environment`, on one thread,
two runs at once. Each seed has its own training and test tasks, which all methods share, so their
differences are paired task by task. Runs that have finished below FOLDER are not made again, and
one that was stopped goes on. `--commands` prints what would be run. `EXPECTED.md` has what was
predicted before any of it was run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from benchmarks.measure import results, run_to_its_end, table, took

from tutelage.cli.kinds import find_kind
from tutelage.evaluate.compared import read_facts
from tutelage.runs.folder import RunFolder
from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import mean_interval, paired_bootstrap, rate_interval

METHODS = {
    "grpo": "GRPO",
    "advantage_filtered": "imitation above the group's mean",
    "raft": "imitation of right answers (RFT)",
    "best_of_n": "imitation of the best of each group",
}
"""Estimators of advantages, the first being what the others are compared with."""
SEEDS = {"sources": 5, "sources:no_audit": 5, "service_desk": 3, "rooms": 3}
STEPS = {"sources": 80, "sources:no_audit": 80, "service_desk": 30, "rooms": 30}
RATES = {"service_desk": "3e-4", "rooms": "3e-4"}
"""Learning rates that are not the one of `LEARN`: at 6e-4 the first steps in `rooms` took away half
of what its start could do."""
OPTIMUM = {"sources": 0.85, "sources:no_audit": 0.85, "service_desk": 0.906, "rooms": 1.0}
"""Mean reward of the best policy that `EXPECTED.md` names."""
START = {"trainer.total_training_steps": "0", "sft.max_steps": "160", "sft.cooldown_steps": "40"}
"""What the run has that makes a start."""
LEARN = {
    "sft.max_steps": "0",
    "actor.optim.lr": "6e-4",
    "actor.optim.lr_scheduler_type": "linear",
    "actor.optim.warmup_steps": "0",
    "data.train_batch_size": "16",
    "data.train_tasks": "1280",
    "agent.num_chains": "8",
}
"""What all methods have: 16 tasks a step, each played 8 times. The rate is that of the sketch with
which `sources` was found, and was not tuned per method; it falls linearly, since a constant one let
the policy of one run in four lose its words."""
SHARED = {
    "agent.max_turns": "20",
    "agent.max_tokens_per_turn": "48",
    "trainer.threads": "1",
    "trainer.control": "none",
    "trainer.test_freq": "0",
    "trainer.save_freq": "20",
    "trainer.max_actor_ckpt_to_keep": "1",
    "trainer.test_tasks": "200",
    "trainer.skip_measurements": "[before/greedy,after/no_tools]",
}


@dataclass(frozen=True, slots=True)
class Run:
    """One training, in a folder of its own."""

    environment: str
    folder: Path
    command: list[str]


@dataclass(frozen=True, slots=True)
class Scores:
    """Test rewards and successes of a method, by seed and task."""

    rewards: dict[str, float]
    successes: dict[str, float]
    seeds: list[float]
    """Mean reward of each seed."""
    greedy: float
    """Mean reward of greedy replies after the training."""
    before: float
    """Mean reward before the training, over the seeds."""
    minutes: float
    """CPU minutes of a run, on average."""

    @property
    def tasks(self) -> list[str]:
        """Return the keys, whose first word is the seed."""
        return [*self.rewards]


def plan(root: Path, names: Sequence[str], seeds: int | None) -> Iterator[list[Run]]:
    """Yield runs that may be made at the same time: all starts, then all methods."""

    def run(name: str, label: str, keys: dict[str, str], seed: int) -> Run:
        folder = root / name.replace(":", "_") / label
        own = [f"{key}={value}" for key, value in (SHARED | keys).items()]
        words = ["train", "--environment", name, "--seed", str(seed), "--output", str(folder), *own]
        return Run(name, folder, [sys.executable, "-m", "tutelage", *words])

    yield [run(name, "start", START, 1000) for name in names]
    runs: list[Run] = []
    for name in names:
        model = root / name.replace(":", "_") / "start" / "policy"
        for seed in range(seeds or SEEDS[name]):
            for method in METHODS:
                keys = LEARN | {
                    "actor.optim.lr": RATES.get(name, LEARN["actor.optim.lr"]),
                    "model.path": str(model),
                    "algorithm.adv_estimator": method,
                    "trainer.total_training_steps": str(STEPS[name]),
                }
                runs.append(run(name, f"{method}-{seed}", keys, seed))
    yield runs


def make(run: Run) -> None:
    """Make a run, or go on with it, and write what it prints beside its folder."""
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    with run.folder.with_suffix(".log").open("a") as log:
        run_to_its_end(run.folder, run.command, log)
    print(f"{run.environment}: {run.folder.name} has finished", flush=True)


def read_scores(folders: Sequence[Path]) -> Scores:
    """Read the sampled test rollouts of one method's runs, a folder per seed."""
    rewards: dict[str, float] = {}
    successes: dict[str, float] = {}
    seeds: list[float] = []
    before: list[float] = []
    greedy: list[float] = []
    for seed, folder in enumerate(folders):
        run = RunFolder(folder)
        found = read_facts(run, find_kind(run)).measured
        start, end = (side.tasks for side in found["sampled"])
        greedy += [score.reward for score in found["greedy"][1].tasks.values()]
        for task, score in end.items():
            rewards[f"{seed} {task}"] = score.reward
            successes[f"{seed} {task}"] = score.exact or 0.0
        seeds.append(mean(score.reward for score in end.values()))
        before += [score.reward for score in start.values()]
    cpu = [(took(folder) or {"cpu_seconds": 0.0})["cpu_seconds"] for folder in folders]
    return Scores(rewards, successes, seeds, mean(greedy), mean(before), mean(cpu) / 60)


def difference(ours: dict[str, float], theirs: dict[str, float]) -> str:
    """Return ours minus theirs with its 95 % interval, paired by task."""
    tasks = [task for task in ours if task in theirs]
    rng = SeedTree(0).child("benchmarks", "environments").numpy()
    found = paired_bootstrap([theirs[t] for t in tasks], [ours[t] for t in tasks], rng)
    return f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


def section(root: Path, name: str, seeds: int) -> str:
    """Return the table of one environment."""
    place = root / name.replace(":", "_")
    scores = {m: read_scores([place / f"{m}-{s}" for s in range(seeds)]) for m in METHODS}
    first = scores[next(iter(METHODS))]
    rows: list[list[str]] = []
    for method, found in scores.items():
        wins, tasks = [value >= 0.5 for value in found.successes.values()], found.tasks
        low, high = rate_interval(wins, tasks)
        ends = mean_interval([*found.rewards.values()], tasks) or (0.0, 0.0)
        same = found is first
        rows.append(
            [
                METHODS[method],
                f"{mean(wins):.3f} [{low:.3f}, {high:.3f}]",
                f"**{mean(found.rewards.values()):.3f}** [{ends[0]:.3f}, {ends[1]:.3f}]",
                ", ".join(f"{value:.2f}" for value in found.seeds),
                f"{found.greedy:.3f}",
                "" if same else difference(first.rewards, found.rewards),
                "" if same else difference(first.successes, found.successes),
                f"{found.minutes:.1f}",
            ]
        )
    head = ["method", "success", "reward", "reward of each seed", "greedy"]
    head += ["GRPO's reward more", "GRPO's success more", "CPU minutes"]
    share = mean(first.rewards.values()) / OPTIMUM[name]
    return (
        f"## {name}\n\n{seeds} seeds, {STEPS[name]} steps. Reward of the start {first.before:.3f}, "
        f"best known {OPTIMUM[name]:.3f}; GRPO reaches {100 * share:.0f} % of it.\n\n"
        f"{table(head, rows)}\n"
    )


def page(root: Path, names: Sequence[str], seeds: int | None) -> str:
    """Return the results of all environments."""
    about = (
        "Steps of 16 tasks with 8 rollouts each, embedded policy, one thread; 200 held-out tasks "
        "a seed, sampled once at temperature 1, and greedy (mean reward). All methods of an "
        "environment begin with the same policy and play the same tasks, as often, with the same "
        "optimizer and learning rate; they "
        "differ in which rollouts they weigh, and how. Intervals are of 95 %, over the tasks of "
        "all seeds; differences are paired by task.\n\n"
        "`sources` was made to show where failure teaches: what weighs each rollout against its "
        "group's mean, which is GRPO and imitation above the mean alike, finds the register; "
        "imitation of the best keeps luck, and imitation of the right does not see costs. In "
        "`sources:no_audit`, where only the register is always right, imitation of right answers "
        "needs no costs.\n\n"
    )
    command = f"Command: `python -m benchmarks.environments FOLDER --only {' '.join(names)}`.\n"
    return about + "".join(section(root, n, seeds or SEEDS[n]) for n in names) + command


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.environments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="where the runs are kept")
    parser.add_argument("--only", nargs="+", choices=SEEDS, default=[*SEEDS], metavar="ENVIRONMENT")
    parser.add_argument("--seeds", type=int, help="fewer seeds than the table has")
    parser.add_argument("--results", type=Path, help="write the page there")
    parser.add_argument("--commands", action="store_true", help="print the commands, run nothing")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for runs in plan(options.folder, options.only, options.seeds):
        if options.commands:
            print(*(" ".join(run.command) for run in runs), sep="\n")
        else:
            with ThreadPoolExecutor(2) as two:
                list(two.map(make, runs))
    if options.commands:
        return
    text = page(options.folder, options.only, options.seeds)
    print(text)
    if options.results is not None:
        results(options.results, "Reinforcement learning and imitation in environments", text)


if __name__ == "__main__":
    main()
