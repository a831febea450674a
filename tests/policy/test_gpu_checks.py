"""The script for the first machine with a GPU, as far as it runs without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "scale" / "gpu_checks.sh"


def played(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.full
def test_every_check_runs_on_the_cpu(tmp_path: Path) -> None:
    out = tmp_path / "gpu_checks.json"
    done = played("--cpu", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    names = ["device", "tf32", "bounds", "repeats in float32", "repeats", "memory", "weights"]
    assert list(found) == names
    assert all(one["ok"] for one in found.values())
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["ok", name.split()[0]] for name in names
    ]


@pytest.mark.full
def test_without_a_gpu_it_says_how_to_play_it() -> None:
    done = played()
    assert done.returncode == 2
    assert "torch sees no GPU here; --cpu plays the checks on the CPU" in done.stderr
