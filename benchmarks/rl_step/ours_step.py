"""Our training job on one checkpoint and one task file, measured like `trl_step.py` measures TRL.

It runs the real job (`weights.jobs`, store, metrics and all), without checkpoints in between, and
takes the CPU seconds of the process around each step, evaluations left out. The record has the
same form as the baseline's; `compare.py` runs the two in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

JSON = dict[str, Any]


class Meter:
    """A `Progress` that reads the clocks at the end of each step."""

    def __init__(self, target: float) -> None:
        self.steps: list[JSON] = []
        self.reached: JSON | None = None
        self._target = target
        self._on = False
        self._cpu = self._wall = 0.0

    def start(self, title: str, lines: Mapping[str, str]) -> None:
        """Nothing to measure yet."""

    def phase(self, name: str, *, steps: int | None = None, seconds: float | None = None) -> None:
        """Steps count from here in the phase of reinforcement learning."""
        self._on = name == "reinforcement learning"
        self._reset()

    def step(self, done: int, values: Mapping[str, float]) -> None:
        """One step ended; a validation in it is taken out."""
        if not self._on:
            return
        self.steps.append(
            {
                "step": done,
                "cpu_s": time.process_time() - self._cpu - values.get("time/validate_cpu", 0.0),
                "wall_s": time.perf_counter() - self._wall - values.get("time/validate", 0.0),
                "sampled_tokens": values["rollout/tokens"] * 128,
                "reward": values["reward/mean"],
                "turns": values["rollout/turns"],
                "success": values.get("val/success_sampled"),
            }
        )
        success = values.get("val/success_sampled")
        if (
            self.reached is None
            and self._target
            and success is not None
            and success >= self._target
        ):
            self.reached = {
                "success": success,
                "steps": done,
                "cpu_s": sum(s["cpu_s"] for s in self.steps),
                "wall_s": sum(s["wall_s"] for s in self.steps),
            }
        self._reset()

    def evaluation(self, label: str, done: int, total: int) -> None:
        """Not measured."""

    def note(self, text: str) -> None:
        """Not measured."""

    def finish(self) -> None:
        """Not measured."""

    def _reset(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()


def summary(steps: list[JSON], skip: int) -> JSON:
    """Medians after the warm-up steps."""
    kept = steps[skip:] or steps
    cpu = [s["cpu_s"] for s in kept]
    return {
        "steps": len(kept),
        "cpu_s": statistics.median(cpu),
        "wall_s": statistics.median(s["wall_s"] for s in kept),
        "tokens_per_cpu_s": statistics.median(s["sampled_tokens"] / s["cpu_s"] for s in kept),
        "cpu_s_min": min(cpu),
        "cpu_s_max": max(cpu),
    }


def main(argv: Sequence[str] | None = None, meter_type: type[Meter] = Meter) -> Meter:
    """Measure, write the record to `--out`, and return the meter."""
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--model", required=True)
    p.add_argument("--tasks", required=True)
    p.add_argument("--eval-tasks", default="")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--lr", type=float, default=2e-4)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--skip", type=int, default=2)
    p.add_argument("--until-success", type=float, default=0.0)
    p.add_argument("--all-rollouts", action="store_true", help="train groups without variance too")
    p.add_argument("--out", default="")
    args = p.parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    from tutelage.policy import machine
    from tutelage.runs.folder import create
    from tutelage.weights import jobs
    from tutelage.weights.config import resolve

    keys = [
        f"model.path={args.model}",
        f"seed={args.seed}",
        f"data.train_files=[{args.tasks}]",
        f"data.val_files=[{args.eval_tasks or args.tasks}]",
        f"steps={args.steps}",
        f"actor.optim.lr={args.lr}",
        "actor.optim.lr_scheduler_type=constant",
        f"actor.skip_zero_variance={str(not args.all_rollouts).lower()}",
        f"model.dtype={'bfloat16' if args.dtype == 'bf16' else 'float32'}",
        f"rollout.correction={'token_tis' if args.dtype == 'bf16' else 'none'}",
        "reward=math",
        "agent.max_tokens_per_turn=40",
        "rollout.max_len=256",
        "tools=[calculator,sum_1_to_n,lookup]",
        f"trainer.threads={args.threads}",
        f"trainer.test_freq={1 if args.until_success else -1}",
        "trainer.save_freq=-1",
        "trainer.val_before_train=false",
        "trainer.control=false",
        "trainer.val_tasks=100",
        f"trainer.stop_at_success={args.until_success or 'null'}",
    ]
    folder = Path(tempfile.mkdtemp()) / "run"
    meter = meter_type(args.until_success)
    jobs.train(resolve("math", keys, machine=machine.detect_machine()), create(folder), meter)
    shutil.rmtree(folder.parent)
    result: JSON = {
        "system": "tutelage",
        "args": {**vars(args), "model": Path(args.model).name, "tasks": Path(args.tasks).name},
        "summary": summary(meter.steps, args.skip),
        "reached": meter.reached,
        "steps": meter.steps,
    }
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    sys.stdout.write(json.dumps({k: result[k] for k in ("system", "summary", "reached")}) + "\n")
    return meter


if __name__ == "__main__":
    main()
