"""Rollouts that are played ahead of their steps: how far, which are dropped, and that the record
has what is needed to do it again."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tutelage.policy.model import load_policy
from tutelage.runs.folder import RunFolder, create
from tutelage.runs.progress import Progress
from tutelage.store import open_store
from tutelage.types import Mode
from tutelage.weights import asynchronous, jobs
from tutelage.weights.config import resolve

from .samples import LAPTOP
from .tiny_job import KillAt, Killed, Notes, material, overrides, steps

AGENT = '''
import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from tutelage.agents.tool_calling import ToolCallingAgent
from tutelage.types import Message


def steps_done():
    file = Path(os.environ["RUN"]) / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.is_file() else 0


@dataclass(frozen=True, slots=True)
class Waiting(ToolCallingAgent):
    """Asks, waits, and asks again. One rollout of the second group waits for three steps."""

    async def play(self, task, session, resources):
        call = await session.client.chat(task.messages(), sampling=self.sampling)
        slow = session.rollout_id in os.environ["SLOW"]
        while slow and steps_done() < 3:
            await asyncio.sleep(0.01)
        if "STOP" in os.environ and steps_done() >= 2:
            del os.environ["STOP"]
            signal.raise_signal(signal.SIGINT)
        messages = [*task.messages(), call.reply, Message("user", "go on")]
        call = await session.client.chat(messages, sampling=self.sampling)
        session.answer, session.stop = call.reply.content or "", "answer"
'''
STEPS, SIZE, CHAINS = 6, 2, 3
KEYS: dict[str, object] = {
    "async_training__staleness_threshold": 2,
    "agent__tools": "[]",
    "trainer__total_training_steps": STEPS,
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = material(tmp_path_factory.mktemp("source"))
    (folder / "agent.py").write_text(AGENT)
    return folder


def resolved(source: Path, **changed: object) -> Any:
    agent = f"{source / 'agent.py'}:Waiting"
    keys = overrides(source, agent__agent_type=agent, **KEYS, **changed)
    return resolve("math", keys, machine=LAPTOP)


@pytest.fixture(scope="module")
def run(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, list[str]]:
    """A run to its end, and what it said."""
    folder = create(tmp_path_factory.mktemp("runs") / "run")
    notes = Notes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUN", str(folder.path))
        patch.setenv("SLOW", first_of_group(source, folder, 1))
        jobs.train(resolved(source), folder, notes)
    return folder, notes.notes


def first_of_group(source: Path, folder: RunFolder, number: int) -> str:
    """The identifier of a group's first rollout."""
    from tutelage.seeds import SeedTree

    seed = resolved(source).config.seed
    step, place = divmod(number, SIZE)
    return SeedTree(seed).child("rl", step, place, 0).id("roll", folder.name)


def events(folder: RunFolder) -> list[dict[str, Any]]:
    return [e for e in folder.read_events() if e["event"] == asynchronous.EVENT]


def weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    return dict(load_policy(str(folder.policy)).named_tensors())


def bits(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of metrics without what the clock says."""
    return {k: v for k, v in line.items() if not k.startswith("time/") and "per_second" not in k}


def test_the_last_group_may_end_just_before_it_is_waited_for() -> None:
    queue = object.__new__(asynchronous.GroupQueue)
    running: dict[int, asyncio.Task[None]] = {}
    queue._running = running  # pyright: ignore[reportPrivateUsage]

    async def play() -> None:
        del running[0]

    with asyncio.Runner() as runner:
        running[0] = runner.get_loop().create_task(play())
        runner.run(queue._wait_for_group())  # pyright: ignore[reportPrivateUsage]
    assert running == {}


@pytest.mark.full
def test_every_group_is_trained_once_or_dropped(run: tuple[RunFolder, list[str]]) -> None:
    folder, _ = run
    met = events(folder)
    assert [e["step"] for e in met] == list(range(STEPS))
    taken = [n for e in met for n in e["groups"]]
    dropped = [n for e in met for n in e["dropped"]]
    assert all(len(e["groups"]) == SIZE for e in met)
    assert len({*taken, *dropped}) == len(taken) + len(dropped)
    for event in met:
        allowed = SIZE * min(event["step"] + 1 + 2, STEPS) + len(dropped)
        assert max(event["groups"]) < allowed
    assert max(line.get("staleness/max", 0) for line in steps(folder)) in (1, 2)
    compared = [line["max_dlogp"] for line in steps(folder) if "max_dlogp" in line]
    assert max(compared) < 1e-4


def test_a_group_that_is_too_old_is_dropped_said_and_kept(
    run: tuple[RunFolder, list[str]],
) -> None:
    folder, _ = run
    dropped = [n for e in events(folder) for n in e["dropped"]]
    assert 1 in dropped, "its first tokens are of version 0, and it ended after three updates"
    lines = steps(folder)
    assert sum(line["staleness/dropped"] for line in lines) == len(dropped)
    result = folder.read_result()
    assert result is not None
    assert result["dropped_groups"] == len(dropped)
    assert result["rollouts"] >= CHAINS * (SIZE * STEPS + len(dropped))
    with open_store(folder.store) as store:
        group = [r for r in store.rollouts(folder.name, mode=Mode.TRAIN) if r.group == "rl/0/1"]
        trained = {row.rollout_id for row in store.training_rows(folder.name)}
    assert len(group) == CHAINS
    assert trained.isdisjoint(r.id for r in group)


def test_training_replayed_from_the_record_gives_the_same_weights(
    run: tuple[RunFolder, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, _ = run
    again = RunFolder(tmp_path / before.name)
    shutil.copytree(before.path, again.path)
    shutil.rmtree(again.checkpoints)
    again.checkpoints.mkdir()
    again.result.unlink()
    shutil.rmtree(again.policy)

    def play(*_: object) -> None:
        raise AssertionError("nothing is played again")

    monkeypatch.setattr(asynchronous.GroupQueue, "_start_groups", play)
    jobs.resume(again, Progress())
    assert [bits(line) for line in steps(again)] == [bits(line) for line in steps(before)]
    wanted = weights(before)
    for name, tensor in weights(again).items():
        assert torch.equal(tensor, wanted[name]), name


def test_a_killed_run_goes_on_with_the_steps_that_it_had(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after its third step, one after its checkpoint."""
    folder = create(tmp_path / "run")
    monkeypatch.setenv("RUN", str(folder.path))
    monkeypatch.setenv("SLOW", "")
    with pytest.raises(Killed):
        jobs.train(resolved(source), folder, KillAt(3))
    (folder.path / "result.json").unlink(missing_ok=True)
    before, known = steps(folder), events(folder)
    jobs.resume(folder, Progress())
    assert [bits(line) for line in steps(folder)[:3]] == [bits(line) for line in before]
    assert events(folder)[:3] == known[:3]
    check_whole(folder)


@pytest.mark.full
def test_ctrl_c_stops_before_the_step_and_a_resume_trains_the_rest(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = create(tmp_path / "run")
    monkeypatch.setenv("RUN", str(folder.path))
    monkeypatch.setenv("SLOW", "")
    monkeypatch.setenv("STOP", "1")
    with pytest.raises(KeyboardInterrupt):
        jobs.train(resolved(source, trainer__save_freq=-1), folder, Progress())
    assert len(steps(folder)) < STEPS
    before = steps(folder)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    jobs.resume(folder, Progress())
    assert steps(folder)[: len(before)] == before, "they are in the checkpoint"
    check_whole(folder)


def check_whole(folder: RunFolder) -> None:
    """All steps are there, no group is trained twice, and each is in the store."""
    met = events(folder)
    assert [e["step"] for e in met] == list(range(STEPS))
    assert [line["step"] for line in steps(folder)] == list(range(1, STEPS + 1))
    taken = [n for e in met for n in e["groups"]]
    assert len(set(taken)) == SIZE * STEPS
    with open_store(folder.store) as store:
        stored = {r.group for r in store.rollouts(folder.name, mode=Mode.TRAIN, label="")}
    assert {f"rl/{n // SIZE}/{n % SIZE}" for n in taken} <= stored
