"""The command, and the small material that runs are made of.

Its fixtures import what needs torch: the process that only deals out tests reads this file too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .command import Command

if TYPE_CHECKING:
    from .reference import Reference

REWARDS = '''
import itertools
import os
import signal

from tutelage import reward

calls = itertools.count(1)


@reward(isolation="none")
def vary(prediction, trajectory):
    """Differs within a group whatever the policy says, so that even an untrained one is updated.

    With `KILL_AT` in the environment the call of that number kills the process, which is the
    run's own: a kill at an exactly known moment.
    """
    if next(calls) == int(os.environ.get("KILL_AT", "0")):
        os.kill(os.getpid(), signal.SIGKILL)
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
    from weights.parrot import make_parrot, rows, write_rows

    folder = tmp_path_factory.mktemp("material")
    make_parrot(folder / "parrot")
    write_rows(folder / "train.jsonl", rows(0, 16))
    write_rows(folder / "val.jsonl", rows(16, 4))
    (folder / "rewards.py").write_text(REWARDS)
    return folder


Arguments = Callable[..., list[str]]


def command_line(flags: dict[str, str | None], keys: dict[str, object]) -> list[str]:
    """`--flag value` and `key=value`; a flag that is None is left out."""
    given = [(f"--{name}", value) for name, value in flags.items() if value is not None]
    return [part for pair in given for part in pair] + [f"{k}={v}" for k, v in keys.items()]


@pytest.fixture(scope="session")
def embedded(material: Path) -> Arguments:
    """Arguments of a run through all phases, cold start and control included, in seconds."""
    usual_flags = {
        "seed": "3",
        "steps": "4",
        "output": "run",
        "reward": f"{material / 'rewards.py'}:vary",
    }
    usual_keys = {
        "trainer.control": "true",
        "sft.max_steps": 6,
        "sft.eval_every": 3,
        "sft.cooldown_steps": 2,
        "sft.mixed_steps": 2,
        "sft.batch_size": 4,
        "agent.max_tokens_per_turn": 16,
        "agent.num_chains": 4,
        "data.train_batch_size": 3,
        "trainer.save_freq": 3,
        "trainer.test_freq": 3,
        "trainer.val_tasks": 4,
        "trainer.stop_at_success": "null",
    }

    def arguments(keys: dict[str, object] | None = None, **flags: str | None) -> list[str]:
        return ["train", "math", *command_line(usual_flags | flags, usual_keys | (keys or {}))]

    return arguments


@pytest.fixture(scope="session")
def with_tools(material: Path) -> Arguments:
    """Arguments of a run of a given model that uses a tool: several updates a step, no control."""
    usual_flags = {
        "seed": "3",
        "steps": "5",
        "output": "run",
        "model": str(material / "parrot"),
        "tools": "calculator",
        "train": str(material / "train.jsonl"),
        "val": str(material / "val.jsonl"),
        "reward": f"{material / 'rewards.py'}:vary",
    }
    usual_keys = {
        "agent.max_tokens_per_turn": 40,
        "agent.num_chains": 4,
        "actor.ppo_mini_batch_size": 8,
        "data.train_batch_size": 4,
        "trainer.control": "false",
        "trainer.save_freq": 2,
        "trainer.test_freq": 2,
        "trainer.stop_at_success": "null",
    }

    def arguments(keys: dict[str, object] | None = None, **flags: str | None) -> list[str]:
        return ["train", "math", *command_line(usual_flags | flags, usual_keys | (keys or {}))]

    return arguments


@pytest.fixture(scope="session")
def references(
    embedded: Arguments, with_tools: Arguments, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Reference]:
    """A run of the embedded job through all its phases, and one of a given model with tools; each
    is made when it is first asked for."""
    from .reference import Reference

    makers = {"embedded": embedded, "with_tools": with_tools}

    class References(dict[str, Reference]):
        def __missing__(self, kind: str) -> Reference:
            self[kind] = Reference(makers[kind](), tmp_path_factory.mktemp(kind))
            return self[kind]

    return References()
