"""An agent of a user's own, trained on ranks of a test by `Trainer` and by the command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tutelage import LLM, RL, Trainer, rollout
from tutelage.testing import tiny_policy

from . import jobs

PLAYED = "TUTELAGE_TEST_PLAYED"
"""Names the file in which each play notes the rank that it was on."""
KEYS: dict[str, Any] = {
    "lr": 1e-2,
    "actor.optim.warmup_steps": 0,
    "steps": 3,
    "data.train_batch_size": 4,
    "num_chains": 4,
    "agent.max_tokens_per_turn": 4,
    "rollout.max_len": 128,
    "actor.max_tokens_per_micro_batch": 80,
    "trainer.device": "cpu",
    "trainer.save_freq": 1,
}
TASKS = [{"id": f"t{i}", "text": f"number {i}"} for i in range(12)]


@rollout
async def digits(task: Any, llm: LLM) -> float:
    """A share of digits, for one call."""
    with Path(os.environ[PLAYED]).open("a") as file:
        file.write(os.environ["RANK"])
    said = (await llm.chat(f"Say a digit. {task['text']}", max_tokens=4)).reply
    return sum(c.isdigit() for c in said.content or "") / 4


def trainer(out: Path | None, tasks: list[dict[str, str]] | None = None, **more: Any) -> Trainer:
    """One rollout at a time, so that a sample does not depend on what is sampled beside it."""
    given: dict[str, Any] = {
        "algorithm": RL(KEYS),
        "policy": tiny_policy(max_positions=256),
        "train_dataset": tasks or TASKS[:8],
        "val_dataset": TASKS[8:],
        "n_runners": 1,
        "output_dir": out,
    }
    return Trainer(**given | more)


def train(out: Path, order: str) -> None:
    """Train it, or go on with what was begun there."""
    jobs.changed(order)
    result = trainer(out).fit(digits)
    assert (result.status, result.steps, result.folder) == ("finished", 3, out)


def train_wrongly(place: Path) -> None:
    """What is wrong is found on every rank, without a folder to write to."""
    os.chdir(place)
    trainer(None, endpoints={"nobody": "http://127.0.0.1:9"}).fit(digits)
