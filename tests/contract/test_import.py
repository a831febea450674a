"""`import tutelage` is light, and what works without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prompts.prompt_parts import served
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
        ("tutelage.rewards.math_grader, tutelage.rewards.builtin", ("torch", "sympy")),
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


# ------------------------------------------------------------ without torch


ROOT = Path(__file__).parents[2]
WITHOUT = """
import sys
for name in ("torch", "transformers", "tokenizers", "safetensors"):
    sys.modules[name] = None
"""


def without_torch(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter in which torch cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + code],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_every_public_name_is_imported(tmp_path: Path) -> None:
    code = "import tutelage; print([getattr(tutelage, name) is None for name in tutelage.__all__])"
    done = without_torch(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "True" not in done.stdout


@pytest.mark.full  # three seconds; test_layering.py has what is loaded
def test_a_trainer_searches_for_a_prompt_over_an_endpoint(tmp_path: Path) -> None:
    code = """
from tutelage import APO, LLM, PromptTemplate, Trainer, rollout

@rollout
async def solve(task, llm: LLM, style: PromptTemplate):
    said = (await llm.chat(f"{style.format()} {task['question']}", max_tokens=8)).reply
    return min(1.0, len(said.content or "") / 40)

def rows(first, count):
    return [{"id": f"t{n}", "question": f"What is {n} + 1?"} for n in range(first, first + count)]

trainer = Trainer(
    algorithm=APO(rounds=1), train_dataset=rows(0, 4), val_dataset=rows(4, 4),
    test_dataset=rows(8, 6), resources={"style": PromptTemplate("Answer in a word.")},
    search={"rollouts": 200},
)
print(trainer.fit(solve).verdict.value)
"""
    with served() as (environment, _server):
        done = without_torch(code, tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("improved", "no evidence", "worse"), done.stdout
    assert next(tmp_path.glob("runs/*/best_prompt.txt")).read_text()


@pytest.mark.full
def test_training_weights_says_what_to_install(tmp_path: Path) -> None:
    code = """
from tutelage import RL, Trainer
Trainer(algorithm=RL(), train_dataset=[{"question": "q"}]).fit(lambda task, llm: 1.0)
"""
    done = without_torch(code, tmp_path)
    assert done.returncode == 1
    assert "pip install 'tutelage[train]'" in done.stderr.splitlines()[-1]
