"""What all modules promise, read from their source: a paragraph about themselves, and what they
may import. A room imports from lines above it and from rooms left of it on its line.

`docs/design/house.md` has the rooms. Imports inside functions and type hints count like any other,
and so do modules that are named in a string to be loaded later.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions

import pytest
from source_tree import ROOT, imported, loaded, modules, named, tree
from tests.in_one_item import in_one_item

LINES = (
    ("types", "errors", "bounded", "replies", "files", "platforms", "seeds", "resources", "config"),
    ("tracing", "store"),
    ("tasks", "tools", "environments", "rewards"),
    ("policy", "engine", "gateway", "agents", "rollouts"),
    ("algorithms",),
    ("statistics", "runs", "evaluate"),
    ("weights",),
    ("prompts",),
    ("orchestration",),
    ("trainer",),
    ("recipes",),
    ("web", "cli", "__main__"),
    ("distributed",),
    ("testing",),
)
"""From the words that all share down to the command line."""

ROOMS = tuple(room for line in LINES for room in line)
APART = {"weights", "prompts", "orchestration"}
"""What is trained: what two of them need belongs above them."""
BY_NAME = {("prompts", "recipes"), ("trainer", "cli"), ("weights", "distributed")}
"""A room that finds another one below it by a module's name, at the moment it is asked for: a
search its default agent, which a recipe makes of the search's own parts, a `Trainer` the display of
a job, a training the workers that its configuration names and the ranks that a launcher started."""


BROUGHT_BY = {
    "huggingface_hub": "transformers",
    "markupsafe": "jinja2",
    "mcp_types": "mcp",
    "pydantic_core": "pydantic",
    "vllm": "torch",  # its plugin, which vLLM's own interpreter loads
}
"""Packages that another one, which is declared, cannot be without."""


@pytest.fixture(scope="module", autouse=True)
def parsed_once() -> Iterator[None]:
    """The syntax trees of all modules are large: they go with the last test that reads them."""
    yield
    tree.cache_clear()


def room(module: str) -> str:
    """`tutelage.policy.codec` belongs to `policy`; the public surface to the empty name."""
    return [*module.split("."), ""][1]


def may_import(name: str) -> set[str]:
    """The rooms above and left of one, and itself."""
    above = {*ROOMS[: ROOMS.index(name) + 1]}
    return above - (APART - {name}) if name in APART else above


def test_every_module_belongs_to_a_room() -> None:
    strangers = sorted(m for m in modules() if room(m) not in {"", *ROOMS})
    assert strangers == [], f"give these a place in LINES: {strangers}"


@in_one_item("name", ROOMS)
def test_a_room_imports_only_upwards_and_leftwards(name: str) -> None:
    wrong = [
        f"{module} imports {target}"
        for module in modules()
        if room(module) == name
        for target in imported(module)
        if room(target) not in may_import(name) and target != "tutelage.__version__"
    ]
    assert wrong == []


@in_one_item("name", ROOMS)
def test_a_module_that_is_named_in_a_string_follows_the_same_rule(name: str) -> None:
    wrong = [
        f"{module} names {target}"
        for module in modules()
        if room(module) == name
        for target in named(module)
        if room(target) not in may_import(name) and (name, room(target)) not in BY_NAME
    ]
    assert wrong == []


@pytest.mark.full
def test_no_modules_import_each_other_in_a_circle_not_even_inside_functions() -> None:
    """Type hints stand apart: nothing is loaded for their sake."""
    graph = {module: set(loaded(module)) - {module} for module in modules() if room(module)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.full
def test_a_prompt_search_leaves_torch_alone() -> None:
    """Every module of it, not only the package: a policy of this process loads torch when asked."""
    names = sorted(m for m in modules() if room(m) == "prompts")
    code = f"import {', '.join(names)}, json, sys; print(json.dumps('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) is False


def packages_of(module: ast.AST) -> set[str]:
    """The packages that a module imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module or "")
    return {name.partition(".")[0] for name in found} - {*sys.stdlib_module_names, "tutelage", ""}


def declared(group: list[str]) -> set[str]:
    """The names of requirements."""
    return {re.split(r"[\s\[<>=!;]", each)[0].lower().replace("_", "-") for each in group}


def test_what_is_imported_is_a_dependency_of_the_package() -> None:
    """Not only of the tests' environment, where others may have brought it along."""
    text = (ROOT.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    extras = project["optional-dependencies"]
    known = declared(project["dependencies"])
    for name in extras.keys() - {"dev", "bench"}:
        known |= declared(extras[name])
    packages = packages_distributions()
    plugin = (ROOT / "distributed" / "vllm_plugin").glob("*.py")
    others = [ast.parse(file.read_text(encoding="utf-8")) for file in plugin]
    lacking = {
        name
        for module in (*map(tree, modules()), *others)
        for name in packages_of(module)
        if not known & declared([BROUGHT_BY.get(name, name), *packages.get(name, ())])
    }
    assert not lacking


@in_one_item("name", modules())
def test_a_module_opens_with_a_paragraph_about_itself(name: str) -> None:
    words = ast.get_docstring(tree(name))
    assert words, f"{modules()[name].relative_to(ROOT)} has no docstring"
    assert words[0].isupper() or not words[0].isalpha(), words
    assert words.rstrip()[-1] in ".:`)", words
