"""A split that stands in another one: every kind of run counts it, says it and titles itself so."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.weights.parrot import rows, write_rows
from typer.testing import CliRunner

from tutelage import RL, Trainer, rollout
from tutelage.cli import build_app
from tutelage.resources import LLM
from tutelage.runs.progress import Progress
from tutelage.tasks.dataset import Dataset
from tutelage.testing import tiny_policy


def invoke(*words: object) -> Any:
    result = CliRunner().invoke(build_app(), [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step whose three files are one, which repeats a row; and its console."""
    folder = tmp_path_factory.mktemp("overlap")
    tiny_policy().save(folder / "model")
    write_rows(folder / "all.jsonl", [*rows(0, 8), {**rows(0, 1)[0], "id": "again"}])
    write_rows(folder / "other.jsonl", rows(100, 4))
    done = invoke(
        "train", "rl", "--model", folder / "model", "--train", folder / "all.jsonl",
        "--val", folder / "all.jsonl", "--test", folder / "all.jsonl", "--tools", "calculator",
        "--reward", "math", "--steps", 1, "--output", folder / "run", "adv_estimator=grpo",
        "batch_size=2", "num_chains=2", "agent.max_turns=2", "trainer.threads=1",
        "trainer.test_freq=1", "trainer.control=false", "agent.max_tokens_per_turn=4",
    )  # fmt: skip
    (folder / "console.txt").write_text(done.output)
    return folder


@pytest.mark.full
def test_the_console_the_result_and_the_report_say_it(place: Path) -> None:
    said = " ".join((place / "console.txt").read_text().split())
    assert "held-out success," not in said
    assert "9 of 9 test tasks are also training tasks" in said
    assert "1 of 9 training tasks are duplicates" in said
    assert "1 of 9 test tasks are duplicates" in said
    assert "success, 9 tasks" in said
    result = json.loads((place / "run" / "result.json").read_text())
    assert result["overlap"] == {
        "val_in_train": 9, "test_in_train": 9,
        "train_repeated": 1, "val_repeated": 0, "test_repeated": 1,
    }  # fmt: skip
    report = (place / "run" / "report.html").read_text()
    assert "held-out" not in report
    assert "9 of 9 test tasks are also training tasks" in report
    shown = invoke("show", place / "run").stdout
    assert "held-out success" not in shown
    assert "9 of 9 test tasks are also training tasks" in shown
    assert "9 tasks trained on" in " ".join(invoke("runs", "--below", place).stdout.split())
    compared = invoke("compare", place / "run").stdout
    assert "held-out" not in compared
    assert "9 of 9 test tasks are also training tasks" in " ".join(compared.split())


def test_eval_knows_what_a_run_was_trained_on(place: Path) -> None:
    def counts(name: str) -> tuple[Any, Any]:
        done = invoke("eval", place / "run", "--test", place / name, "--json")
        record = json.loads(done.stdout)
        return record["test_in_train"], record["test_repeated"]

    assert counts("all.jsonl") == (9, 1)
    assert counts("other.jsonl") == (0, 0)
    shown = invoke("eval", place / "run", "--test", place / "all.jsonl").stdout
    assert "9 of 9 test tasks are also training tasks" in shown
    moved = (place / "all.jsonl").rename(place / "moved.jsonl")
    try:
        done = invoke("eval", place / "run", "--test", moved, "--json")
        assert json.loads(done.stdout)["test_in_train"] is None
    finally:
        moved.rename(place / "all.jsonl")


@rollout
async def answers(task: Any, llm: LLM) -> float:
    """One call, any reward."""
    return float(len((await llm.chat(task["question"], max_tokens=2)).reply.content or "") % 2)


def test_a_trainer_counts_its_datasets(
    tmp_path: Path, one_thread: None, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = [{"question": f"What is {i} + 1?", "answer": i + 1} for i in range(4)]
    keys = {
        "steps": 1, "agent.num_chains": 2, "data.train_batch_size": 2, "agent.max_turns": 1,
        "agent.max_tokens_per_turn": 2, "rollout.max_len": 64, "trainer.device": "cpu",
        "trainer.threads": 1,
    }  # fmt: skip
    trainer = Trainer(
        algorithm=RL(keys),
        train_dataset=[*tasks, tasks[0]],
        val_dataset=tasks[:3],
        test_dataset=[*tasks[:1], {"question": "What is 9 + 1?", "answer": 10}],
        policy=tiny_policy(),
        output_dir=tmp_path / "run",
        progress=Progress(),
    )
    with caplog.at_level(logging.WARNING, logger="tutelage"):
        result = trainer.fit(answers)
    assert result.details["overlap"] == {
        "val_in_train": 3, "test_in_train": 1,
        "train_repeated": 1, "val_repeated": 0, "test_repeated": 0,
    }  # fmt: skip
    assert "1 of 2 test tasks are also training tasks" in caplog.text
    ids = [t.id for t in Dataset.load(tmp_path / "run" / "tasks" / "train.jsonl")]
    assert len({*ids}) == 5
