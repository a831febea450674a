"""The count of the package sees what it is made to see, in packages made for it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from house import above, count

LONG = "def long():\n" + "    x = 1\n" * 100
FAULTS = (
    ("tools", LONG, "tools/module.py, line 1: long has 101 lines"),
    ("tools", "x = 1\n" * 801, "tools/module.py: 801 lines"),
    ("prompts", "def f():\n    from tutelage.weights import jobs\n", "imports tutelage.weights"),
    ("runs", "x = kind in ('prompt', 'weights')\n", "kind in ('prompt', 'weights')"),
    ("runs", "if True:\n    class A: ...\nclass B: ...\nclass B: ...\n", "is called B"),
)
NO_FAULTS = (
    LONG.replace("    x = 1\n", "", 1),
    "x = 1\n" * 800,
    "from tutelage.runs import folder\n",
    "if field.kind == 'array':\n    pass\n",
)


def package(folder: Path, name: str, text: str) -> Path:
    folder.joinpath(name).mkdir(parents=True)
    folder.joinpath(name, "module.py").write_text(text)
    return folder


def test_what_must_not_be_there_is_found_and_nothing_else(tmp_path: Path) -> None:
    for number, (name, text, fault) in enumerate(FAULTS):
        (found,) = count(package(tmp_path / f"bad{number}", name, text)).faults
        assert fault in found
    for number, text in enumerate(NO_FAULTS):
        assert count(package(tmp_path / f"good{number}", "weights", text)).faults == []


def test_a_package_above_its_ceiling_is_named() -> None:
    lines = Counter({"tools": 11, "web": 3, "top": 3})
    assert [*above(lines, {"tools": 11, "else": 6})] == []
    assert [*above(lines, {"tools": 10, "else": 5})] == [
        "tools: 11 code lines, and the ceiling is 10",
        "else: 6 code lines, and the ceiling is 5",
    ]
