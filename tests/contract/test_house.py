"""The count of the package sees what it is made to see, in packages made for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from house import ROOT, code_lines, faults, totals

LONG = "def long():\n" + "    x = 1\n" * 100
SOURCE = '''"""A module."""
import os  # an import

# a comment
def one(
    a: int,
) -> str:
    """A docstring

    of three lines."""
    return """a string
    of two lines"""


class Two:
    "words"
    x = 1
'''


def package(folder: Path, room: str, text: str) -> Path:
    (folder / room).mkdir()
    (folder / room / "module.py").write_text(text)
    return folder


def test_a_line_of_code_has_a_token_that_is_no_comment_docstring_or_import() -> None:
    assert code_lines(SOURCE) == 7


def test_public_names_are_counted_and_nothing_else(tmp_path: Path) -> None:
    text = SOURCE + "\n\ndef _private():\n    def inner(): ...\n"
    assert totals(package(tmp_path, "tools", text)) == (
        "1 files, 9 lines of code, 1 public classes, 1 public functions"
    )


@pytest.mark.parametrize(
    ("room", "text", "fault"),
    [
        ("tools", LONG, "tools/module.py, line 1: long has 101 lines"),
        ("tools", "x = 1\n" * 801, "tools/module.py: 801 lines"),
        (
            "prompts",
            "def f():\n    from tutelage.weights import jobs\n",
            "imports tutelage.weights",
        ),
        ("weights", "import tutelage.prompts.run\n", "imports tutelage.prompts.run"),
        ("orchestration", "from tutelage import prompts\n", "imports tutelage.prompts"),
        ("cli", "if run.kind == 'planner':\n    pass\n", "run.kind == 'planner'"),
        ("runs", "x = kind in ('prompt', 'weights')\n", "kind in ('prompt', 'weights')"),
        ("evaluate", "def is_prompt_run(): ...\n", "is_prompt_run"),
    ],
    ids=["function", "file", "lazy", "import", "from", "equal", "among", "name"],
)
def test_what_must_not_be_there_is_found(tmp_path: Path, room: str, text: str, fault: str) -> None:
    (found,) = faults(package(tmp_path, room, text))
    assert fault in found


@pytest.mark.parametrize(
    "text",
    [
        LONG.replace("    x = 1\n", "", 1),
        "x = 1\n" * 800,
        "from tutelage.runs import folder\n",
        "if field.kind == 'array':\n    pass\n",
    ],
    ids=["function", "file", "import", "kind"],
)
def test_what_may_be_there_is_not(tmp_path: Path, text: str) -> None:
    assert faults(package(tmp_path, "weights", text)) == []


def test_it_reads_the_whole_package() -> None:
    assert (ROOT / "cli" / "app.py").is_file()
    assert len(list(ROOT.rglob("*.py"))) > 100
