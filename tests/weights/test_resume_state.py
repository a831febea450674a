"""Killed between two checkpoints and resumed, a run equals one that was not: all kinds of state.

Every estimator in the full suite; else one run for each thing that a checkpoint must hold.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from system.outcome import assert_equal, outcome

from tutelage.algorithms.extensions import ESTIMATORS
from tutelage.runs.folder import RunFolder

from .tiny_job import killed_and_resumed, material, run, steps

KINDS: dict[str, dict[str, object]] = {
    "critic": {"algorithm__adv_estimator": "gae", "trainer__critic_warmup": 1},
    "critic of its own": {"algorithm__adv_estimator": "gae", "critic__model__path": "MODEL"},
    "reference": {"actor__use_kl_loss": "true", "actor__kl_loss_type": "full"},
    "adaptive coefficient": {
        "algorithm__use_kl_in_reward": "true",
        "algorithm__kl_ctrl__type": "adaptive",
        "algorithm__kl_ctrl__horizon": 20,
        "algorithm__kl_ctrl__kl_coef": 0.1,
    },
    "refills": {"algorithm__filter_groups__enable": "true", "agent__num_chains": 2},
    "greedy baselines": {"algorithm__adv_estimator": "remax"},
    "random selection": {
        "actor__policy_loss__loss_mode": "clip_cov",
        "actor__policy_loss__clip_cov_ratio": 0.1,
        "actor__policy_loss__clip_cov_lb": 0.01,
        "actor__ppo_epochs": 2,
        "actor__ppo_mini_batch_size": 3,
    },
}
TOLD_BY_ANOTHER = (
    "critic of its own",
    "reference",  # which the adaptive coefficient has too
    "greedy baselines",
    "random selection",
)
"""Kinds whose state another kind has too."""
REST = tuple(name for name in ESTIMATORS if name not in ("gae", "remax", "grpo"))


@pytest.fixture(scope="module")
def source(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return material(tmp_path_factory.mktemp("source"))


def told(folder: RunFolder) -> dict[str, Any]:
    """The outcome without where it lies."""
    found = outcome(folder.path)
    del found["result"]["policy"]
    return found


def check(source: Path, tmp_path: Path, keys: dict[str, object]) -> None:
    keys = {k: source / "model" if v == "MODEL" else v for k, v in keys.items()}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole = run(source, tmp_path / "a" / "run", **keys)
    lines = steps(whole)
    assert len(lines) == 5
    assert any(line.get("grad_norm", 0.0) > 0 for line in lines), "nothing was trained"
    broken = killed_and_resumed(source, tmp_path / "b" / "run", at=4, **keys)
    assert_equal(told(broken), told(whole))


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=pytest.mark.full) if k in TOLD_BY_ANOTHER else k for k in KINDS],
)
def test_each_kind_of_state(source: Path, tmp_path: Path, kind: str) -> None:
    check(source, tmp_path, KINDS[kind])


@pytest.mark.full
@pytest.mark.parametrize("name", REST)
def test_every_other_estimator(source: Path, tmp_path: Path, name: str) -> None:
    check(source, tmp_path, {"algorithm__adv_estimator": name})


@pytest.mark.full
def test_the_kept_start_is_the_reference_of_a_resumed_embedded_run(
    source: Path, tmp_path: Path
) -> None:
    """The embedded policy's start lies nowhere but in the checkpoint."""
    keys: dict[str, object] = {
        "model__path": None,
        "sft__max_steps": 2,
        "sft__cooldown_steps": 1,
        "sft__mixed_steps": 1,
        "sft__batch_size": 2,
        "data__train_files": None,
        "data__val_files": None,
        "agent__tools": None,
        "actor__use_kl_loss": "true",
        "trainer__total_training_steps": 4,
        "trainer__save_freq": 1,
    }
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    whole = run(source, tmp_path / "a" / "run", **keys)
    broken = killed_and_resumed(source, tmp_path / "b" / "run", at=3, **keys)
    assert_equal(told(broken), told(whole))
    distances = [line["kl/ref"] for line in steps(whole)]
    assert distances[0] == pytest.approx(0, abs=1e-6)
    assert max(distances[1:]) > 1e-6
