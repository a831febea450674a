"""An agent of a user's own, trained on ranks of a test by `Trainer` and by the command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tutelage import LLM, RL, Trainer, rollout
from tutelage.cli import build_app
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
AGENT = """
import os
from pathlib import Path

from tutelage import LLM, rollout


@rollout
async def digits(task, llm: LLM) -> float:
    with Path(os.environ["TUTELAGE_TEST_PLAYED"]).open("a") as file:
        file.write(os.environ["RANK"])
    said = (await llm.chat(f"Say a digit. {task['text']}", max_tokens=4)).reply
    return sum(c.isdigit() for c in said.content or "") / 4
"""


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


def train_on_other_tasks(out: Path) -> None:
    """The second rank was given another task."""
    own = [*TASKS[:7], {"id": "t7", "text": f"number {os.environ['RANK']}"}]
    trainer(out, own).fit(digits)


def train_wrongly(place: Path) -> None:
    """What is wrong is found on every rank, without a folder to write to."""
    os.chdir(place)
    trainer(None, endpoints={"nobody": "http://127.0.0.1:9"}).fit(digits)


def refused(place: Path, told: str, *words: str) -> None:
    """A command that the first rank alone answers, with a reason."""
    os.chdir(place)
    done = CliRunner().invoke(build_app(), [*words])
    assert (told in done.output) is (os.environ["RANK"] == "0"), done.output
    if os.environ["RANK"] != "0":
        assert (done.exit_code, done.output) == (0, "")


def command(place: Path, order: str, *words: str) -> None:
    """A command, in a folder."""
    os.chdir(place)
    jobs.changed(order)
    done = CliRunner().invoke(build_app(), [*words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    if os.environ["RANK"] != "0":
        assert done.output == ""
