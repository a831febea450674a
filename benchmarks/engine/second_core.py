"""What a second core can bring to the sampling of a small policy: a decode step of 128 rows on one
thread, of 64 rows on one thread, and of 64 rows on each of two threads at the same time.

    python -m benchmarks.engine.second_core       # prints a table; on a quiet machine

With no cost of its own, two threads of 64 rows take as long as one thread of 64 rows. What
that is below 128 rows bounds the gain, whatever Python's lock costs beside it.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from benchmarks.engine.run import make_policy
from benchmarks.measure import table

from tutelage.engine.backends import make_backend
from tutelage.policy.model import Policy

CONTEXT, STEPS, ROUNDS = 96, 60, 7


def main() -> None:
    """Print milliseconds of a decode step and the ratios."""
    torch.set_num_threads(1)
    lines = []
    for size in ("xs", "s"):
        policy, _ = make_policy(size)

        def decode(rows: int, policy: Policy = policy) -> float:
            torch.set_num_threads(1)
            backend = make_backend(policy, rows, 256, torch.float32)
            ids, ones = torch.ones(rows, 1, dtype=torch.long), torch.ones(rows, dtype=torch.long)
            begin = 0.0
            for step in range(STEPS + 5):
                begin = time.perf_counter() if step == 5 else begin
                backend.extend(ids, ones * (CONTEXT + step), ones, rows, CONTEXT + STEPS + 8)
            return (time.perf_counter() - begin) / STEPS * 1e3

        seen: dict[str, list[float]] = {"128": [], "64": [], "2 x 64": []}
        with ThreadPoolExecutor(2) as pool:
            for _ in range(ROUNDS):
                seen["128"].append(decode(128))
                seen["64"].append(decode(64))
                seen["2 x 64"].append(max(pool.map(decode, (64, 64))))
        one, half, two = (statistics.median(times) for times in seen.values())
        ratios = f"{one / half:.2f}", f"{one / two:.2f}"
        lines.append([size, f"{one:.2f}", f"{half:.2f}", f"{two:.2f}", *ratios])
    heads = ["size", "128 rows, ms", "64 rows, ms", "2 x 64 rows, ms", "at most", "measured"]
    print(table(heads, lines))


if __name__ == "__main__":
    main()
