"""What the executor costs: CPU time and memory of concurrent workflows on simulated workers.

    python benchmarks/orchestration/executor.py [--waves 5]

The clock jumps, so nobody waits and what is left is our own work. Every way runs in a process of
its own: a wave starts all its workflows at once and keeps their results until it ends; memory is
looked at before the first wave, at its highest, and after each wave, where it must stay. Workflows
are synthetic over the built-in tools (1 to 6 nodes), and a plan of 200 nodes. Writes
RESULTS_executor.md.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

WAYS: dict[str, dict[str, Any]] = {
    "100 workflows": {"count": 100},
    "1,000 workflows": {"count": 1000},
    "4,000 workflows": {"count": 4000},
    "1,000 workflows, each with a log on the disk": {"count": 1000, "journal": True},
    "1,000 workflows, one budget that 60 % of them can spend": {"count": 1000, "budget": 0.6},
    "20 plans of 200 nodes": {"count": 20, "nodes": 200},
}


def memory() -> float:
    """Resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def wide(nodes: int) -> Any:
    """Levels of ten; each node waits for two of the level before."""
    from tutelage.orchestration.plan.dag import Node, Plan

    def after(i: int) -> tuple[int, ...]:
        return () if i < 10 else (i - 10, (i // 10 - 1) * 10 + (i + 1) % 10)

    return Plan("x", tuple(Node("summarize_text", after=after(i)) for i in range(nodes)))


def measure(way: dict[str, Any], waves: int) -> dict[str, Any]:
    """One way in this process."""
    from tutelage.orchestration.data.synthetic import builtin_graph, generate
    from tutelage.orchestration.execution.budget import Budget
    from tutelage.orchestration.execution.executor import Executor, ExecutorSettings
    from tutelage.orchestration.execution.pools.simulated import SimulatedPool
    from tutelage.orchestration.execution.record import ExecutionJournal
    from tutelage.orchestration.execution.virtual_time import run_virtual
    from tutelage.orchestration.execution.worker_files import classic
    from tutelage.orchestration.routing.contract import Choice, RouteState
    from tutelage.seeds import SeedTree

    class RandomRouter:
        """A worker drawn evenly among the legal ones, by the seed of the try."""

        def choose(self, state: RouteState) -> Choice:
            """See `Router`."""
            workers = state.candidates
            return Choice(state.seeds.python().choice(workers) if workers else state.stop)

    count = way["count"]
    if "nodes" in way:
        plans = [wide(way["nodes"])] * count
    else:
        kept = generate(builtin_graph(), 500, SeedTree(0))
        plans = [kept[i % len(kept)].plan for i in range(count)]
    settings = ExecutorSettings(concurrency=256, on_failure="continue")
    executor = Executor(SimulatedPool(classic()), RandomRouter(), settings=settings,
                        catalog=builtin_graph().catalog)  # fmt: skip

    def wave(number: int, folder: str) -> dict[str, Any]:
        async def run() -> list[Any]:
            shared = Budget(way["budget"] * count * 0.012) if "budget" in way else None

            async def one(i: int) -> Any:
                seeds = SeedTree(number, ("flow", i))
                if not way.get("journal"):
                    return await executor.run(plans[i], seeds=seeds, budget=shared)
                with ExecutionJournal(f"{folder}/{number}-{i}.db", plans[i], seeds) as journal:
                    return await executor.run(plans[i], seeds=seeds, journal=journal)

            found = await asyncio.gather(*(one(i) for i in range(count)))
            if shared is not None:
                assert shared.spent <= way["budget"] * count * 0.012, "overspent"
            assert len(asyncio.all_tasks()) == 1, "a task was left"
            return found

        begun = time.process_time()
        found = run_virtual(run())
        seconds = time.process_time() - begun
        steps = sum(len(e.steps) for e in found)
        nodes = sum(len(e.nodes) for e in found)
        done = sum(e.success for e in found)
        return {"seconds": seconds, "steps": steps, "nodes": nodes, "success": done / count}

    gc.collect()
    before = memory()
    rows, after, blocks = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(waves):
            rows.append(wave(number, folder))
            gc.collect()
            after.append(memory())
            blocks.append(sys.getallocatedblocks())
    rows.sort(key=lambda row: row["seconds"])
    return {
        **rows[len(rows) // 2],
        "before": before,
        "highest": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "after": after,
        "blocks": blocks,
    }


def main() -> None:
    """Measure every way in a process of its own and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--waves", type=int, default=5)
    parser.add_argument("--way", choices=WAYS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(measure(WAYS[args.way], args.waves)))
        return
    from measure import results, table

    cells: list[list[str]] = []
    for name, way in WAYS.items():
        command = [sys.executable, __file__, "--way", name, "--waves", str(args.waves)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        row = json.loads(done.stdout.splitlines()[-1])
        count = way["count"]
        cells.append(
            [
                name,
                f"{row['seconds']:.2f}",
                f"{1000 * row['seconds'] / count:.2f}",
                f"{1e6 * row['seconds'] / max(1, row['steps']):.0f}",
                f"{row['nodes']:,} / {row['steps']:,}",
                f"{row['before']:.0f}",
                f"{row['highest']:.0f}",
                f"{row['after'][0]:.0f} / {row['after'][-1]:.0f}",
                f"{row['blocks'][0] / 1000:.1f} / {row['blocks'][-1] / 1000:.1f}",
            ]
        )
        print(cells[-1], flush=True)
    header = ["concurrent", "CPU s a wave", "ms a workflow", "µs a step", "nodes / steps",
              "MiB before", "MiB highest", "MiB after the first / last wave",
              "thousand objects after the first / last wave"]  # fmt: skip
    told = (
        f"Median of {args.waves} waves. A step is one decision with its requests and its verdict. "
        "Objects are the blocks that the interpreter has allocated: what the executor keeps would "
        "show there from wave to wave. The pages of a process shrink back only in part.\n\n"
    )
    results(HERE / "RESULTS_executor.md", "The executor", told + table(header, cells))


if __name__ == "__main__":
    main()
