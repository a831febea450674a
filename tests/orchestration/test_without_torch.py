"""`tutelage orchestrate` without torch: nothing is planned, but by a language model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import sys

sys.modules["torch"] = None  # importing it fails, and it is not found
from tutelage.cli import main

main()
"""
TOLD = "the trained planner needs the package 'torch'"
IN_PYTHON = """
import sys

sys.modules["torch"] = None
from tutelage.errors import MissingExtraError
from tutelage.orchestration import OrchestrationSystem

try:
    OrchestrationSystem().plan("Translate it")
except MissingExtraError as error:
    print(error)
"""


def run(code: str, words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter of its own."""
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("verb", [pytest.param("plan", marks=pytest.mark.full), "run"])
def test_no_plan_is_made_up_without_torch(verb: str, tmp_path: Path) -> None:
    done = run(WITHOUT, ["orchestrate", verb, "Summarise the report and translate it"], tmp_path)
    assert done.returncode == 69
    assert TOLD in done.stderr
    assert "pip install 'tutelage[train]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


@pytest.mark.full
def test_nor_in_python(tmp_path: Path) -> None:
    done = run(IN_PYTHON, [], tmp_path)
    assert TOLD in done.stdout, done.stderr
