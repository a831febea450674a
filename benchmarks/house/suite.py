"""Measure `make test`: minutes by the clock, CPU minutes, tests, and the peak memory of it all.

    python -m benchmarks.house.suite [MAKE_TARGET]    # in a checkout with its .venv made

Memory is the sum of the proportional set sizes (PSS: pages that processes share count once) of the
command and its descendants, sampled every two seconds. `docs/design/figures.md` has the lines.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import psutil

PAUSE = 2.0
LOG = Path(".cache/suite.log")
"""What the target prints."""


def pss(process: psutil.Process) -> int:
    """Bytes of a process by PSS; 0 where it has ended."""
    try:
        return process.memory_full_info().pss
    except psutil.Error:
        return 0


def main() -> int:
    target = sys.argv[1] if len(sys.argv) > 1 else "test"
    began, peak, most = time.monotonic(), 0, 0
    with subprocess.Popen(["make", target], stdout=subprocess.PIPE, text=True) as process:
        root = psutil.Process(process.pid)
        LOG.parent.mkdir(exist_ok=True)
        with LOG.open("w", encoding="utf-8") as log:
            reader = subprocess.Popen(["cat"], stdin=process.stdout, stdout=log)
            while process.poll() is None:
                family = [root, *root.children(recursive=True)]
                peak = max(peak, sum(map(pss, family)))
                most = max(most, len(family))
                time.sleep(PAUSE)
            reader.wait()
    last = LOG.read_text(encoding="utf-8").rstrip().rpartition("\n")[2]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"make {target}: exit code {process.returncode}")
    print(last)
    print(f"{(time.monotonic() - began) / 60:.1f} minutes by the clock")
    print(f"{(used.ru_utime + used.ru_stime) / 60:.1f} CPU minutes")
    print(f"{peak / 1e9:.2f} GB at most in up to {most} processes")
    print(f"{used.ru_maxrss / 1e6:.2f} GB at most in one process")
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
