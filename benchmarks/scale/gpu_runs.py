"""Trainings through the command line on a machine with a GPU, and how they end.

    python -m benchmarks.scale.gpu_runs FOLDER [--only math resume ...] [--minutes 5]

Each part starts `tutelage` in processes of its own, writes their runs and output into FOLDER, and
prints a line: seconds, held-out success before and after, the most memory that the GPU had in use,
and what it compares. `gpu_checks.py` has the parts that need no run; `RESULTS.md` the figures.

*repeats*: two runs of one seed; their policies' hashes. *resume*: the same run, ended by SIGKILL
after its second step and resumed. *torchrun*: the same run as a launcher's one rank. *three*,
*lora*, *ppo*: three steps of SmolLM2-135M, with adapters, and with a critic. *math*: the embedded
job as it is. *words*: the main job, SmolLM2-135M on word problems.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import machine

SHORT = (
    "math", "--steps", "6", "sft.max_steps=40", "trainer.control=false", "trainer.test_tasks=32",
    "trainer.val_tasks=8", "trainer.save_freq=2",
)  # fmt: skip
"""A run of every phase, in less than a minute."""
THREE = (
    "word-problems", "--steps", "3", "sft.max_steps=8", "sft.cooldown_steps=8",
    "trainer.test_tasks=16",
)  # fmt: skip
POLL = 0.2


class Jobs:
    """Runs in one folder, one after the other."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self.device = folder, device
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, words: Sequence[str], launcher: Sequence[str] = ()) -> Any:
        """A process of `tutelage`, whose output goes beside its run."""
        command = [sys.executable, "-m", *launcher, "tutelage", *words]
        output = (self.folder / f"{name}.txt").open("ab")
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def train(self, name: str, words: Sequence[str], launcher: Sequence[str] = ()) -> str:
        """Train to the end; what came of it."""
        words = ["train", *words, "--output", str(self.folder / name)]
        words.append(f"trainer.device={self.device}")
        start, most = time.perf_counter(), [0]
        process = self.start(name, words, launcher)
        ended = threading.Event()
        watch = threading.Thread(target=_watch_memory, args=(most, ended))
        watch.start()
        status = process.wait()
        seconds = time.perf_counter() - start
        ended.set()
        watch.join()
        return f"status {status}, {seconds:.1f} s, {most[0]} MiB, {self.found(name)}"

    def killed(self, name: str, words: Sequence[str]) -> str:
        """Train, kill after the second step is written, resume."""
        run = self.folder / name
        words = ["train", *words, "--output", str(run), f"trainer.device={self.device}"]
        process, metrics = self.start(name, words), run / "metrics.jsonl"
        while process.poll() is None and not _steps(metrics) >= 2:
            time.sleep(POLL / 20)
        process.send_signal(signal.SIGKILL)
        process.wait()
        at = _steps(metrics)
        status = self.start(name, ["resume", str(run)]).wait()
        return f"killed after step {at}, resumed with status {status}, {self.found(name)}"

    def found(self, name: str) -> str:
        """A run's result in words."""
        path = self.folder / name / "result.json"
        if not path.is_file():
            return "no result"
        result: dict[str, Any] = json.loads(path.read_text())
        keys = [k for k in ("sampled", "greedy") if f"success_after_{k}" in result]
        gains = [
            f"{k} {result[f'success_before_{k}']:.3f} to {result[f'success_after_{k}']:.3f}"
            for k in keys
        ]
        steps = f"{result.get('rl_steps')} steps in {result['phases'].get('rl', 0):.1f} s"
        words = [result["status"], steps, *gains, f"max_dlogp {result.get('max_dlogp')}"]
        return ", ".join([*words, f"policy {self.hash(name)}"])

    def hash(self, name: str) -> str:
        """The beginning of a policy's hash."""
        path = self.folder / name / "policy" / "model.safetensors"
        if not path.is_file():
            path = self.folder / name / "policy" / "adapter_model.safetensors"
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else "none"


def _steps(metrics: Path) -> int:
    """Steps of reinforcement learning in a run's metrics."""
    if not metrics.is_file():
        return 0
    lines = [json.loads(x) for x in metrics.read_text().splitlines() if x.endswith("}")]
    return sum(line.get("phase") == "rl" for line in lines)


def _watch_memory(most: list[int], ended: threading.Event) -> None:
    """The most MiB that the GPU has in use, which `nvidia-smi` tells."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    while not ended.wait(POLL):
        try:
            told = subprocess.run(query, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return
        most[0] = max(most[0], *(int(x) for x in told.split()))


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda", help="cpu plays the short parts on a CPU")
    parser.add_argument("--minutes", type=float, default=60, help="for each of the long parts")
    parser.add_argument("--only", nargs="+")
    asked = parser.parse_args()
    jobs, limit = Jobs(asked.folder, asked.device), ("--minutes", str(asked.minutes))
    rank = ("torch.distributed.run", "--standalone", "--nproc-per-node=1", "-m")
    ppo = ("algorithm.adv_estimator=gae",)
    parts: dict[str, Callable[[], str]] = {
        "repeats": lambda: "; ".join(jobs.train(f"repeats-{i}", SHORT) for i in range(2)),
        "three": lambda: jobs.train("three", THREE),
        "resume": lambda: jobs.killed("resume", SHORT),
        "torchrun": lambda: jobs.train("torchrun", SHORT, rank),
        "lora": lambda: jobs.train("lora", (*THREE, "model.lora.rank=8")),
        "ppo": lambda: jobs.train("ppo", (*THREE, *ppo)),
        "math": lambda: jobs.train("math", ("math", *limit)),
        "words": lambda: jobs.train("words", ("word-problems", *limit)),
    }
    print(machine(), "load", *(f"{x:.1f}" for x in os.getloadavg()), flush=True)
    for name in asked.only or parts:
        print(f"{name}: {parts[name]()}", flush=True)


if __name__ == "__main__":
    main()
