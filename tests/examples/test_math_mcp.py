"""examples/math_mcp: its files, its grader, and its command with a model made on the spot."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="mcp is not installed: tutelage[mcp]")

from weights.parrot import make_parrot, rows

from tutelage.rewards import check, resolve_reward
from tutelage.store import open_store
from tutelage.tasks.dataset import Dataset
from tutelage.tools import resolve_tools
from tutelage.tools.registry import close_tools
from tutelage.types import Mode

HERE = Path(__file__).parents[2] / "examples" / "math_mcp"
SERVER = shlex.join([sys.executable, str(HERE / "calculator_server.py")])
FIELDS = {"id", "question", "chain", "result", "source"}


def test_the_files_are_what_the_script_writes(tmp_path: Path) -> None:
    script = HERE / "make_tasks.py"
    subprocess.run([sys.executable, str(script)], cwd=tmp_path, check=True, timeout=120)
    for name in ("train.jsonl", "val.jsonl"):
        assert tmp_path.joinpath(name).read_bytes() == HERE.joinpath(name).read_bytes()


def test_the_files_have_the_documents_fields_and_right_results() -> None:
    tools = resolve_tools(["calculator"])
    train, val = Dataset.load(HERE / "train.jsonl"), Dataset.load(HERE / "val.jsonl")
    for task in (*train, *val):
        assert {*task.fields, "id"} == FIELDS
        expression, _, result = task.fields["chain"].removeprefix("calculator: ").partition(" = ")
        assert tools["calculator"](expression) == task.fields["result"] == result
    assert not {t.fields["question"] for t in train} & {t.fields["question"] for t in val}
    check(resolve_reward(f"{HERE}/grader.py:math_result"), train)


@pytest.fixture(scope="module")
def grader() -> Any:
    spec = importlib.util.spec_from_file_location("math_mcp_grader", HERE / "grader.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("given", "truth", "same"),
    [("42", "42", True), (42, "42.1", True), (42, 43, False), ("A", "(A)", True), ("a", "B", False),
     ("3.14159", "pi", True), ("sqrt(2)", "1.4142", True), ("22/7 = around 3.14", "3.142857", True),
     ("= around 3.14", "22/7", True), (["1", "2"], ["1", "2.001"], True),
     (["1"], ["1", "2"], False),
     (["2", "1"], ["1", "2"], False), ("[1, 2]", [1, 2], True), ("the answer is 391", "391", True),
     ("6 = 5", "5", False), ("not 5", "5", False), ("5!", "5", False), ("", "", False),
     (None, "5", False), ("__import__('os')", "5", False)],
)  # fmt: skip
def test_the_documents_helpers(grader: Any, given: Any, truth: Any, same: bool) -> None:
    assert grader._evaluate_math_result(given, truth) is same


@pytest.fixture
def place(one_thread: None, tmp_path: Path) -> Path:
    """A folder with problems, and a model that often guesses."""
    tools = resolve_tools([f"mcp:{SERVER}"])
    make_parrot(tmp_path / "model", tool=tools["calculator"], guesses=0.7)
    close_tools(tools)
    for name, first in (("train", 0), ("val", 16)):
        lines = [
            {"id": row["id"], "question": row["question"], "chain": "calculator: 6 * 7 = 42",
             "result": str(row["answer"]), "source": "test"}
            for row in rows(first, 16)
        ]  # fmt: skip
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"{name}.jsonl").write_text(text)
    return tmp_path


@pytest.mark.full  # eight seconds
def test_the_program_of_the_documents_trains_the_agent(place: Path) -> None:
    """One pass over the problems with its own calls of the server; `--dev` trains nothing."""
    words = [sys.executable, str(HERE / "train_math_agent.py"), "--model", str(place / "model")]
    words += [f"--{split}={place}/{split}.jsonl" for split in ("train", "val")]
    keys = ["lr=1e-3", "agent.max_tokens_per_turn=40", "trainer.threads=1"]

    def run(*more: str) -> str:
        done = subprocess.run(
            [*words, *more], cwd=place, capture_output=True, text=True, timeout=280
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "by main" in run("--dev", *keys)
    assert not (place / "outputs").exists()
    assert "failures {}" in run("--epochs", "2", *keys)
    with open_store(place / "outputs" / "math_agent" / "store.db") as store:
        (found,) = store.runs()
        played = list(store.rollouts(found.id, mode=Mode.TRAIN))
    assert Counter(r.task.id for r in played) == dict.fromkeys((f"q{i}" for i in range(16)), 16)
    assert {r.reward.value for r in played if r.reward} == {0.0, 1.0}


@pytest.mark.full
def test_the_command_of_the_readme_trains_through_the_mcp_server(place: Path) -> None:
    """With a model that half of the time guesses; the server is a process of its own."""
    tmp_path = place
    readme = (HERE / "README.md").read_text().replace("\\\n", " ").splitlines()
    words = shlex.split(next(line for line in readme if "--model runs/start/policy" in line))
    places = {
        "runs/start/policy": str(tmp_path / "model"),
        "runs/math-mcp": str(tmp_path / "run"),
        "examples/math_mcp/train.jsonl": str(tmp_path / "train.jsonl"),
        "examples/math_mcp/val.jsonl": str(tmp_path / "val.jsonl"),
        "mcp:python examples/math_mcp/calculator_server.py,sum_1_to_n,lookup": f"mcp:{SERVER}",
        "lr=2e-4": "lr=1e-3",
        "30": "10",
    }
    args = [places.get(word, word) for word in words[1:]]
    small = ["batch_size=8", "num_chains=8", "trainer.val_tasks=16", "trainer.test_freq=-1"]
    main = "from tutelage.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", main, *args, *small],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    rewards = [line["reward/mean"] for line in metrics if line["phase"] == "rl"]
    assert sum(rewards[-3:]) / 3 > rewards[0] + 0.2, rewards
    assert result["success_after_sampled"] > result["success_before_sampled"]
    with open_store(tmp_path / "run" / "store.db") as store:
        (run,) = store.runs()
        used = [t for r in store.rollouts(run.id) for t in r.last.tool_results]
    assert {(t.name, t.error, t.text) for t in used} >= {("calculator", None, "42")}
