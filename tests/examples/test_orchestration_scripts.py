"""examples/orchestration: the document's scripts run as written there, and its files are sound."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tutelage.orchestration import read_workers
from tutelage.orchestration.data.synthetic import builtin_graph
from tutelage.orchestration.data.workflows import read_workflows
from tutelage.orchestration.execution.record import read_plan
from tutelage.orchestration.plan.catalog import check_plan
from tutelage.orchestration.planner.saving import load_planner

HERE = Path(__file__).parents[2] / "examples" / "orchestration"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy, in which scripts may write."""
    shutil.copytree(HERE, tmp_path / "orchestration")
    return tmp_path / "orchestration"


def python(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if k not in ("OPENAI_API_KEY", "COLUMNS")}
    return subprocess.run(
        [sys.executable, *args],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_collecting_as_written(folder: Path) -> None:
    done = python(
        folder,
        "scripts/collect_training_data.py",
        "--num_executions",
        "20",
        "--output_dir",
        "execution_logs/",
    )
    assert done.returncode == 0, done.stderr
    assert "SIMULATED" in done.stderr
    logs = read_workflows(folder / "execution_logs" / "executions.jsonl", builtin_graph().catalog)
    assert len(logs) == 20


@pytest.mark.full
def test_a_single_task_as_written(folder: Path) -> None:
    done = python(folder, "test_real_api.py", "--seed", "0")
    assert done.returncode == 0, done.stderr
    assert "a mock: no model was asked" in done.stdout
    row = json.loads((folder / "execution_logs" / "executions.jsonl").read_text())
    assert row["mock"] is True
    assert row["planner_outputs"]["workflow_graph"]["adjacency"] == [
        [0, 1, 1],
        [0, 0, 1],
        [0, 0, 0],
    ]


@pytest.mark.full  # ten seconds; the command's own tests train a planner
def test_preparing_and_phase_1_as_written(folder: Path) -> None:
    """The document's chain: logs, a training set, a planner; then what it plans with it."""
    collected = python(
        folder, "scripts/collect_training_data.py", "--num_executions", "60", "--output_dir",
        "execution_logs/",
    )  # fmt: skip
    assert collected.returncode == 0, collected.stderr
    prepared = python(
        folder, "scripts/prepare_training_data.py", "--logs", "execution_logs/", "--output",
        "training_data.json",
    )  # fmt: skip
    assert prepared.returncode == 0, prepared.stderr
    logs = [
        json.loads(line)
        for line in (folder / "execution_logs" / "executions.jsonl").read_text().splitlines()
    ]
    rows = json.loads((folder / "training_data.json").read_text())
    # Only what succeeded becomes an example.
    succeeded = {row["instruction"] for row in logs if row["success"]}
    assert {row["instruction"] for row in rows} == succeeded
    assert {"model_selections", "task_types", "dependencies"} <= set(rows[0]["targets"])

    (folder / "config.yaml").write_text(
        "training: {phase1_supervised: {learning_rate: 1e-4, width: 16, beam: 2, refit: false}}"
    )
    trained = python(
        folder, "scripts/train_phase1.py", "--config", "config.yaml", "--data",
        "training_data.json", "--output_dir", "checkpoints/", "--epochs", "2", "--batch_size", "16",
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    place = folder / "checkpoints"
    best = (place / "phase1_best.pth").read_bytes()
    assert best == (place / "phase1" / "checkpoints" / "phase1_best.pth").read_bytes()
    assert (place / "checkpoint_best.pth").is_file()
    settings = json.loads((place / "phase1" / "config.json").read_text())["config"]["keys"]
    assert settings["training.phase1_supervised.num_epochs"] == "2"
    assert settings["training.phase1_supervised.batch_size"] == "16"
    lines = (place / "phase1" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 2
    planner = load_planner(place / "phase1_best.pth")
    assert planner.vocabulary.workers, "the logs say who did what, so workers are learned too"
    tools = planner.plan(rows[0]["instruction"], 0).nodes
    assert all(node.tool in builtin_graph().catalog for node in tools)


def test_the_ppo_loop_of_the_document() -> None:
    loop = runpy.run_path(str(HERE / "ppo_loop.py"))
    means = loop["main"](2)
    assert len(means) == 2
    assert all(-8 <= mean <= 11 for mean in means)


def test_the_files_are_sound() -> None:
    workers = read_workers(HERE / "workers.json")
    assert [worker.cost(1000, 0) for worker in workers] == pytest.approx([0.03, 0.002])
    assert all(worker.key_env == "OPENAI_API_KEY" for worker in workers)
    plan = read_plan(json.loads((HERE / "plan.json").read_text()))
    check_plan(plan, builtin_graph().catalog)
    assert plan.dependencies == ((), (0,), (0, 1))


@pytest.mark.full
def test_phase_2_as_written_and_carrying_phase_1_along(folder: Path) -> None:
    first = {"epoch": 1, "model_state_dict": {}, "optimizer_state_dict": {}, "val_loss": 1.0}
    torch.save(first, folder / "phase1_best.pth")
    done = python(
        folder, "scripts/train_phase2.py", "--config", "config.yaml", "--checkpoint",
        "phase1_best.pth", "--output_dir", "checkpoints", "--episodes", "1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "one-step lookahead" in done.stdout
    state = torch.load(folder / "checkpoints" / "checkpoint_best.pth", weights_only=True)
    assert state["phase1"]["epoch"] == 1
    assert {"epoch", "model_state_dict", "optimizer_state_dict", "val_loss"} <= set(state)
