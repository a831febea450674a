"""A vLLM server of a run's own, which ends with what started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

LOADING = "#!/bin/sh\ntrap '' TERM\nsleep 600 &\necho loading $$\nsleep 600\n"
"""An interpreter whose server is loading its model."""


def alive(group: int) -> bool:
    """Whether a process group has a process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def ended(group: int) -> bool:
    """Whether a process group ends within a minute; it is ended in any case."""
    until = time.monotonic() + 60
    while alive(group) and time.monotonic() < until:
        time.sleep(0.1)
    left = alive(group)
    if left:
        os.killpg(group, signal.SIGKILL)
    return not left


KILLED = """
import os, signal, sys, time
from pathlib import Path
from tutelage.engine import vllm_launch

vllm_launch._END = 1.0
options = vllm_launch.ServerOptions("model", "float32", 64)
server = vllm_launch.LocalServer(sys.argv[1], options, Path(sys.argv[2]))
until = time.monotonic() + 60
while b"loading" not in Path(sys.argv[2]).read_bytes() and time.monotonic() < until:
    time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_server_that_is_still_loading_ends_with_a_run_that_is_killed(tmp_path: Path) -> None:
    """As vLLM does then, it hears no SIGTERM, and neither does what it has started."""
    python, log = tmp_path / "python", tmp_path / "vllm.log"
    python.write_text(LOADING)
    python.chmod(0o755)
    subprocess.run([sys.executable, "-c", KILLED, python, log], check=False)
    assert ended(int(log.read_text().split()[1]))
