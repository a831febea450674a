"""The command that continues a run works as it is typed, wherever the program lies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tutelage.runs.resume_hint import resume_command, resume_hint


def test_the_command_is_named_as_it_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name where the shell finds it, or another program runs; else as a module."""
    place = tmp_path / "tutelage"
    place.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(place), "train"])
    monkeypatch.setattr(sys, "executable", "my venv/bin/python")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert resume_hint(Path("my run")) == "Continue with: tutelage resume 'my run'"
    monkeypatch.setenv("PATH", os.defpath)
    assert resume_command(Path("run")) == "'my venv/bin/python' -m tutelage resume run"
    monkeypatch.setattr(sys, "argv", ["/site/tutelage/__main__.py", "train"])
    assert resume_command(Path("run")) == "'my venv/bin/python' -m tutelage resume run"
    monkeypatch.setattr(sys, "argv", ["train.py"])
    assert resume_command(Path("run")) == "tutelage resume run"
