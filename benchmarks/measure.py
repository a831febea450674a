"""What the benchmarks share: alternating variants by CPU time, the machine, the results file.

CPU seconds of the process are compared, not wall seconds: they depend least on who else is at work.
Variants are run in turn, A B A B ..., so that a drift of the machine falls on all of them.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path


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
