"""The cold start goes by what it measures: when each of its two parts ends."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tutelage.cli.outcome import show_outcome
from tutelage.runs.folder import RunFolder, create
from tutelage.runs.inputs import load_tasks
from tutelage.runs.progress import Progress
from tutelage.store import open_store
from tutelage.tasks.arithmetic import make_tasks
from tutelage.types import Task
from tutelage.weights import cold_start, jobs
from tutelage.weights.config import resolve

from .samples import LAPTOP

SMALL = [
    "steps=0",
    "sft.batch_size=2",
    "sft.max_steps=6",
    "sft.eval_every=2",
    "sft.cooldown_steps=2",
    "trainer.val_tasks=4",
    "trainer.control=false",
]


class Found:
    """A measurement that says what it is told to."""

    judged, rollouts = 1, (None,)

    def __init__(self, success: float) -> None:
        self.success = self.solved = self.mean_reward = success


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """What the cold start will measure, greedy and sampled, one number after the other."""
    numbers: dict[str, list[float]] = {"greedy": [], "sampled": []}

    def glance(ctx: Any, tasks: Sequence[Task], label: str, warm: float, values: Any) -> Found:
        return Found(numbers["sampled" if warm else "greedy"].pop(0))

    monkeypatch.setattr(cold_start, "quick_eval", glance)
    return numbers


def run(tmp_path: Path, *keys: str) -> tuple[RunFolder, dict[str, Any]]:
    folder = create(tmp_path / "run")
    result = jobs.train(resolve("math", [*SMALL, *keys], machine=LAPTOP), folder, Progress())
    return folder, result


def under_the_table(folder: RunFolder, result: dict[str, Any]) -> list[str]:
    """The shares that the command prints of the clean demonstrations."""
    stream = io.StringIO()
    show_outcome(Console(file=stream, width=120), folder, result)
    said = "after the clean demonstrations alone"
    told = [line for line in stream.getvalue().splitlines() if said in line]
    return [share for line in told for share in re.findall(r"[\d.]+ %", line)]


def test_skill_ends_the_clean_part_and_guessing_the_mixed_one(
    one_thread: None,
    tmp_path: Path,
    measured: dict[str, list[float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cold_start, "MIXED_EVERY", 2)
    measured["greedy"] = [0.5, 0.95, 1.0]  # skilled after 4 steps; the last after the cool-down
    measured["sampled"] = [0.6, 0.2]
    folder, result = run(tmp_path, "data.level=hard")
    assert measured == {"greedy": [], "sampled": []}
    assert result["cold_start_steps"] == 4 + 2 + 2 * cold_start.MIXED_EVERY
    assert result["mixed_steps"] == 2 * cold_start.MIXED_EVERY
    # What stands under the table is of the table's tasks; what decided was of easier ones.
    assert under_the_table(folder, result) == ["0.0 %"]
    with open_store(folder.store, create=False) as store:
        tasks = [
            sorted(r.task.id for r in store.rollouts(folder.name, label=label))
            for label in ("clean/greedy", "before/greedy")
        ]
    assert len(tasks[0]) == 4
    assert tasks[0] == tasks[1]
    assert "skill_greedy" not in result
    assert 0 <= result["success_clean_greedy"] <= 1
    losses = [x["loss/sft"] for x in folder.read_metrics() if x["phase"] == "cold_start"]
    assert len(losses) == result["cold_start_steps"]


@pytest.mark.full
def test_both_parts_end_without_success(
    one_thread: None, tmp_path: Path, measured: dict[str, list[float]]
) -> None:
    measured["greedy"] = [0.0, 0.1, 0.1, 0.1]
    result = run(tmp_path, "sft.mixed_steps=5")[1]
    assert result["cold_start_steps"] == 6 + 2 + 5
    assert measured["greedy"] == []


@pytest.mark.full
def test_no_mixed_part(one_thread: None, tmp_path: Path, measured: dict[str, list[float]]) -> None:
    measured["greedy"] = [1.0, 1.0]
    result = run(tmp_path, "sft.mixed_steps=0")[1]
    assert result["cold_start_steps"] == 2 + 2
    assert result["mixed_steps"] == 0


def test_the_hard_level_shows_few_of_its_own() -> None:
    tasks = load_tasks(resolve("math", ["data.level=hard"], machine=LAPTOP).config)
    hard = {t.fields["question"] for t in make_tasks("hard", "train", len(tasks.shown), 0)}
    easy = {t.fields["question"] for t in make_tasks("default", "train", len(tasks.shown), 0)}
    shown = [t.fields["question"] for t in tasks.shown]
    assert all(q in easy or q in hard for q in shown)
    share = sum(q not in easy for q in shown) / len(shown)
    assert 0.03 < share < 0.06
    assert [t.fields["question"] for t in tasks.train] == [
        t.fields["question"] for t in make_tasks("hard", "train", len(tasks.train), 0)
    ]
