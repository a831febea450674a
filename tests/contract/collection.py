"""Are the tests called the same in every process? `make check` asks, with this file as its command.

pytest-xdist runs nothing when two of its workers collect other names. So the tests are collected
by two processes that differ in what a name must not come from: the seed of hash order, the second
at which they start, the process id.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
APART = 2.0
"""Seconds between the two starts."""


def differences(folder: Path, apart: float = APART) -> tuple[int, list[str]]:
    """How many tests a folder has, and the lines of a diff between what two processes call them."""
    first = _collect(folder, seed="1")
    time.sleep(apart)
    second = _collect(folder, seed="2")
    names = [_names(process) for process in (first, second)]
    return len(names[0]), list(difflib.unified_diff(*names, "first", "second", lineterm="", n=0))


def _collect(folder: Path, seed: str) -> subprocess.Popen[str]:
    words = ["-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", str(folder)]
    environment = os.environ | {"PYTHONHASHSEED": seed}
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _names(process: subprocess.Popen[str]) -> list[str]:
    out, errors = process.communicate()
    if process.returncode != 0:
        sys.exit(f"the tests cannot be collected:\n{out}{errors}")
    return [line for line in out.splitlines() if "::" in line]


if __name__ == "__main__":
    count, lines = differences(ROOT / "tests")
    print(*(line[:300] for line in lines), sep="\n", end="\n" if lines else "")
    if lines:
        sys.exit("names of tests differ between two processes: give the parameters fixed `ids`")
    print(f"{count} tests have the same names in two processes, {APART:.0f} s apart")
