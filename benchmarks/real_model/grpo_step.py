"""A GRPO step of word problems with the real model, beside TRL 1.16 on the same work.

    python -m benchmarks.real_model.others FOLDER cold      # once: the start, which calls tools
    python -m benchmarks.real_model.grpo_step --model FOLDER/cold/policy --trl-python ENV/bin/python

ENV is an environment with the project and `pip install 'trl==1.16.*' datasets`. Both play the same
tasks in the same order, 8 tasks x 8 rollouts a step: the same policy folder, chat template (prompts
are compared token for token), tools (`calculator`, `lookup`), 48 tokens a turn, at most two turns
with tools and one more for the answer, AdamW at a rate at which the policy stays where it is, as
many threads. Ours is the public command `tutelage train word-problems`, TRL's is
`GRPOTrainer(tools=..., environment_factory=...)` (`trl_grpo.py`). The kinds run in turn, round by
round, each in a fresh process whose first step is left out.

*Ours* has float32 weights and computes in bfloat16, and trains no group whose rewards are all
equal; *ours, all rollouts* trains these too, as TRL does. *TRL, pure* has weights and optimizer in
bfloat16, where TRL is fastest; *TRL, autocast* computes as ours does. A step is the time between
the ends of two, whatever is done in it: the machine has to be quiet.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.measure import machine, table

from tutelage.runs.folder import RunFolder
from tutelage.tasks.arithmetic import Split
from tutelage.tasks.word_problems import make_word_problems

RATE = 1e-7
OURS = {"ours": "true", "ours, all rollouts": "false"}
"""The value of `actor.skip_zero_variance`."""
TRL = {"TRL, pure": "pure", "TRL, autocast": "autocast"}
INSTALL = "TRL is not there; type: {} -m pip install 'trl==1.16.*' datasets"


@dataclass(frozen=True, slots=True)
class Step:
    """What a step took, in seconds, and what was done in it."""

    seconds: float
    generation: float
    """Sampling and tools."""
    update: float
    """All the rest."""
    tokens: float
    """Sampled, of all rollouts."""
    turns: float
    """Of a rollout, on average."""
    reward: float
    rows: float
    """Rollouts that were trained."""


def write_tasks(folder: Path, count: int) -> dict[str, Path]:
    """Files of tasks by split."""
    files: dict[str, Path] = {}
    counts: dict[Split, int] = {"train": count, "val": 1, "test": 1}
    for split, number in counts.items():
        tasks = make_word_problems(split, number, 0)
        lines = ({k: v for k, v in task.fields.items() if k != "calls"} for task in tasks)
        files[split] = folder / f"{split}.jsonl"
        files[split].write_text("".join(json.dumps(line) + "\n" for line in lines))
    return files


def ours(kind: str, args: argparse.Namespace, files: dict[str, Path], folder: Path) -> list[Step]:
    """Steps of our job."""
    keys = f"""data.train_batch_size={args.prompts} agent.num_chains={args.group}
        agent.max_turns={args.max_turns} agent.max_tokens_per_turn={args.max_tokens}
        rollout.temperature={args.temperature} actor.optim.lr={RATE} actor.optim.warmup_steps=0
        actor.optim.lr_scheduler_type=constant reward_model.tool_error_penalty=0
        actor.skip_zero_variance={OURS[kind]} trainer.threads={args.threads} trainer.test_freq=-1
        trainer.save_freq=-1 trainer.val_before_train=false {args.keys}"""
    command = [sys.executable, "-m", "tutelage", "train", "word-problems", "--algorithm", "grpo"]
    command += ["--model", args.model, "--steps", str(args.steps), "--output", str(folder)]
    command += [word for split, file in files.items() for word in (f"--{split}", str(file))]
    run([*command, *keys.split()], args.threads)
    lines = [line for line in RunFolder(folder).read_metrics() if line["phase"] == "rl"]
    rollouts, skipped = args.prompts * args.group, kind == "ours"
    before, steps = 0.0, list[Step]()
    for line in lines:
        seconds = line["time/elapsed"] - before
        before = line["time/elapsed"]
        flat = line["group/zero_variance"] if skipped else 0.0
        steps.append(
            Step(
                seconds,
                line["time/rollout"],
                seconds - line["time/rollout"],
                line["rollout/tokens"] * rollouts,
                line["rollout/turns"],
                line["reward/mean"],
                rollouts * (1 - flat),
            )
        )
    return steps


def trl(kind: str, args: argparse.Namespace, files: dict[str, Path], folder: Path) -> list[Step]:
    """Steps of TRL."""
    folder.mkdir()
    out = folder / "steps.jsonl"
    options: dict[str, Any] = {
        "model": args.model, "tasks": files["train"], "out": out, "lr": RATE, "seed": 0,
        "bf16-mode": TRL[kind], "attention": args.attention, "cache": args.cache,
        "micro-batch": args.micro_batch,
    }  # fmt: skip
    for name in ("prompts", "group", "max_turns", "max_tokens", "temperature", "steps", "threads"):
        options[name.replace("_", "-")] = getattr(args, name)
    command = [args.trl_python, "-m", "benchmarks.real_model.trl_grpo"]
    run([*command, *(f"--{name}={value}" for name, value in options.items())], args.threads)
    return [Step(**json.loads(line)) for line in out.read_text().splitlines()]


def run(command: list[str], threads: int) -> None:
    """A process of its own with so many threads; what it prints goes to standard error."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if status := subprocess.call(command, stdout=sys.stderr):
        raise SystemExit(f"{' '.join(command)} ended with {status}")


def medians(steps: list[Step]) -> list[float]:
    """The median of each field."""
    return [statistics.median(getattr(step, f.name) for step in steps) for f in fields(Step)]


def parse_args() -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--model", required=True, help="the folder of a policy that calls tools")
    p.add_argument("--trl-python", default=sys.executable, help="python of an environment with TRL")
    p.add_argument("--kinds", nargs="+", default=[*OURS, *TRL], choices=[*OURS, *TRL])
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--steps", type=int, default=4, help="in a round; the first is left out")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--prompts", type=int, default=8)
    p.add_argument("--group", type=int, default=8)
    p.add_argument("--max-turns", type=int, default=3)
    p.add_argument("--max-tokens", type=int, default=48, help="of a turn")
    p.add_argument("--temperature", type=float, default=1.0)
    p.add_argument("--keys", default="", help="further KEY=VALUE of ours, in one word")
    p.add_argument("--micro-batch", type=int, default=8, help="rows of TRL's forward pass")
    p.add_argument("--attention", default="sdpa", choices=["eager", "sdpa"], help="TRL's")
    p.add_argument("--cache", default="", help="TRL's cache_implementation, such as static")
    args = p.parse_args()
    if args.steps < 2:
        p.error("--steps 2 at least: the first one is left out")
    return args


def main() -> None:
    """Measure all kinds in turn and print the tables."""
    args = parse_args()
    args.model = str(Path(args.model).resolve())
    wanted = [args.trl_python, "-c", "import trl, datasets"]
    if {*args.kinds} & {*TRL} and subprocess.call(wanted, stderr=subprocess.DEVNULL):
        raise SystemExit(INSTALL.format(args.trl_python))
    found: dict[str, list[Step]] = {kind: [] for kind in args.kinds}
    with tempfile.TemporaryDirectory() as place:
        files = write_tasks(Path(place), args.prompts * args.steps)
        for round_ in range(args.rounds):
            for kind in args.kinds:
                folder = Path(place) / f"{kind.replace(', ', '-').replace(' ', '-')}-{round_}"
                steps = (ours if kind in OURS else trl)(kind, args, files, folder)
                found[kind] += steps[1:]
                for step in steps:
                    print(kind, *(f"{getattr(step, f.name):.4g}" for f in fields(Step)), flush=True)
    print(f"\n{machine()}, {args.threads} threads\n")
    middle = {kind: medians(steps) for kind, steps in found.items()}
    best = min((values[0] for kind, values in middle.items() if kind in TRL), default=None)
    rows = [
        [kind, *(f"{value:.4g}" for value in values), f"{values[0] / best:.2f}" if best else "-"]
        for kind, values in middle.items()
    ]
    print(table(["medians", *(f.name for f in fields(Step)), "of the fastest TRL"], rows))


if __name__ == "__main__":
    main()
