"""The words of the code: main nouns name one class each, and what was renamed is gone.

`docs/design/words.md` has the table of what was renamed.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict

import pytest
from source_tree import ROOT, modules, tree

MAIN_NOUNS = {
    "Task", "Rollout", "Attempt", "Call", "Turn", "Row", "Batch", "Run", "Policy", "Engine",
    "Plan", "Node", "Worker", "Reward", "Group", "Environment", "Observation",
}  # fmt: skip
TABLE = ROOT.parents[1] / "docs" / "design" / "words.md"
NAME = re.compile(r"^\| `([A-Za-z_]\w*)` \| `([\w/]+\.py)` \| `([A-Za-z_]\w*)` \|", re.MULTILINE)
FILE = re.compile(r"^\| `([\w/]+\.py)` \| `([\w/]+\.py)` \|", re.MULTILINE)


def classes() -> dict[str, list[str]]:
    """Modules by the name of a class at their top."""
    found: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        for node in tree(module).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(module)
    return found


def names(module: str) -> set[str]:
    """Classes and functions at the top of a module."""
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in tree(module).body if isinstance(node, kinds)}


def renamed() -> list[tuple[str, str, str]]:
    """Old name, old file and new name of the table's classes and functions."""
    return NAME.findall(TABLE.read_text(encoding="utf-8"))


def moved() -> dict[str, str]:
    """Old files to new ones."""
    return dict(FILE.findall(TABLE.read_text(encoding="utf-8")))


def dotted(file: str) -> str:
    return f"tutelage.{file.removesuffix('.py').replace('/', '.')}"


def test_no_two_public_classes_have_one_name() -> None:
    twins = {n: where for n, where in classes().items() if len(where) > 1 and n[0] != "_"}
    assert twins == {}


@pytest.mark.parametrize("noun", sorted(MAIN_NOUNS))
def test_a_main_noun_names_at_most_one_class_private_ones_included(noun: str) -> None:
    found = classes()
    assert len([*found.get(noun, ()), *found.get(f"_{noun}", ())]) <= 1


def test_most_main_nouns_name_a_class() -> None:
    """The rule above would hold of a package without any."""
    assert len(MAIN_NOUNS & {*classes()}) >= 14


def test_the_table_is_read() -> None:
    assert len(renamed()) >= 200
    assert len(moved()) >= 30


def test_nothing_has_its_old_name_any_more() -> None:
    files = moved()
    wrong = [
        f"{file}: {old}"
        for old, file, _ in renamed()
        if (module := dotted(files.get(file, file))) in modules()
        and old in names(module)
        # A name that another one of the file was given: `search` for what `seek` was.
        and (file, old) not in {(f, new) for _, f, new in renamed()}
    ]
    assert wrong == []
    assert [old for old in files if (ROOT / old).exists()] == []
