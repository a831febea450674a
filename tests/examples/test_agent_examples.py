"""examples/math_calculator, search_qa and code: their data, and their commands in a short form."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tutelage.rewards import check, resolve_reward
from tutelage.tasks.dataset import Dataset
from tutelage.tasks.demonstrations import load_demonstrations

EXAMPLES = Path(__file__).parents[2] / "examples"
REWARDS = {
    "math_calculator": "math_reward_string_equal",
    "search_qa": "qa_f1_reward",
    "code": "math",
}
MAIN = "from tutelage.cli import main; main()"
SHORTER = {
    "data.train_batch_size=16": "data.train_batch_size=2",
    "agent.num_chains=8": "agent.num_chains=2",
    "trainer.total_training_steps=30": "trainer.total_training_steps=1",
}
SMALL = ("trainer.val_tasks=2", "trainer.threads=1")


def commands(name: str) -> Iterator[list[str]]:
    """The words of each command of a README."""
    text = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
        lines = block.replace("\\\n", " ").splitlines()
        yield from (words for line in lines if (words := shlex.split(line)))


def shortened(words: list[str]) -> list[str]:
    """The same command with little to do."""
    words = [SHORTER.get(word, word) for word in words]
    if "--steps" in words:
        words[words.index("--steps") + 1] = "2"
    return [*words, *SMALL] if words[:2] == ["tutelage", "train"] else words


def run(words: list[str], folder: Path) -> None:
    if words[0] == "python":
        args = [sys.executable, str(EXAMPLES.parent / words[1]), words[2], "70"]
    else:
        args = [sys.executable, "-c", MAIN, *words[1:]]
    done = subprocess.run(args, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, (words, done.stderr)


@pytest.mark.full  # test_own_tasks.py has the shortest README
@pytest.mark.parametrize("name", REWARDS)
def test_the_commands_of_the_readme_work_one_after_another(name: str, tmp_path: Path) -> None:
    for words in map(shortened, commands(name)):
        run(words, tmp_path)
    place = tmp_path / "runs" / name
    made = json.loads((place / "start" / "result.json").read_text())
    learned = json.loads((place / "rl" / "result.json").read_text())
    assert (made["status"], made["sft_steps"]) == ("finished", 2)
    assert (learned["status"], learned["rl_steps"]) == ("finished", 1)
    assert learned["success_after_greedy"] is not None
    assert (place / "rl" / "policy" / "model.safetensors").is_file()


@pytest.mark.full
@pytest.mark.parametrize("name", REWARDS)
def test_the_data_that_the_readme_makes_is_sound(name: str, tmp_path: Path) -> None:
    for words in commands(name):
        if words[0] == "python":
            run(words, tmp_path)
    place = tmp_path / "runs" / name
    shown = load_demonstrations([place / "demonstrations.jsonl"])
    assert len(shown) == 70
    assert 0.3 < sum(len(one.messages) == 2 for one in shown) / len(shown) < 0.7
    parts = [Dataset.load(place / f"{part}.jsonl") for part in ("train", "val", "test")]
    questions = [{task.fields["question"] for task in part} for part in parts]
    assert not questions[0] & (questions[1] | questions[2])
    assert not questions[1] & questions[2]
    check(resolve_reward(REWARDS[name]), parts[0])
