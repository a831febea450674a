"""Hash what short runs of each kind end with, and compare with the committed hashes.

    python -m benchmarks.house.nets [--write] [NAME ...]    # under 3 minutes on warm caches

Trains the math job on seeds 0 to 2 with the cold start cut short, the word problems on two layers
of the real model, searches a prompt over a scripted endpoint and trains a small planner: each
through the public command, in a process of its own with one thread, two at a time. A hash covers
the bytes of the trained policy or planner, or the search's lineage without times. `nets.json` has
the hashes of one processor; bits differ between processors, so compare on one machine. Exits 1
where a hash differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from zipfile import ZipFile

ROOT = Path(__file__).parents[2]
COMMITTED = Path(__file__).with_name("nets.json")
SHORT = (
    *("sft.max_steps=60", "sft.eval_every=60", "sft.cooldown_steps=10", "sft.mixed_steps=10"),
    *("trainer.val_tasks=8", "trainer.test_tasks=8", "trainer.test_freq=-1"),
    *("data.train_batch_size=8", "trainer.control=false"),
)
JOBS: dict[str, list[str]] = {
    **{
        f"math, seed {seed}": [
            *("train", "math", "--steps", "5", "--seed", str(seed)), *SHORT
        ]
        for seed in range(3)
    },
    "word problems, two layers": [
        *("train", "word-problems", "--steps", "3", "--model", "CUT", "sft.max_steps=4"),
        *("--algorithm", "advantage_filtered", "actor.optim.warmup_steps=8"),
        *("sft.cooldown_steps=2", "trainer.val_tasks=10", "trainer.test_tasks=10"),
        *("data.train_batch_size=8", "trainer.save_freq=-1"),
    ],
    "prompt search": [
        *("train", "math", "--algorithm", "reflect", "--iterations", "3", "--train-size", "5"),
        *("--seed", "0"),
    ],
    "planner": [
        *("train", "planner", "--phase", "1", "--seed", "0", "phase1_supervised.num_epochs=1"),
        "phase1_supervised.train_data_size=200",
    ],
}  # fmt: skip


def run(words: list[str], output: Path, environment: dict[str, str]) -> None:
    """Run a command to its end; its exit code is 0, or 3 for a search without evidence."""
    command = [str(Path(sys.executable).parent / "tutelage"), *words, "--output", str(output)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 3):
        raise RuntimeError(f"{command} ended with {ended.returncode}:\n{ended.stderr[-2000:]}")


def lineage(file: Path) -> bytes:
    """Return the candidates of a search with their prompts and scores, without times."""
    kept: list[Any] = []
    for line in file.read_text(encoding="utf-8").split("\n"):
        if line:
            row = json.loads(line)
            kept.append({k: v for k, v in row.items() if not k.endswith(("seconds", "time"))})
    return json.dumps(kept, sort_keys=True).encode()


def tensors(file: Path) -> bytes:
    """Return the tensors of a file that `torch.save` wrote, in their order."""
    with ZipFile(file) as parts:
        return b"".join(parts.read(name) for name in parts.namelist() if "/data/" in name)


def digest(output: Path) -> str:
    """Hash the weights in a run's folder, or the lineage of a search."""
    data = [file.read_bytes() for file in sorted(output.glob("policy/*.safetensors"))]
    data += [tensors(file) for file in output.glob("checkpoints/phase1_best.pth")]
    data = data or [lineage(output / "lineage.jsonl")]
    return hashlib.blake2b(b"".join(data), digest_size=8).hexdigest()


def main() -> int:
    write = "--write" in sys.argv
    chosen = [word for word in sys.argv[1:] if word != "--write"] or list(JOBS)
    committed = json.loads(COMMITTED.read_text(encoding="utf-8")) if COMMITTED.exists() else {}
    cut = subprocess.check_output([sys.executable, "-m", "tests.real_model"], text=True, cwd=ROOT)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    search = [sys.executable, "-m", "benchmarks.prompt.server", "--world", "math", "--port", "0"]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(search, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        assert server.stdout is not None
        endpoint = {
            "OPENAI_BASE_URL": server.stdout.readline().split()[-1],
            "OPENAI_API_KEY": "none",
        }

        def made(name: str) -> str:
            began, output = time.monotonic(), Path(folder) / name.replace(" ", "-")
            words = [cut.strip() if word == "CUT" else word for word in JOBS[name]]
            run(words, output, environment | (endpoint if name == "prompt search" else {}))
            hashed = digest(output)
            same = "same" if hashed == committed.get(name) else "new"
            print(f"{name:26} {hashed}  {same}  {time.monotonic() - began:.0f} s", flush=True)
            return hashed

        try:
            hashes = dict(zip(chosen, pool.map(made, chosen), strict=True))
        finally:
            server.terminate()
    changed = {name for name, hashed in hashes.items() if hashed != committed.get(name)}
    if write:
        COMMITTED.write_text(json.dumps(committed | hashes, indent=1) + "\n", encoding="utf-8")
    return int(bool(changed) and not write)


if __name__ == "__main__":
    sys.exit(main())
