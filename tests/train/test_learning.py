"""Reinforcement learning raises reward: from a policy that mostly guesses to one that is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tutelage.config import resolve
from tutelage.train import jobs
from tutelage.train.folder import create
from tutelage.train.progress import Silent

from .parrot import make_parrot, rows, write_rows
from .samples import LAPTOP


@pytest.fixture(scope="module")
def guesser(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that calls its tool in about a fifth of its rollouts, and guesses in the others."""
    return make_parrot(tmp_path_factory.mktemp("guesser") / "model", guesses=0.7)


def test_a_dozen_steps_teach_it_to_answer(guesser: Path, tmp_path: Path) -> None:
    train = write_rows(tmp_path / "train.jsonl", rows(0, 24))
    val = write_rows(tmp_path / "val.jsonl", rows(24, 16))
    keys = [
        f"model.path={guesser}",
        f"data.train_files={train}",
        f"data.val_files={val}",
        "agent.tools=[calculator]",
        "actor.optim.lr=4e-3",
        "data.train_batch_size=4",
        "agent.num_chains=16",
        "trainer.total_training_steps=14",
        "trainer.test_freq=-1",
        "trainer.control=false",
        "seed=1",
    ]
    folder = create(tmp_path / "run")
    result = jobs.train(resolve("math", keys, machine=LAPTOP), folder, Silent())
    steps = [line for line in folder.read_metrics() if line["phase"] == "rl"]
    rewards = [line["reward/mean"] for line in steps]
    print([round(r, 2) for r in rewards])
    assert len(rewards) == 14
    assert sum(rewards[:2]) / 2 < 0.5
    assert sum(rewards[-2:]) / 2 > 0.8
    assert result["success_after_sampled"] > result["success_before_sampled"] + 0.3
    assert result["success_after_greedy"] > result["success_before_greedy"]
    assert result["max_dlogp"] < 1e-4
    assert all(line["max_dlogp"] < 1e-4 for line in steps)
