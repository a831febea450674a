"""The document's configuration, and what the data of a planner's run holds twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tutelage.config.overrides import parse_overrides
from tutelage.errors import ConfigError
from tutelage.orchestration.planner.settings import PlannerConfig, read_keys, read_settings
from tutelage.orchestration.setup import PlannerDatasets, read_datasets

DOCUMENT = """
training:
  phase1_supervised:
    batch_size: 32
    learning_rate: 1e-4
    num_epochs: 50
    lambda_dag: 0.3
    train_data_size: 300
    synthetic_augmentations: 1000
  phase2_rl:
    algorithm: "PPO"
    learning_rate: 3e-5
    num_episodes: 1000
    max_steps_per_episode: 50
    gamma: 0.99
    epsilon: 0.2
    alpha: 10.0      # Success reward weight
    beta: 0.1       # Cost penalty weight
    gamma_latency: 0.01  # Latency penalty weight
    shaped_reward: 0.1   # Reward per successful subtask
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_documents_file_is_read_with_its_numbers_that_yaml_takes_for_text(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, DOCUMENT)
    training = read_settings(path)
    assert training.phase1_supervised.learning_rate == 1e-4
    assert training.phase1_supervised.synthetic_augmentations == 1000
    assert training.phase2_rl.learning_rate == 3e-5
    assert read_keys(path)["training.phase1_supervised.train_data_size"] == 300
    assert read_settings(None, read_keys(path)) == read_settings(path)


def test_overrides_win_and_may_be_short(tmp_path: Path) -> None:
    typed = parse_overrides(["lambda_dag=0.1"])
    given = {override.spelling: override.value for override in typed}
    found = read_settings(write(tmp_path, DOCUMENT), given).phase1_supervised
    assert (found.lambda_dag, found.batch_size) == (0.1, 32)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {phase1_supervised: {learning_rte: 1}}", "learning_rate"),
        ("training: {phase1_supervised: {batch_size: thirty}}", "batch_size='thirty'"),
        ("training: {phase1_supervised: {num_epochs: 0}}", "num_epochs=0"),
        ("training: {phase2_rl: {gamma: lots}}", "gamma"),
        ("a: [", "invalid YAML"),
    ],
)
def test_bad_files_are_refused_with_key_and_value(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(write(tmp_path, text))


# ------------------------------------------------------------ data of a planner's run


def row(number: int, *tools: str, words: str = "") -> dict[str, Any]:
    """One row of a training set: a chain of tools."""
    parents = [[k - 1] if k else [] for k in range(len(tools))]
    targets = {"task_types": tools, "dependencies": parents}
    return {"instruction": words or f"do {number}", "targets": targets}


def write_rows(path: Path, rows: Any) -> str:
    path.write_text(json.dumps(rows))
    return str(path)


def sets_of(**given: Any) -> PlannerDatasets:
    request = PlannerConfig(phase="1", **given)
    return read_datasets(request, request.settings().phase1_supervised)


def test_test_queries_that_stand_in_the_training_file_are_named(tmp_path: Path) -> None:
    train = [row(k, "read") for k in range(10)]
    test = [row(3, "read"), row(77, "read"), row(5, "read", words="do  5")]
    test[0]["id"] = "seen"
    found = sets_of(
        train=write_rows(tmp_path / "a.json", train), test=write_rows(tmp_path / "b.json", test)
    )
    assert found.leaks == ("seen", "row 2")
    assert found.facts["overlap"].startswith("2 of 3 test tasks are also training tasks")
    assert found.facts["overlap"].endswith("(in Python test_dataset=)")
