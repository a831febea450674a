"""What may import what: a room imports from lines above it and from rooms left of it on its line.

`docs/design/house.md` has the rooms. Imports inside functions and type hints count like any other,
and so do modules that are named in a string to be loaded later.
"""

from __future__ import annotations

import json
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter

import pytest
from source_tree import imported, loaded, modules, named
from tests.in_one_item import in_one_item

LINES = (
    ("types", "errors", "bounded", "replies", "files", "platforms", "seeds", "resources", "config"),
    ("tracing", "store"),
    ("tasks", "environments", "tools", "rewards"),
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


@pytest.mark.full
def test_imports_are_found_wherever_they_stand() -> None:
    """The rules above would hold of anything if no import were seen."""
    seen = {(room(m), room(t)) for m in modules() for t in imported(m)}
    assert ("engine", "policy") in seen
    assert ("rollouts", "agents") in seen
    assert "tutelage.policy.tokenizer.train_tokenizer" in set(imported("tutelage.policy.model"))
    assert "tutelage.policy.tokenizer" in set(loaded("tutelage.policy.model"))
    assert "tutelage.policy.model.Policy" in set(imported("tutelage.testing.tiny"))
    assert {room(t) for t in named("tutelage.prompts.embedded")} == {"recipes"}
