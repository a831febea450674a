"""What the glossary points at exists: a key, a flag, a class, a function or a metric."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache

import pytest
from pages import ROOT
from tests.in_one_item import in_one_item
from typer.main import get_command

from tutelage.cli import build_app
from tutelage.config.keys import defaults

ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \|", re.MULTILINE)
LEAST = 60
METRIC = re.compile(r"[a-z_]+(?:/[a-z_]+)+")


def terms() -> list[tuple[str, str]]:
    """Their words with ours."""
    return ROW.findall((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))


@cache
def metrics() -> frozenset[str]:
    """Names of the form of a metric among the strings of the package."""
    return frozenset(
        node.value
        for path in (ROOT / "src" / "tutelage").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and METRIC.fullmatch(node.value)
    )


def exists(word: str) -> bool:
    """Whether our word names something: a command or its flag, a name, a metric, a key."""
    if word.startswith("tutelage "):
        _, verb, *flags = word.split()
        command = getattr(get_command(build_app()), "commands", {}).get(verb)
        options = {o for p in command.params for o in p.opts} if command is not None else set[str]()
        return command is not None and options >= {*flags}
    if word.startswith("tutelage."):
        module, _, name = word.rpartition(".")
        return hasattr(importlib.import_module(module), name)
    return word in metrics() if "/" in word else word in defaults()


def test_it_has_the_terms_of_all_four() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    for library in ("TRL", "verl", "vLLM", "agent-lightning"):
        assert f"\n## {library}\n" in text
    assert len({(theirs, ours) for theirs, ours in terms()}) == len(terms()) >= LEAST


@pytest.mark.full
@in_one_item(("theirs", "ours"), terms())
def test_each_term_leads_to_something_that_exists(theirs: str, ours: str) -> None:
    assert exists(ours), f"{theirs}: there is no {ours}"


@pytest.mark.full
@in_one_item(
    "word",
    [
        "algorithm.estimator",
        "reward/median",
        "tutelage train --stepps",
        "tutelage coach",
        "tutelage.Coach",
    ],
)
def test_what_does_not_exist_is_found(word: str) -> None:
    assert not exists(word)
