"""The command, and the small material that runs are made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from train.parrot import make_parrot, rows, write_rows

from .command import Command

REWARDS = '''
import os
import signal
from pathlib import Path


def vary(prediction, trajectory):
    """Differs within a group whatever the policy says, so that even an untrained one is updated.

    With `KILL_FILE` in the environment it counts its calls there, and kills the process at the
    one that the file asks for: a kill at an exactly known moment.
    """
    plan = os.environ.get("KILL_FILE")
    if plan and Path(plan).is_file():
        left = int(Path(plan).read_text()) - 1
        if left <= 0:
            Path(plan).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        Path(plan).write_text(str(left))
    ids = [i for call in trajectory.calls for i in call.sampled.token_ids]
    return {"reward": (sum(ids) % 3) / 2, "length": len(ids)}
'''


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is a system test, and may take longer than most."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.system)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture
def tutelage(tmp_path: Path) -> Command:
    """The command in an empty folder."""
    return Command(tmp_path)


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """A folder with a model that calls its tool about every third time, tasks and a reward."""
    folder = tmp_path_factory.mktemp("material")
    make_parrot(folder / "parrot", steps=100)
    write_rows(folder / "train.jsonl", rows(0, 16))
    write_rows(folder / "val.jsonl", rows(16, 4))
    (folder / "rewards.py").write_text(REWARDS)
    return folder


@pytest.fixture(scope="session")
def embedded(material: Path) -> Callable[..., list[str]]:
    """Arguments of a run through all phases, cold start and control included, in seconds."""

    def arguments(*more: str, seed: int = 3) -> list[str]:
        return [
            *("train", "math", "--seed", str(seed), "--steps", "4", "--output", "run"),
            *("--reward", f"{material / 'rewards.py'}:vary"),
            *("sft.max_steps=6", "sft.eval_every=3", "sft.cooldown_steps=2", "sft.mixed_steps=2"),
            *("sft.batch_size=4", "agent.max_tokens_per_turn=16", "trainer.val_tasks=4"),
            *("trainer.save_freq=3", "trainer.test_freq=3", "trainer.stop_at_success=null"),
            *("data.train_batch_size=3", "agent.num_chains=4"),
            *more,
        ]

    return arguments


@pytest.fixture(scope="session")
def with_tools(material: Path) -> Callable[..., list[str]]:
    """Arguments of a run of a given model that uses a tool, with several updates a step."""

    def arguments(*more: str, seed: int = 3, reward: str | None = None) -> list[str]:
        return [
            *("train", "math", "--seed", str(seed), "--steps", "5", "--output", "run"),
            *("--model", str(material / "parrot"), "--tools", "calculator"),
            *("--train", str(material / "train.jsonl"), "--val", str(material / "val.jsonl")),
            *("--reward", reward or f"{material / 'rewards.py'}:vary"),
            *("agent.max_tokens_per_turn=24", "actor.ppo_mini_batch_size=8"),
            *("trainer.save_freq=2", "trainer.test_freq=2", "trainer.stop_at_success=null"),
            *("data.train_batch_size=4", "agent.num_chains=4"),
            *more,
        ]

    return arguments
