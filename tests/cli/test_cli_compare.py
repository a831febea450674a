"""`tutelage compare`: runs of all kinds from their folders, on the terminal and in files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from .compared_runs import prompt_run, rewards, weights_run
from .conftest import Tutelage

AGENT = {"agent": "solve", "reward": "numeric_partial_credit", "remote": {}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prompt search, a supervised and a reinforced training, all on the same tasks."""
    runs = tmp_path_factory.mktemp("made") / "runs"
    start = rewards(80, 0.15, 3, 0.1)
    prompt_run(runs / "apo-1", rewards(80, 0.12, 1, 0.5), rewards(80, 0.96, 2))
    weights_run(runs / "sft-1", start, rewards(80, 0.5, 4), agent=AGENT, estimator="sft")
    weights_run(runs / "rl-1", start, rewards(80, 0.98, 5), agent=AGENT)
    return runs


@pytest.fixture
def three(made: Path, tmp_path: Path) -> Path:
    """A copy of them in the working directory."""
    return shutil.copytree(made, tmp_path / "runs")


def found(tutelage: Tutelage, *args: str) -> dict[str, Any]:
    """The comparison as JSON."""
    done = tutelage("compare", *args, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.full
def test_runs_of_three_kinds_in_one_table(tutelage: Tutelage, three: Path) -> None:
    done = tutelage("compare", "apo-1", "sft-1", "rl-1")
    assert done.exit_code == 0, done.output
    assert "3 runs on the same 80 held-out test tasks" in done.stdout
    lines = {line[:17].strip(): line[17:].split() for line in done.stdout.splitlines()}
    trained = "prompt, by apo weights, by sft weights, by grpo"
    assert lines["trained"] == trained.split()
    assert lines["verdict"] == ["improved"] * 3
    assert lines["cost"] == ["$", "0.2345", "$", "0.00", "$", "0.00"]
    assert lines["optimiser calls"] == ["36", "0", "0"]
    assert lines["tokens"][0] == "1,234,567"
    assert "rl-1 over sft-1" in done.stdout
    assert "other model: " in done.stdout
    assert "runs/apo-1/best_prompt.txt" in done.stdout


def test_every_number_is_in_the_json(tutelage: Tutelage, three: Path) -> None:
    told = found(tutelage, "apo-1", "sft-1", "rl-1")
    apo, sft, rl = told["runs"]
    assert apo["run"]["spent"] == {
        "rollouts": 760,
        "test_rollouts": 160,
        "calls": 1873,
        "optimiser_calls": 36,
        "tokens": 1_234_567,
        "dollars": 0.2345,
        "seconds": 68.4,
    }
    # Two calls a rollout, of 4 and 12 prompt tokens and 2 sampled ones each.
    assert rl["run"]["spent"]["rollouts"] == rl["run"]["spent"]["test_rollouts"] == 320
    assert rl["run"]["spent"]["calls"] == 640
    assert rl["run"]["spent"]["tokens"] == 320 * (4 + 12 + 4)
    assert sft["run"]["base_mark"] == rl["run"]["base_mark"] != apo["run"]["base_mark"]
    assert {r["run"]["grader"] for r in told["runs"]} == {"numeric_partial_credit"}
    after = rewards(80, 0.98, 5)
    assert rl["means"]["reward_after"] == pytest.approx(sum(after) / 80)
    assert rl["means"]["exact_after"] == pytest.approx(sum(r == 1 for r in after) / 80)
    assert rl["reward"]["low"] < rl["reward"]["mean"] < rl["reward"]["high"]
    assert rl["reward"]["wins"] + rl["reward"]["losses"] + rl["reward"]["ties"] == 80
    assert [(p["first"], p["second"]) for p in told["pairs"]] == [
        ("apo-1", "sft-1"), ("apo-1", "rl-1"), ("sft-1", "rl-1"),
    ]  # fmt: skip
    assert told["pairs"][2]["verdict"] == "improved"
    assert told["pairs"][2]["caveats"] == []
    assert told["same_tasks"] is True


def test_the_markdown_holds_the_same_cells(tutelage: Tutelage, three: Path) -> None:
    done = tutelage("compare", "apo-1", "rl-1", "--out", "table.md")
    assert done.exit_code == 0, done.output
    rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in (three.parent / "table.md").read_text().splitlines()
        if line.startswith("|")
    ]
    cells = {row[0]: row[1:] for row in rows}
    assert cells["verdict"] == ["**improved**", "**improved**"]
    assert cells["cost"] == ["$ 0.2345", "$ 0.00"]
    assert {len(row) for row in rows[1:20]} == {3}


def test_a_seed_prompt_that_won_is_compared_with_itself(tutelage: Tutelage, tmp_path: Path) -> None:
    run = prompt_run(tmp_path / "runs" / "a", [0.5] * 60, [0.5] * 60)
    from sqlalchemy import create_engine, text

    with create_engine(f"sqlite:///{run.store}").begin() as conn:
        conn.execute(text("delete from rollouts where label = 'best'"))
    result = json.loads(run.result.read_text())
    run.result.write_text(json.dumps(result | {"seed_components": result["components"]}))
    (row,) = found(tutelage, "a")["runs"]
    assert row["verdict"] == "no evidence"
    assert row["reward"]["ties"] == 60


def test_a_run_that_was_stopped_or_lost_its_store_says_less(
    tutelage: Tutelage, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    stopped = weights_run(runs / "stopped", [0.0] * 60, [], agent=AGENT)
    stopped.result.unlink()
    lost = prompt_run(runs / "lost", [0.0] * 60, [1.0] * 60)
    lost.store.unlink()
    done = tutelage("compare", "stopped", "lost")
    assert done.exit_code == 0, done.output
    assert "stopped is unfinished, so its numbers are not final" in done.stdout
    assert "lost: its store cannot be read" in done.stdout
    told = found(tutelage, "lost")["runs"][0]
    assert told["means"]["reward_after"] is None
    assert told["reward"] is None


def test_bad_input_is_refused_in_words(tutelage: Tutelage, three: Path) -> None:
    done = tutelage("compare", "rl-1", "--out", "table.pdf")
    assert done.exit_code == 2
    assert ".md" in done.stderr
    done = tutelage("compare", "rl-9")
    assert done.exit_code == 2
    assert "no run" in done.stderr
    assert "rl-1" in done.stderr
    (three.parent / "file").write_text("")
    done = tutelage("compare", "rl-1", "--out", "file/table.md")
    assert done.exit_code == 2
    assert "cannot write" in done.stderr
