"""Where the time of one of our steps goes, in float32 and bfloat16: what bounds `compare.py`.

    python benchmarks/rl_step/profile_step.py --model DIR --tasks train.jsonl

It runs the real job like `ours_step.py`, with a profiler on from the third step on, and adds up the
time spent in functions by kind. The profiler itself makes Python dearer than it is, so the shares
of plain Python are upper bounds. One thread.
"""

from __future__ import annotations

import argparse
import cProfile
from collections import defaultdict
from collections.abc import Mapping
from typing import cast

import ours_step

KINDS = {
    "matrix products": ("_linear_pointwise", "linear", "addmm", "built-in method torch.mm"),
    "attention products": ("bmm", "baddbmm"),
    "backward": ("run_backward",),
    "other tensor operations": ("torch",),
    "our Python: engine": ("tutelage/engine", "tutelage/policy/decoder"),
    "our Python: the rest": ("tutelage",),
    "store": ("sqlalchemy", "sqlite3", "fsync", "orjson"),
}
"""Kinds by parts of a function's name, the first that fits."""


def kind(name: str) -> str:
    """The kind of a profiled function."""
    return next((k for k, parts in KINDS.items() if any(p in name for p in parts)), "other Python")


class Profiled(ours_step.Meter):
    """Turns the profiler on after the warm-up steps."""

    def __init__(self, target: float) -> None:
        super().__init__(target)
        self.profiler = cProfile.Profile()

    def step(self, done: int, values: Mapping[str, float]) -> None:
        """As in `Meter`; the profile begins after two steps."""
        super().step(done, values)
        if self._on and len(self.steps) == 2:
            self.profiler.enable()

    def finish(self) -> None:
        """The phases that follow are not measured."""
        self.profiler.disable()


def main() -> None:
    """Print a table for each number format."""
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--model", required=True)
    p.add_argument("--tasks", required=True)
    p.add_argument("--steps", type=int, default=12)
    args = p.parse_args()
    for dtype in ("fp32", "bf16"):
        flags = ["--model", args.model, "--tasks", args.tasks, "--steps", str(args.steps)]
        meter = cast("Profiled", ours_step.main([*flags, "--dtype", dtype], Profiled))
        seconds: dict[str, float] = defaultdict(float)
        for entry in meter.profiler.getstats():
            code = entry.code
            name = code if isinstance(code, str) else f"{code.co_filename}:{code.co_name}"
            seconds[kind(name)] += entry.inlinetime
        total = sum(seconds.values())
        print(f"{dtype}: {total / (args.steps - 2):.3f} s a step under the profiler")
        for name, value in sorted(seconds.items(), key=lambda item: -item[1]):
            print(f"  {name:28s} {100 * value / total:5.1f} %")


if __name__ == "__main__":
    main()
