"""What the benchmarks share: alternating variants by CPU time, the machine, the results file.

CPU seconds of the process are compared, not wall seconds: they depend least on who else is at work.
Variants are run in turn, A B A B ..., so that a drift of the machine falls on all of them.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any


def alternate(
    variants: Mapping[str, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[float]]:
    """Seconds of each variant in each round, CPU seconds by default, after one to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for round_ in range(rounds + 1):
        for name, work in variants.items():
            start = clock()
            work()
            if round_:
                seconds[name].append(clock() - start)
    return seconds


def rate(amount: float, seconds: list[float]) -> float:
    """Amount per CPU second at the median."""
    return amount / statistics.median(seconds)


def machine() -> str:
    """Processor, cores in use, Python and torch."""
    cpu, info = platform.processor(), Path("/proc/cpuinfo")
    if info.exists():
        names = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    import torch

    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{cpu}, {os.cpu_count()} cores, {versions}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def results(path: Path, title: str, text: str) -> None:
    """Write a results page with machine and date."""
    path.write_text(f"# {title}\n\n{machine()}; {date.today().isoformat()}.\n\n{text}")


def run_to_its_end(folder: Path, command: Sequence[str], stdout: Any = None) -> None:
    """Run a training with this run folder, or go on with it where it was stopped; nothing where it
    has finished. What it took is added up beside the folder, also of a session that is stopped."""
    from tutelage.runs.folder import RunFolder

    if (RunFolder(folder).read_result() or {}).get("status") == "finished":
        return
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=stdout, stderr=stdout)
    try:
        _, status, used = os.wait4(process.pid, 0)
    except KeyboardInterrupt:  # the training got it too, and saves
        _, status, used = os.wait4(process.pid, 0)
    before = took(folder) or {"seconds": 0.0, "cpu_seconds": 0.0, "peak_gib": 0.0}
    now = {
        "seconds": before["seconds"] + time.perf_counter() - start,
        "cpu_seconds": before["cpu_seconds"] + used.ru_utime + used.ru_stime,
        "peak_gib": max(before["peak_gib"], used.ru_maxrss / 2**20),
    }
    _beside(folder).write_text(json.dumps(now))
    if status:
        code = os.waitstatus_to_exitcode(status)
        raise SystemExit(f"{' '.join(command)} ended with {code}; the same words again go on")


def took(folder: Path) -> dict[str, float] | None:
    """What `run_to_its_end` wrote of a run; None where it did not."""
    place = _beside(folder)
    return json.loads(place.read_text()) if place.is_file() else None


def _beside(folder: Path) -> Path:
    return folder.parent / f"{folder.name}.json"
