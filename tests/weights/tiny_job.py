"""Jobs of a few seconds: an untrained tiny model, a reward that differs within every group."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tutelage.runs.folder import RunFolder, create
from tutelage.runs.progress import Progress
from tutelage.testing import tiny_policy
from tutelage.weights import jobs
from tutelage.weights.config import resolve

from .parrot import rows, write_rows
from .samples import LAPTOP

REWARD = '''
def vary(prediction, trajectory):
    """Differs within a group whatever the policy says, so that an untrained one is updated."""
    ids = [i for call in trajectory.calls for i in call.sampled.token_ids]
    return (sum(ids) % 3) / 2


def same(prediction, trajectory):
    """Never differs."""
    return 1.0
'''

KEYS: dict[str, object] = {
    "agent.tools": "[calculator]",
    "agent.max_tokens_per_turn": 10,
    "agent.max_turns": 2,
    "agent.num_chains": 3,
    "rollout.max_len": 256,
    "data.train_batch_size": 2,
    "actor.optim.lr": 1e-2,
    "critic.optim.lr": 1e-2,
    "trainer.total_training_steps": 5,
    "trainer.save_freq": 2,
    "trainer.test_freq": -1,
    "trainer.val_tasks": 2,
    "trainer.val_before_train": "false",
    "trainer.control": "false",
    "trainer.threads": 1,
    "seed": 4,
}


class Killed(BaseException):
    """Stands for what ends a process in the middle."""


class KillAt(Progress):
    """A progress that ends the process when a phase has done that many steps."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, done: int, values: Mapping[str, float]) -> None:
        """End it."""
        if done == self.at:
            raise Killed


class Notes(Progress):
    """Keeps what was noted."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keep it."""
        self.notes.append(text)


def material(folder: Path) -> Path:
    """Model, tasks and reward in a folder."""
    tiny_policy("qwen2", 3).save(folder / "model")
    write_rows(folder / "train.jsonl", rows(0, 7))
    write_rows(folder / "val.jsonl", rows(7, 2))
    (folder / "rewards.py").write_text(REWARD)
    return folder


def overrides(source: Path, **changed: object) -> list[str]:
    """The overrides of a job on `source`; keys are written with `__` for dots."""
    keys = {
        "model.path": source / "model",
        "data.train_files": source / "train.jsonl",
        "data.val_files": source / "val.jsonl",
        "agent.reward_name": f"{source / 'rewards.py'}:vary",
        **KEYS,
        **{name.replace("__", "."): value for name, value in changed.items()},
    }
    return [f"{key}={value}" for key, value in keys.items() if value is not None]


def run(source: Path, out: Path, **changed: object) -> RunFolder:
    """Train to the end."""
    folder = create(out)
    jobs.train(
        resolve("math", overrides(source, **changed), machine=LAPTOP),
        folder,
        Progress(),
    )
    return folder


def killed_and_resumed(source: Path, out: Path, *, at: int, **changed: object) -> RunFolder:
    """Train until a step of reinforcement learning, end there, and resume."""
    folder = create(out)
    resolved = resolve("math", overrides(source, **changed), machine=LAPTOP)
    try:
        jobs.train(resolved, folder, KillAt(at))
    except Killed:
        (folder.path / "result.json").unlink(missing_ok=True)
    else:
        raise AssertionError("it was never killed")
    jobs.resume(folder, Progress())
    return folder


def steps(folder: RunFolder) -> list[dict[str, Any]]:
    """The metric lines of reinforcement learning."""
    return [line for line in folder.read_metrics() if line["phase"] == "rl"]
