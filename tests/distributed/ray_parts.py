"""Runs of a few seconds whose rollouts are played by Ray workers, and workers that are killed."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from weights.samples import LAPTOP
from weights.tiny_job import material, overrides

from tutelage.runs.folder import RunFolder, create
from tutelage.runs.progress import Progress
from tutelage.store import open_store
from tutelage.types import Rollout
from tutelage.weights import jobs as weight_jobs
from tutelage.weights.config import resolve
from tutelage.weights.placement import LocalPlacement, PlaySettings

from . import jobs

AGENT = '''
"""An agent whose process ends in the rollouts that a folder names, once each."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from tutelage.agents.tool_calling import ToolCallingAgent

KILLS = Path(__file__).with_name("kills")
WHERE = KILLS.with_name("where")


def die(rollout_id, moment):
    place = KILLS / rollout_id
    if place.is_file() and place.read_text() == moment:
        place.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class MortalAgent(ToolCallingAgent):
    async def play(self, task, session, resources):
        if WHERE.is_dir():
            (WHERE / session.rollout_id).write_text(os.readlink("/proc/self/ns/net"))
        die(session.rollout_id, "before")
        await ToolCallingAgent.play(self, task, session, resources)
        die(session.rollout_id, "after")
'''
MOMENTS = ("before", "after")
"""A rollout is begun, or was played and not yet graded."""


class InvariantPlacement(LocalPlacement):
    """This process, on the engine that the workers have."""

    def workers(self, options: PlaySettings, on_spans: Any = None, on_traces: Any = None) -> Any:
        return super().workers(replace(options, invariant=True), on_spans, on_traces)


def train_placed(source: Path, out: Path, progress: Progress | None = None, **keys: object) -> None:
    """The tiny job of several ranks, of which Ray places the second one."""
    placed: dict[str, object] = {"trainer__nnodes": 2, "ray_kwargs__ray_init__num_cpus": 2}
    given = {"trainer__total_training_steps": 3, **jobs.MANY, **placed, **keys}
    resolved = resolve("math", overrides(source, **given), machine=LAPTOP)
    weight_jobs.train(resolved, create(out), progress or Progress())


@contextmanager
def ray_session(cpus: int = 2, address_here: str = "127.0.0.1", **options: Any) -> Generator[Any]:
    """A Ray on this machine for several runs; they use it, and leave it."""
    from tutelage.distributed.ray_cluster import import_ray

    ray = import_ray()
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as short:  # sockets have short names
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
            _node_ip_address=address_here,
            _temp_dir=short,
            log_to_driver=False,
            logging_level="ERROR",
            **options,
        )
        try:
            yield ray
        finally:
            ray.shutdown()


def mortal_material(folder: Path) -> Path:
    """Model, tasks, reward, and an agent that can be told to die."""
    folder.mkdir()
    material(folder)
    (folder / "mortal.py").write_text(AGENT)
    (folder / "kills").mkdir()
    return folder


def rollouts_of(folder: RunFolder) -> list[Rollout]:
    """All that the store has."""
    with open_store(folder.store) as store:
        return list(store.rollouts(folder.name))


def digest(rollouts: list[Rollout]) -> str:
    """Of everything that a rollout is but its times."""
    sha = hashlib.sha256()
    for rollout in sorted(rollouts, key=lambda r: r.id):
        sha.update(repr((rollout.id, rollout.step, rollout.group, rollout.index)).encode())
        for attempt in rollout.attempts:
            reward = None if attempt.reward is None else attempt.reward.value
            sha.update(repr((attempt.id, attempt.answer, attempt.stop, reward)).encode())
            for call in attempt.calls:
                sampled = call.sampled
                text = (call.id, call.prompt_ids, sampled.token_ids, sampled.logprobs)
                sha.update(repr(text).encode())
    return sha.hexdigest()


def weights_hash(folder: RunFolder) -> str:
    """Of the policy that a run ends with."""
    return hashlib.sha256((folder.policy / "model.safetensors").read_bytes()).hexdigest()
