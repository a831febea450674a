"""Rollouts that Ray workers play are those of one process, also where workers are killed."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.ray_parts import (
    MOMENTS,
    InvariantPlacement,
    digest,
    mortal_material,
    ray_session,
    rollouts_of,
    weights_hash,
)
from weights.tiny_job import run

from tutelage import LLM, RL, Trainer, rollout
from tutelage.errors import ConfigError, RunError
from tutelage.runs.folder import RunFolder
from tutelage.runs.progress import Progress
from tutelage.store import open_store
from tutelage.testing import tiny_policy
from tutelage.tracing import span
from tutelage.weights import run as training_run

KEYS: dict[str, object] = {
    "trainer__total_training_steps": 2,
    "trainer__val_before_train": "true",
    "agent__agent_type": "PLACE/mortal.py:MortalAgent",
}
RAY: dict[str, object] = {"agent__placement": "ray", "ray_kwargs__ray_init__num_cpus": 2}
OWN: dict[str, object] = {
    "lr": 1e-2,
    "data.train_batch_size": 2,
    "num_chains": 2,
    "agent.max_tokens_per_turn": 4,
    "rollout.max_len": 128,
    "actor.use_kl_loss": False,
    "trainer.total_training_steps": 2,
    "trainer.val_tasks": 2,
}
DEADLY = """
import os
import signal


async def vary(prediction, trajectory):
    os.kill(os.getpid(), signal.SIGKILL)
"""
"""A reward that ends its process."""


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with ray_session() as started:
        yield started


def played(source: Path, out: Path, **more: object) -> RunFolder:
    """A run of the mortal agent; all are of one name, by which rollouts have their identifiers."""
    keys = {name: str(value).replace("PLACE", str(source)) for name, value in KEYS.items()}
    out.mkdir()
    return run(source, out / "run", **{**keys, **more})


def check_nothing_lost(
    source: Path, out: Path, usual: RunFolder, kills: int, seed: int, **more: object
) -> None:
    """Kill workers in seeded rollouts, and compare everything with the usual run."""
    known = rollouts_of(usual)
    drawn = random.Random(seed)
    mortal = [r for r in sorted(known, key=lambda r: r.id) if r.index < 2]
    for victim in drawn.sample(mortal, kills):
        (source / "kills" / victim.id).write_text(drawn.choice(MOMENTS))
    folder = played(source, out, **RAY, **more)
    assert list((source / "kills").iterdir()) == [], "some were never killed"
    found = rollouts_of(folder)
    assert Counter(r.id for r in found) == Counter(r.id for r in known)
    assert digest(found) == digest(known)
    assert weights_hash(folder) == weights_hash(usual)
    events = [e for e in folder.read_events() if e["event"] == "worker_lost"]
    again = {group for event in events for group in event["groups"]}
    assert 1 <= len(events) <= kills
    assert again <= {r.group for r in known}
    assert all(event["worker"] for event in events)


@pytest.mark.full
def test_a_group_that_ends_every_worker_ends_the_run_in_a_sentence(
    ray: Any, one_thread: None, tmp_path: Path
) -> None:
    source = mortal_material(tmp_path / "source")
    (source / "rewards.py").write_text(DEADLY)
    with pytest.raises(RunError, match=r"^3 Ray workers were lost while they played only the gr"):
        played(source, tmp_path / "run", trainer__val_before_train="false", **RAY)


@pytest.mark.full
def test_more_workers_than_the_cluster_has_room_for_are_refused(
    ray: Any, one_thread: None, tmp_path: Path
) -> None:
    source = mortal_material(tmp_path / "source")
    with pytest.raises(ConfigError, match=r"has \d of 2 CPUs free and needs 9: set ray"):
        played(source, tmp_path / "run", **{**RAY, "ray_kwargs__ray_init__num_cpus": 9})


@pytest.mark.full
def test_a_python_agent_plays_on_workers_with_its_tools_and_spans(
    ray: Any, one_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_run, "LocalPlacement", InvariantPlacement)
    monkeypatch.chdir(tmp_path)
    here = os.getpid()

    @rollout
    async def digits(task: Any, llm: LLM, pids: set[int]) -> float:
        call = await llm.chat(f"number {task['text']}", max_tokens=4)
        with span("count digits"):
            pass
        pids.add(os.getpid())
        return sum(c.isdigit() for c in call.reply.content or "") / 4

    found: list[tuple[str, int]] = []
    for keys in ({}, {"agent.placement": "ray", "ray_kwargs.ray_init.num_cpus": 2}):
        pids = set[int]()
        output = tmp_path / ("ray" if keys else "local") / "run"
        output.parent.mkdir()
        algorithm = RL({**OWN, **keys})
        Trainer(
            algorithm=algorithm,
            policy=tiny_policy(max_positions=256),
            train_dataset=[{"id": str(i), "text": str(i)} for i in range(8)],
            resources={"pids": pids},
            output_dir=output,
            progress=Progress(),
        ).fit(digits)
        assert pids == (set() if keys else {here})
        rollouts = rollouts_of(RunFolder(output))
        with open_store(RunFolder(output).store) as store:
            spans = [s for r in rollouts for s in store.spans("run", r.id)]
        found.append((digest(rollouts), sum(s.name == "count digits" for s in spans)))
        assert found[-1][1] == len(rollouts)
    assert found[0] == found[1]


@pytest.mark.full
def test_twenty_workers_are_killed_and_nothing_is_lost(
    ray: Any, one_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = mortal_material(tmp_path / "source")
    monkeypatch.setattr(training_run, "LocalPlacement", InvariantPlacement)
    usual = played(source, tmp_path / "usual", trainer__total_training_steps=10)
    check_nothing_lost(
        source, tmp_path / "killed", usual, kills=20, seed=7, trainer__total_training_steps=10
    )
