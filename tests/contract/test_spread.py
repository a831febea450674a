"""Files in forks report what they would in one process, and a process that dies is a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FILES = {
    "test_passes.py": "def test_a(tmp_path): print('kept')\ndef test_b(): pass\n",
    "test_fails.py": "def test_c():\n    print('said before')\n    assert 1 == 2\n",
    "test_dies.py": "import os\ndef test_d(): pass\ndef test_e(): os._exit(3)\n",
}


def test_results_of_forks_are_reported(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    words = ["-m", "pytest", "-q", "-p", "tests.spread", "--processes", "2", "--rootdir"]
    done = subprocess.run(
        [sys.executable, *words, str(tmp_path), str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 3 passed" in done.stdout
    assert "said before" in done.stdout
    assert "test_dies.py::test_e" in done.stdout
    assert "the process of this test ended with exit code 3" in done.stdout
