"""What works without torch: the doctor, `Trainer`, and a prompt search over an endpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prompts.prompt_parts import served

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


@pytest.mark.full
def test_the_doctor_says_what_is_missing_and_how_to_get_it(tmp_path: Path) -> None:
    done = without_torch(
        "from tutelage.cli import main; sys.argv[1:] = ['doctor']; main()", tmp_path
    )
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stdout.split())
    assert "! torch missing: prompts are searched over an endpoint" in told
    assert "pip install 'tutelage[train]'" in told
    assert "ok python" in told
    assert "Start with: tutelage train math --algorithm apo" in told


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
