"""examples/orchestration: the document's scripts run as written there, and its files are sound."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tutelage.orchestration import read_workers
from tutelage.orchestration.catalog import check_plan
from tutelage.orchestration.formats import read_workflows
from tutelage.orchestration.journal import read_plan
from tutelage.orchestration.synthetic import builtin_graph

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


def test_an_instruction_of_ones_own_is_planned(folder: Path) -> None:
    done = python(folder, "scripts/test_real_api.py", "Transcribe the audio", "--json")
    row = json.loads(done.stdout)
    assert row["plan"]["instruction"] == "Transcribe the audio"


def test_the_files_are_sound() -> None:
    workers = read_workers(HERE / "workers.json")
    assert [worker.cost(1000, 0) for worker in workers] == pytest.approx([0.03, 0.002])
    assert all(worker.key_env == "OPENAI_API_KEY" for worker in workers)
    plan = read_plan(json.loads((HERE / "plan.json").read_text()))
    check_plan(plan, builtin_graph().catalog)
    assert plan.dependencies == ((), (0,), (0, 1))
