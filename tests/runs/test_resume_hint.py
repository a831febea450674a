"""The command that continues a run works as it is typed, wherever the program lies."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tutelage.runs.resume_hint import format_question, resume_command, resume_hint
from tutelage.types import Task


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


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"question": "What is 6 * 7?"}, '"What is 6 * 7?"'),
        ({"question": "What do 3 lamps cost, in $?"}, "'What do 3 lamps cost, in $?'"),
        (
            {"question": "What do 3 lamps cost?", "prices": {"lamp": 23, "scarf": 2.5}},
            '"What do 3 lamps cost?" prices.lamp=23 prices.scarf=2.5',
        ),
        ({"question": "What do 3 lamps cost?", "prices": {"desk lamp": 23}}, None),
        ({"question": "Is this a price list?", "prices": "yes"}, '"Is this a price list?"'),
        ({"question": "What is " + "1 + " * 40 + "1?"}, None),
        ({"question": "What is\n6 * 7?"}, None),
        ({"code": "x"}, None),
    ],
)
def test_a_question_is_asked_again_with_what_it_is_about(
    fields: dict[str, Any], words: str | None
) -> None:
    assert format_question(Task("t", fields)) == words
