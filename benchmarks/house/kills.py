"""Kill each kind of run at 20 seeded moments, resume it, and compare it with a whole one.

    python -m benchmarks.house.kills [KIND ...] [--moments 20] [--seed 0]

Every run is the public command in a process of its own, ended by SIGKILL after a seeded share of
the time that the whole run takes, and continued by `tutelage resume` (by the same command where the
kill came before there was a run folder). Compared are the files of the run folder but for
clock readings: results, metrics, events, all rollouts and training rows of the store, weights of
policies and planners, checkpoints, and a search's lineage.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from benchmarks.measure import machine, table

from tutelage.runs.folder import RunFolder, is_wall_clock
from tutelage.store import open_store

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))  # as pytest does

SMALL = (
    *("trainer.val_tasks=4", "trainer.test_tasks=8", "data.train_batch_size=3"),
    *("agent.num_chains=4", "trainer.save_freq=2", "trainer.test_freq=2", "trainer.control=none"),
    "trainer.stop_at_success=null",
)
KINDS: dict[str, list[str]] = {
    "weights": ["train", "math", "--steps", "4", "--seed", "3", *SMALL],
    "environment": [
        *("train", "--environment", "rooms", "--model", "MODEL", "--steps", "4", "--seed", "3"),
        *(*SMALL, "sft.max_steps=0", "agent.max_turns=6", "data.train_tasks=16"),
    ],
    "supervised": [
        *("train", "math", "--algorithm", "sft", "--seed", "3", "sft.max_steps=12"),
        *("trainer.test_tasks=8", "trainer.val_tasks=4"),
    ],
    "prompt": [
        *("train", "math", "--algorithm", "screen", "--model", "MODEL", "--rollouts", "60"),
        *("--train-size", "6", "--val-size", "6", "--test-size", "20", "--seed", "0"),
    ],
    "planner": [
        *("train", "planner", "--phase", "1", "--seed", "0", "phase1_supervised.num_epochs=3"),
        "phase1_supervised.train_data_size=60",
    ],
    "evaluation": ["eval", "MODEL", "--test", "tasks.jsonl", "--samples", "4", "--reward", "math"],
    "execution": [
        *("orchestrate", "run", "--plan", "plan.json", "--workers", "workers.json"),
        *("--seed", "1"),
    ],
}
LEFT_OUT = {
    "execution": ("/store", "/result.json[0]/cost"),
    "prompt": ("/result.json[0]/warnings", "/result.json[0]/health"),
}
"""What may differ: a call of an execution that was in flight is drawn and paid for again, and the
health of a search is that of the rollouts which its last process played."""
PLAN = {
    "instruction": "Say it",
    "nodes": [{"tool": "write_article"}, {"tool": "read_aloud", "arguments": {"text": "<node-0>"}}],
}
WORKERS = [
    {"name": name, "price_in": 1.0, "price_out": 1.0, "latency": 1.0, "skills": {"*": share}}
    for name, share in (("unsure", 0.5), ("sure", 1.0))
]


CLOCKS = ("seconds", "started", "time", "created", "updated", "wall", "phases", "latency_ms", "at")
"""Names of clock readings, beside those of metrics."""


def without_clock(value: Any) -> Any:
    """Return a JSON value without what a clock said."""
    if isinstance(value, dict):
        names = [n for n in value if not is_wall_clock(n) and n not in CLOCKS]
        return {n: without_clock(value[n]) for n in names if not n.endswith(("_seconds", "_at"))}
    return [without_clock(each) for each in value] if isinstance(value, list | tuple) else value


def outcome(folder: Path) -> dict[str, Any]:
    """Return what two equal runs have in common, by the part of the folder."""
    found: dict[str, Any] = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, data = str(file.relative_to(folder)), file.read_bytes()
        if name.startswith("store.db") or file.name == "checksums.json":
            continue
        if file.suffix in (".json", ".jsonl"):
            text = data.decode()
            lines = text.splitlines() if file.suffix == ".jsonl" else [text]
            found[name] = [without_clock(json.loads(line)) for line in lines]
        elif file.suffix in (".pth", ".pt"):
            with ZipFile(file) as parts:
                data = b"".join(parts.read(n) for n in parts.namelist() if "/data/" in n)
            found[name] = hashlib.blake2b(data).hexdigest()
        elif file.suffix not in (".html", ".log"):
            found[name] = hashlib.blake2b(data).hexdigest()
    if RunFolder(folder).store.is_file():
        with open_store(RunFolder(folder).store, create=False) as store:
            (run,) = store.runs()
            rollouts = [without_clock(dataclasses.asdict(r)) for r in store.rollouts(run.id)]
            rows = [dataclasses.asdict(row) for row in store.training_rows(run.id)]
        text = json.dumps([rollouts, rows, run.status], default=repr, sort_keys=True)
        parts = json.loads(text)
        found["store"] = {row["id"]: row for row in parts[0]} | {"rows": parts[1:]}
    return found


def differing(one: Any, other: Any, where: str = "") -> list[str]:
    """Return where two outcomes differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            w for n in {**one, **other} for w in differing(one.get(n), other.get(n), f"{where}/{n}")
        ]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            w
            for i, two in enumerate(zip(one, other, strict=True))
            for w in differing(*two, f"{where}[{i}]")
        ]
    return [] if one == other else [f"{where}: {str(one)[:80]} and {str(other)[:80]}"]


def kill_kind(kind: str, place: Path, moments: int, seed: int, model: Path) -> list[str]:
    """Kill a kind of run at the moments; return its row of the table. Raises `AssertionError`."""
    from tests.system.command import Command

    files = {name: str(place / name) for name in ("plan.json", "workers.json", "tasks.jsonl")}
    words = [(files | {"MODEL": str(model)}).get(word, word) for word in KINDS[kind]]
    words += ["--output", "run"]
    rng = random.Random(f"{kind} {seed}")
    same, early, late = 0, 0, 0
    place.mkdir()
    (place / "plan.json").write_text(json.dumps(PLAN))
    (place / "workers.json").write_text(json.dumps(WORKERS))
    rows = [
        {"question": f"What is {i} + {i * 7 % 50}?", "answer": i + i * 7 % 50} for i in range(40)
    ]
    (place / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    began = time.monotonic()
    (place / "whole").mkdir()
    Command(place / "whole")(*words)
    seconds = time.monotonic() - began
    whole = outcome(place / "whole" / "run")
    for moment in range(moments):
        command = Command(place / str(moment))
        run = command.cwd / "run"
        command.cwd.mkdir()
        job = command.start(*words)
        job.process.join(rng.uniform(0.02, 1.0) * seconds)
        job.kill()
        result = RunFolder(run).read_result() if run.is_dir() else None
        ended_before = result is not None and result.get("status") != "stopped"
        late += ended_before
        if (run / "config.json").is_file():
            ended = command("resume", "run")
        else:
            early += 1
            shutil.rmtree(run, ignore_errors=True)
            ended = command(*words)
        wrong = differing(outcome(run), whole)
        # A run that was killed while it closed has no more to do than to remove checkpoints.
        left_out = (*LEFT_OUT.get(kind, ()), *["/checkpoints"] * ended_before)
        wrong = [each for each in wrong if not each.startswith(left_out)]
        if wrong or ended.code not in (0, 3, *[2] * ended_before):
            print(f"{kind}, moment {moment}: {wrong[:8]}, exit code {ended.code}", flush=True)
            print(ended.err[-2000:], flush=True)
        else:
            same += 1
            shutil.rmtree(command.cwd)
    print(f"{kind}: {same} of {moments} equal, {len(whole)} parts compared", flush=True)
    counts = f"{moments - early - late} in the run, {early} before its folder, {late} after its end"
    return [kind, f"{seconds:.0f}", counts, f"{same} of {moments}"]


def main() -> int:
    """The command line. Returns 1 where a run ended otherwise."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    with tempfile.TemporaryDirectory() as folder:
        from tests.system.command import Command

        model = Path(folder) / "model" / "policy"
        Command(Path(folder))(*KINDS["weights"], "--output", "model").check()
        rows = [
            kill_kind(kind, Path(folder) / kind, options.moments, options.seed, model)
            for kind in options.kinds or KINDS
        ]
    print(machine())
    print(table(["kind of run", "seconds of a whole one", "kills", "equal to the whole one"], rows))
    return int(any(not row[3].startswith(f"{options.moments} of") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
