"""Asynchronous training against step by step: rollouts a second, and what is learned of them.

    python -m benchmarks.scale.asynchronous rate [--seeds 3]
    python -m benchmarks.scale.asynchronous curve [--seeds 3] [--first 0] [--updates 1]

`rate` trains in the simulated environment of `slow_environment.py`, on a clock that jumps: its
seconds are the processor's and those of waits, over which it jumps where nothing else can be done.
So nobody waits, and who else is at work changes little. What counts is trained rollouts by the
seconds of the training steps. `curve` trains the embedded job from one cold start, as
`benchmarks.estimators` does, with the same number of rollouts, and validates on the way. It makes
one update a batch, as `tutelage train math` does, unless `--updates` says more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import selectors
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.estimators.run import SHARED, Settings, cold_start, train
from benchmarks.measure import machine, table
from benchmarks.scale.slow_environment import CHAINS, SEEDS, STEPS, TASKS

from tutelage.policy.machine import detect_machine
from tutelage.runs import lifecycle
from tutelage.runs.folder import RunFolder, create
from tutelage.runs.progress import Progress
from tutelage.statistics.intervals import student_quantile, wilson
from tutelage.weights.config import resolve
from tutelage.weights.kinds import make_job

THRESHOLDS = (0, 2)
KEY = "async_training.staleness_threshold"
ENVIRONMENT = Path(__file__).with_name("slow_environment.py")
SLOW: dict[str, object] = {
    "agent.agent_type": f"{ENVIRONMENT}:SlowEnvironmentAgent",
    "agent.reward_name": f"{ENVIRONMENT}:reward",
    "agent.tools": "[]",
    "agent.max_tokens_per_turn": 16,
    "agent.max_turns": 2,
    "agent.num_chains": CHAINS,
    "data.train_batch_size": TASKS,
    "sft.max_steps": 0,
    "trainer.total_training_steps": STEPS,
    "trainer.val_before_train": "false",
    "trainer.val_tasks": 1,
    "trainer.test_freq": -1,
    "trainer.save_freq": -1,
    "trainer.control": "false",
    "trainer.threads": 1,
    "trainer.logger": "[jsonl]",
}
EVERY = 10
"""Steps between validations of the curve."""
BATCH = 128
"""Rollouts a step of the curve: 16 tasks, 8 each."""


def lines(folder: RunFolder) -> list[dict[str, Any]]:
    """The metrics of the training steps."""
    return [line for line in folder.read_metrics() if line["phase"] == "rl"]


class _Jumping(selectors.DefaultSelector):
    """A selector that notes how long it would wait for a timer, and does not."""

    def __init__(self) -> None:
        super().__init__()
        self.jumped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready; it waits for other threads alone."""
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None or any(t.name == "tutelage-call" for t in threading.enumerate()):
            return super().select(0.001)
        self.jumped += timeout
        return ready


class _JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop on the clock that the module's docstring describes."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds of the processor, and of the waits."""
        return time.process_time() + self._jumping.jumped


class _Stopwatch(Progress):
    """When training began, and when its last step was done."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self.first, self.last = loop, 0.0, 0.0

    def phase(self, name: str, *, steps: int | None = None, seconds: float | None = None) -> None:
        """A phase begins."""
        if name == "reinforcement learning":
            self.first = self._loop.time()

    def step(self, done: int, values: Mapping[str, float]) -> None:
        """A step is done."""
        if "loss/policy" in values:
            self.last = self._loop.time()


def play(threshold: int, seed: int, root: Path) -> dict[str, float]:
    """One run in the slow environment; both thresholds have the same folder name, and so the same
    waits."""
    keys = SLOW | {KEY: threshold, "seed": seed}
    overrides = [f"{key}={value}" for key, value in keys.items()]
    folder = create(root / str(threshold) / f"seed{seed}")
    work = make_job(resolve("math", overrides, machine=detect_machine()))
    loop = _JumpingLoop()
    work.loop = asyncio.Runner(loop_factory=lambda: loop)
    stopwatch = _Stopwatch(loop)
    result = lifecycle.start(work, folder, stopwatch)
    steps, seconds = lines(folder), stopwatch.last - stopwatch.first
    return {
        "threshold": threshold,
        "seed": seed,
        "seconds": seconds,
        "wall": sum(line["time/rollout"] + line["time/update"] for line in steps),
        "rate": len(steps) * TASKS * CHAINS / seconds,
        "dropped": result.get("dropped_groups", 0),
        "behind": statistics.mean(line.get("staleness/mean", 0.0) for line in steps),
        "oldest": max(line.get("staleness/max", 0.0) for line in steps),
        "gap": max(line.get("max_dlogp", 0.0) for line in steps),
    }


def rate(root: Path, seeds: int) -> str:
    """The table of the rates."""
    found: list[dict[str, float]] = []
    for seed in SEEDS[:seeds]:
        for threshold in THRESHOLDS:
            found.append(play(threshold, seed, root))
            print(json.dumps(found[-1]), flush=True)
    rows: list[list[str]] = []
    for seed in SEEDS[:seeds]:
        of = {run["threshold"]: run for run in found if run["seed"] == seed}
        sync, ahead = (of[threshold] for threshold in THRESHOLDS)
        rows.append(
            [
                str(seed),
                *(f"{run['rate']:.2f} ({run['seconds']:.0f} s)" for run in (sync, ahead)),
                f"{ahead['rate'] / sync['rate']:.2f}",
                f"{ahead['dropped']}",
                f"{ahead['behind']:.2f}, {ahead['oldest']:.0f}",
                f"{max(sync['gap'], ahead['gap']):.1e}",
            ]
        )
    head = ["seed", *(f"rollouts/s, threshold {t}" for t in THRESHOLDS), "times"]
    return table([*head, "groups dropped", "versions behind, mean and most", "max_dlogp"], rows)


def curve(root: Path, seeds: int, first: int, updates: int) -> str:
    """The table of validations on the way: pooled over the seeds with Wilson's interval, and the
    difference by seeds."""
    settings = Settings(seeds=seeds)
    start = cold_start(root, settings)
    found: dict[int, list[dict[int, float]]] = {threshold: [] for threshold in THRESHOLDS}
    behind: list[float] = []
    rollouts = BATCH // updates
    for seed in range(first, first + seeds):
        for threshold in THRESHOLDS:
            keys = SHARED | {
                "model.path": start,
                "trainer.total_training_steps": settings.steps,
                "trainer.val_tasks": settings.test_tasks,
                "trainer.test_tasks": 1,
                "trainer.val_before_train": "false",
                "trainer.test_freq": EVERY,
                "seed": 100 + seed,
                "actor.ppo_mini_batch_size": rollouts,
                KEY: threshold,
            }  # fmt: skip
            folder, _ = train(root / f"{threshold}-{seed}", keys)
            steps = lines(folder)
            name = "val/success_sampled"
            validated = {line["step"]: line[name] for line in steps if name in line}
            found[threshold].append(validated)
            behind += [x.get("staleness/mean", 0.0) for x in steps if threshold]
            print(threshold, seed, json.dumps(validated), flush=True)
    rows = [
        [
            str(step),
            *(pooled([run[step] for run in found[t]], settings.test_tasks) for t in THRESHOLDS),
            difference(*([run[step] for run in found[t]] for t in THRESHOLDS)),
        ]
        for step in range(EVERY, settings.steps + 1, EVERY)
    ]
    head = ["step", *(f"threshold {threshold}" for threshold in THRESHOLDS), "difference"]
    text = table(head, rows)
    return f"{text}\nVersions behind, on average: {statistics.mean(behind):.2f}.\n"


def pooled(shares: Sequence[float], tasks: int) -> str:
    """Success of all seeds together."""
    solved, total = round(sum(shares) * tasks), len(shares) * tasks
    low, high = wilson(solved, total)
    return f"{100 * solved / total:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def difference(before: Sequence[float], after: Sequence[float]) -> str:
    """Points by which `after` is above `before`, seed by seed, with Student's interval of 95 %."""
    by_seed = [100 * (b - a) for a, b in zip(before, after, strict=True)]
    mean = statistics.mean(by_seed)
    if len(by_seed) < 2:
        return f"{mean:+.1f}"
    half = student_quantile(len(by_seed) - 1) * statistics.stdev(by_seed) / len(by_seed) ** 0.5
    return f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["rate", "curve"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed of the curve")
    parser.add_argument("--updates", type=int, default=1, help="optimizer steps a batch")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as root:
        if given.what == "rate":
            text = rate(Path(root), given.seeds)
        else:
            text = curve(Path(root), given.seeds, given.first, given.updates)
    print(f"{machine()}; load {load:.0f} before, {os.getloadavg()[0]:.0f} after\n\n{text}")


if __name__ == "__main__":
    main()
