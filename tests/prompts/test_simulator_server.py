"""The simulator server: an OpenAI-compatible endpoint whose replies are a function of requests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx2

ROOT = Path(__file__).parents[2]


def test_the_command_prints_its_base_url_and_serves() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.prompt.server", "--world", "math", "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            for _ in range(100):
                try:
                    assert httpx2.get(f"{url}/models").status_code == 200
                    break
                except httpx2.ConnectError:
                    continue
        finally:
            process.terminate()
    assert url.startswith("http://127.0.0.1:")
