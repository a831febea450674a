"""No-op rollouts per second: Tutelage's runner for any agent, with its store on the disk.

Prints one line of JSON. `run.py` starts it beside the peer and writes the table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tutelage.agents.function import as_agent, rollout
from tutelage.rollouts.models import ModelProvider
from tutelage.rollouts.runner import RolloutSpec, Runner, RunnerSettings
from tutelage.seeds import SeedTree
from tutelage.store import StoreWriter, open_store
from tutelage.tracing import SpanRecord, span
from tutelage.types import Mode, Rollout, Task


@rollout
async def noop(task: dict[str, Any]) -> float:
    """One span, one reward."""
    with span("work"):
        pass
    return 1.0


def measure(count: int, runners: int, folder: Path) -> tuple[float, float]:
    """Wall and CPU seconds, from the first spec to the last byte on the disk."""
    seeds = SeedTree(0)
    with open_store(folder / "store.db") as store:
        store.put_run(
            "bench", name="bench", recipe="rl", algorithm="rl", config={}, seed=0,
            folder=str(folder), status="running",
        )  # fmt: skip
        with StoreWriter(store) as writer:

            def keep(done: Rollout, spans: Sequence[SpanRecord]) -> None:
                writer.submit([done])
                writer.submit_spans("bench", spans)

            settings = RunnerSettings("bench", concurrency=runners)
            runner = Runner(as_agent(noop), ModelProvider(), settings, on_spans=keep)
            start, cpu = time.perf_counter(), time.process_time()
            specs = [
                RolloutSpec(
                    Task(f"t{i}", {"question": f"q{i}"}),
                    Mode.TRAIN,
                    f"g{i // 8}",
                    i % 8,
                    seeds.child("rollout", i),
                )
                for i in range(count)
            ]
            asyncio.run(runner.run(specs))
            writer.flush()
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        stored = store.count("bench")
        spans = store.count_spans("bench")
        rewarded = sum(r.reward is not None for r in store.rollouts("bench", limit=100))
    assert (stored, spans, rewarded) == (count, count, min(count, 100)), (stored, spans, rewarded)
    return seconds, cpu


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--runners", type=int, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        measure(500, args.runners, Path(first))  # warm
        seconds, cpu = measure(args.count, args.runners, Path(second))
    line = {
        "rollouts_per_second": args.count / seconds,
        "cpu_us": cpu / args.count * 1e6,
        "runners": args.runners,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
