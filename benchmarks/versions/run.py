"""Two versions of Tutelage against each other: the training step and the engine, in one run.

    python -m benchmarks.versions.run OLD NEW    # two checkouts, each with its own .venv

Each checkout runs its own `benchmarks/train_step` and `benchmarks/engine` in a process of its own,
on one thread. The two take turns at the same work, and the one that begins changes each round, so
that a drift of the machine falls on both. The losses of all steps are compared bit by bit.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tutelage.policy.model import Policy

SIZES, ROWS, ROUNDS = ("xs", "s"), 128, 9
Work = Callable[[], tuple[int, float]]
"""Does the work once: how many tokens it was, and the loss, which is 0 where nothing is trained."""


def works() -> dict[str, Work]:
    """What is measured, by its name; made in the process of one checkout."""
    import torch
    from benchmarks.engine.run import Ours as Engine
    from benchmarks.engine.run import make_policy
    from benchmarks.train_step.run import Ours as Trained
    from benchmarks.train_step.run import make_rows

    torch.set_num_threads(1)
    rng = random.Random(1)
    lengths = [rng.randrange(8, 97) for _ in range(ROWS)]

    def train(trained: Trained, grouped: bool, policy: Policy) -> Work:
        rows = make_rows(policy, grouped)
        tokens = sum(sum(row.mask) for row in rows)
        return lambda: (tokens, trained.step(rows))

    def sample(engine: Engine, prompts: list[tuple[int, ...]]) -> Work:
        return lambda: (engine.ragged(prompts, lengths), 0.0)

    made: dict[str, Work] = {}
    for size in SIZES:
        policy, draw = make_policy(size)
        different, groups = draw(ROWS), [prompt for prompt in draw(ROWS // 8) for _ in range(8)]
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            trained, engine = Trained(policy, dtype), Engine(policy, dtype)
            for kind, prompts in (("all different", different), ("groups of 8", groups)):
                made[f"training step, {size} {name}, {kind}"] = train(
                    trained, prompts is groups, policy
                )
                made[f"sampling, {size} {name}, {kind}"] = sample(engine, prompts)
    return made


def serve() -> None:
    """Do what is named on standard input; answer with tokens, CPU seconds and the loss."""
    todo = works()
    print(*todo, sep="\t", flush=True)
    for line in sys.stdin:
        start = time.process_time()
        tokens, loss = todo[line.strip()]()
        print(tokens, time.process_time() - start, repr(loss), sep="\t", flush=True)


def begin(checkout: Path) -> subprocess.Popen[str]:
    """The process of one checkout, run by its own interpreter on its own code."""
    paths = os.pathsep.join((str(checkout / "src"), str(checkout)))
    return subprocess.Popen(
        [str(checkout / ".venv/bin/python"), str(Path(__file__).resolve()), "--serve"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(process: subprocess.Popen[str], name: str = "") -> list[str]:
    """What a process says next, after it was told a name."""
    assert process.stdin is not None
    assert process.stdout is not None
    if name:
        process.stdin.write(f"{name}\n")
        process.stdin.flush()
    return process.stdout.readline().rstrip("\n").split("\t")


def compare(old: Path, new: Path) -> None:
    """Print a table as it is measured."""
    processes = (begin(old), begin(new))
    names = answer(processes[0])
    assert names == answer(processes[1]), "the checkouts measure different things"
    print("| work | old, tokens per CPU second | new | new / old | equal losses |")
    print("| --- | --- | --- | --- | --- |")
    for name in names:
        rates: tuple[list[float], list[float]] = ([], [])
        losses: tuple[list[str], list[str]] = ([], [])
        for turn in range(ROUNDS + 1):
            for which in ((0, 1), (1, 0))[turn % 2]:
                tokens, seconds, loss = answer(processes[which], name)
                losses[which].append(loss)
                if turn:
                    rates[which].append(float(tokens) / float(seconds))
        before, after = map(statistics.median, rates)
        same = "yes" if losses[0] == losses[1] else "NO"
        print(
            f"| {name} | {before:,.0f} | {after:,.0f} | {after / before:.2f} | {same} |", flush=True
        )
    for process in processes:
        process.terminate()


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve()
    else:
        parser = argparse.ArgumentParser(
            description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("old", type=Path)
        parser.add_argument("new", type=Path)
        arguments = parser.parse_args()
        compare(arguments.old, arguments.new)
