"""`Trainer(algorithm=SFT(...))`: a policy learns demonstrations, its agent plays the test."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tutelage import LLM, RL, SFT, Trainer, rollout
from tutelage.errors import ConfigError, RunError
from tutelage.runs.progress import Progress
from tutelage.store import open_store
from tutelage.testing import tiny_policy
from tutelage.types import Mode

TESTS = [{"question": f"Say {letter}", "answer": "yes"} for letter in "abc"]
SHOWN = [{"question": f"Say {letter}", "answer": "yes"} for letter in "abcdefgh"]


@rollout
async def says(task: dict[str, Any], llm: LLM) -> dict[str, float]:
    """One call; the reward is whether it says yes."""
    said = (await llm.chat(task["question"], max_tokens=4)).reply.content
    right = float((said or "").strip() == task["answer"])
    return {"reward": right, "exact": right}


@pytest.fixture
def demonstrations(tmp_path: Path) -> Path:
    path = tmp_path / "shown.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in SHOWN))
    return path


def supervised(file: Path, folder: Path, **options: Any) -> Trainer:
    keys = {
        "epochs": options.pop("epochs", 12),
        "batch_size": 8,
        "lr": 1e-2,
        "agent.max_tokens_per_turn": 4,
        "rollout.max_len": 128,
        "trainer.threads": 1,
        "actor.optim.warmup_steps": 0,
    }
    given: dict[str, Any] = {
        "test_dataset": TESTS,
        "policy": tiny_policy(),
        "output_dir": folder / "run",
    }
    return Trainer(algorithm=SFT(file, keys), **(given | options))


@pytest.mark.full
async def test_the_agent_plays_the_test_before_and_after(
    demonstrations: Path, tmp_path: Path, one_thread: None
) -> None:
    result = await supervised(demonstrations, tmp_path).train(says)
    assert result.status == "finished"
    assert result.details["sft_steps"] == 12
    assert result.details["success_before_greedy"] == 0.0
    assert result.details["success_after_greedy"] == 1.0
    assert result.policy is not None
    assert (result.policy / "model.safetensors").is_file()
    assert [m["phase"] for m in result.metrics] == ["before", *["sft"] * 12, "after"]
    told = json.loads((result.folder / "agent.json").read_text())
    assert told["agent"] == "says"
    written = (result.folder / "tasks" / "test.jsonl").read_text().splitlines()
    assert [json.loads(line)["question"] for line in written] == [t["question"] for t in TESTS]
    with open_store(result.folder / "store.db", create=False) as store:
        played = list(store.rollouts("run", mode=Mode.TEST, label="after/greedy"))
        assert store.count("run") == store.count("run", mode=Mode.TEST) == 4 * len(TESTS)
    assert [r.reward.parts["exact"] for r in played if r.reward is not None] == [1.0] * 3


def test_a_finished_run_is_not_trained_again_and_another_is_refused(
    demonstrations: Path, tmp_path: Path, one_thread: None
) -> None:
    first = supervised(demonstrations, tmp_path, epochs=1).fit(says)
    again = supervised(demonstrations, tmp_path, epochs=1).fit(says)
    assert again.details == first.details
    with pytest.raises(RunError, match="differs in"):
        supervised(demonstrations, tmp_path, epochs=1, seed=5).fit(says)


class Dying(Progress):
    """Ends the process as SIGKILL does, at a step, or once the test is played after training."""

    def __init__(self, at: int | None) -> None:
        self.at = at

    def step(self, done: int, values: Mapping[str, float]) -> None:
        if done == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def evaluation(self, label: str, done: int, total: int) -> None:
        if self.at is None and label.startswith("after"):
            os.kill(os.getpid(), signal.SIGKILL)


def _die(file: Path, folder: Path, at: int | None) -> None:
    torch.set_num_threads(1)
    supervised(file, folder, progress=Dying(at)).fit(says)


@pytest.mark.full
@pytest.mark.parametrize("at", [7, None], ids=["in training", "in the last test"])
def test_killed_and_resumed_is_the_same_bit_for_bit(
    at: int | None, demonstrations: Path, tmp_path: Path, one_thread: None
) -> None:
    killed = multiprocessing.get_context("spawn").Process(
        target=_die, args=(demonstrations, tmp_path / "killed", at)
    )
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    resumed = supervised(demonstrations, tmp_path / "killed").fit(says)
    whole = supervised(demonstrations, tmp_path / "whole").fit(says)
    assert resumed.policy is not None
    assert whole.policy is not None
    name = "model.safetensors"
    assert (resumed.policy / name).read_bytes() == (whole.policy / name).read_bytes()
    losses = [[m.get("loss/sft") for m in run.metrics] for run in (resumed, whole)]
    assert losses[0] == losses[1]
    assert resumed.success_after == whole.success_after


def test_without_tests_it_only_learns(
    demonstrations: Path, tmp_path: Path, one_thread: None
) -> None:
    result = supervised(demonstrations, tmp_path, epochs=1, test_dataset=None).fit(says)
    assert result.rollouts == 0
    assert result.reward_after is None
    assert not (result.folder / "tasks").exists()


def test_tasks_to_learn_from_are_refused(demonstrations: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="learns from its demonstrations"):
        supervised(demonstrations, tmp_path, train_dataset=TESTS).fit(says)
    with pytest.raises(ConfigError, match="does not play training tasks"):
        supervised(demonstrations, tmp_path).dev(says)


def test_the_keys_are_those_of_train_sft(demonstrations: Path) -> None:
    resolved = SFT(demonstrations, epochs=3, lr=0.5).resolve(test=["t.jsonl"], reward="math")
    assert resolved.config.recipe == "sft"
    assert resolved.config.data.train_files == (str(demonstrations),)
    assert resolved.config.trainer.total_epochs == 3
    assert resolved.config.actor.optim.lr == 0.5
    with pytest.raises(ConfigError, match="epochs"):
        SFT(demonstrations, epocs=3).resolve()
    assert SFT([demonstrations, "b.jsonl"]).demonstrations == [str(demonstrations), "b.jsonl"]
    assert isinstance(SFT("a.jsonl"), RL)
