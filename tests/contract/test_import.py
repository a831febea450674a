"""`import tutelage` is light, and its public names stay what they are."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from source_tree import modules
from tests.in_one_item import in_one_item

import tutelage

HEAVY = ("torch", "sympy", "hydra", "omegaconf", "sqlalchemy", "transformers", "tokenizers",
         "matplotlib", "pydantic", "ray", "rich", "typer")  # fmt: skip


def in_a_new_process(code: str) -> Any:
    """Run `code`, which prints JSON, in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@in_one_item(
    ("module", "light"),
    [
        ("tutelage", HEAVY),
        ("tutelage.types, tutelage.errors, tutelage.seeds", HEAVY),
        ("tutelage.testing", ("torch", "transformers", "tokenizers", "sqlalchemy", "hydra")),
        ("tutelage.policy.codec, tutelage.rollouts.rows", ("torch", "transformers")),
        ("tutelage.engine.factory, tutelage.engine.protocol", ("torch", "transformers")),
        ("tutelage.config, tutelage.tools, tutelage.tasks", ("torch", "transformers")),
    ],
)
def test_importing_leaves_heavy_packages_alone(module: str, light: tuple[str, ...]) -> None:
    loaded = in_a_new_process(f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))")
    assert [name for name in light if name in loaded] == []


@pytest.mark.full  # ten seconds; the test above has the one way that is known
def test_public_names_are_themselves_after_every_module_was_imported() -> None:
    names = [m for m in modules() if not m.endswith("__main__")]
    changed = in_a_new_process(
        f"""
import importlib, json, tutelage
before = {{name: getattr(tutelage, name) for name in tutelage.__all__}}
for module in {names!r}:
    importlib.import_module(module)
after = {{name: getattr(tutelage, name) for name in tutelage.__all__}}
same = [name for name in before if before[name] is after[name]]
kinds = [name for name in after if type(after[name]).__name__ == "module"]
print(json.dumps([sorted(set(before) - set(same)), kinds]))
"""
    )
    assert changed == [[], []]


def test_public_names_are_sorted_documented_and_found_where_they_are_defined() -> None:
    assert list(tutelage.__all__) == sorted(set(tutelage.__all__))
    for name in tutelage.__all__:
        value = getattr(tutelage, name)
        assert value.__doc__, f"{name} has no docstring"
        assert getattr(value, "__module__", "tutelage").startswith("tutelage.")
    assert set(tutelage.__all__) <= set(dir(tutelage))
