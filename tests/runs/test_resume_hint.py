"""The command that continues a run works as it is typed, wherever the program lies."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tutelage.runs.resume_hint import asked_again, resume_command, resume_hint
from tutelage.types import Task


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `tutelage` in an environment below the working directory."""
    monkeypatch.chdir(tmp_path)
    place = tmp_path / ".venv" / "bin" / "tutelage"
    place.parent.mkdir(parents=True)
    place.touch(mode=0o755)
    return place


@pytest.mark.parametrize("how", ["relative", "absolute"])
def test_a_program_that_the_shell_does_not_find_is_named_by_its_path(
    installed: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    called = installed if how == "absolute" else installed.relative_to(Path.cwd())
    monkeypatch.setattr(sys, "argv", [str(called), "train"])
    monkeypatch.setenv("PATH", os.defpath)
    assert resume_hint(Path("runs/a")) == "Continue with: .venv/bin/tutelage resume runs/a"


def test_another_one_that_the_shell_finds_first_is_not_meant(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other" / "tutelage"
    other.parent.mkdir()
    other.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(installed)])
    monkeypatch.setenv("PATH", str(other.parent))
    assert resume_command(Path("run")) == ".venv/bin/tutelage resume run"


def test_the_one_that_the_shell_finds_is_named_by_its_name(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(installed)])
    monkeypatch.setenv("PATH", str(installed.parent))
    assert resume_command(Path("my run")) == "tutelage resume 'my run'"
    monkeypatch.setattr(sys, "argv", ["train.py"])
    assert resume_command(Path("run")) == "tutelage resume run"


def test_a_module_is_named_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/site/tutelage/__main__.py", "train"])
    monkeypatch.setattr(sys, "orig_argv", ["my venv/bin/python", "-m", "tutelage", "train"])
    assert resume_command(Path("run")) == "'my venv/bin/python' -m tutelage resume run"


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
    assert asked_again(Task("t", fields)) == words
