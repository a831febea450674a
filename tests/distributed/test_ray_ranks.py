"""Ranks that Ray places train as torchrun's do, and whatever ends one ends all in a sentence."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.ray_parts import ray_session
from tests.distributed.ray_parts import train_placed as train
from tests.testing.vllm_server import VLLMServer
from tests.weights import tiny_job

from tutelage import LLM, RL, Trainer, rollout
from tutelage.distributed.ray_ranks import _RayRanks  # pyright: ignore[reportPrivateUsage]
from tutelage.errors import ConfigError, RunError
from tutelage.policy.model import load_policy
from tutelage.runs.folder import RunFolder
from tutelage.runs.progress import Progress
from tutelage.testing import tiny_policy
from tutelage.weights import jobs as weight_jobs
from tutelage.weights.process_group import get_group

from . import jobs
from .ranks import together

BROKEN = """
import os

if os.environ.get("RANK") == "1":
    raise RuntimeError("no such luck")
"""
"""What the second rank alone meets when it reads the reward."""


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with ray_session() as started:
        yield started


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model, tasks and reward of the tiny job."""
    return tiny_job.material(tmp_path_factory.mktemp("material"))


@pytest.fixture(scope="module")
def usual(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks as torchrun starts them."""
    place = tmp_path_factory.mktemp("torchrun")
    together(2, place, jobs.train, source, place / "run", "plain")
    return place / "run"


class Killing(Progress):
    """Kills the second rank when a step is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.ranks, self._number = list[_RayRanks](), number
        start = _RayRanks.run_ranks

        def run_ranks(ranks: _RayRanks, *args: Any) -> Any:
            self.ranks.append(ranks)
            return start(ranks, *args)

        monkeypatch.setattr(_RayRanks, "run_ranks", run_ranks)

    def step(self, done: int, values: Mapping[str, float]) -> None:
        """Kill it."""
        if done == 2:
            (facts,) = self.ranks[0]._facts  # pyright: ignore[reportPrivateUsage]
            os.kill(facts["pid"], self._number)


def assert_same(out: Path, usual: Path) -> None:
    """Weights and metrics, and nothing is left of the ranks in this process."""
    assert jobs.metrics(out) == jobs.metrics(usual)
    assert jobs.digest(out) == jobs.digest(usual)
    assert get_group().size == 1
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & set(os.environ)


@pytest.mark.full
def test_two_placed_ranks_have_the_weights_of_torchrun(
    ray: Any, one_thread: None, source: Path, usual: Path, tmp_path: Path
) -> None:
    train(source, tmp_path / "run")
    assert_same(tmp_path / "run", usual)


@pytest.mark.full
def test_a_placed_rank_is_killed_and_the_resumed_run_has_the_weights_of_torchrun(
    ray: Any,
    one_thread: None,
    source: Path,
    usual: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "run"
    with pytest.raises(RunError, match=r"^rank 1 of 2, process \d+ on \S+: The actor died"):
        train(source, out, Killing(monkeypatch, signal.SIGKILL))
    weight_jobs.resume(RunFolder(out), Progress())
    assert_same(out, usual)


def processes() -> list[tuple[int, int, str]]:
    """Number, parent and command of all that run."""
    listed = subprocess.run(["ps", "-wweo", "pid=,ppid=,args="], capture_output=True, text=True)
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
    return [(int(pid), int(parent), args) for pid, parent, args in rows]


def head_of(pid: int) -> int:
    """The head of the Ray that a process has started."""
    (head,) = [n for n, parent, args in processes() if parent == pid and "gcs_server" in args]
    return head


def ended(place: Path, words: Sequence[str], steps: int, end: Callable[[int], None]) -> str:
    """What a command says that is ended by `end` once its run has so many steps."""
    command = [sys.executable, "-m", "tutelage", *words]
    folder, until = RunFolder(place / "run"), time.monotonic() + 120
    with subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, text=True) as job:
        try:
            while len(tiny_job.steps(folder)) < steps and time.monotonic() < until:
                time.sleep(0.1)
            end(job.pid)
            told = job.communicate(timeout=120)[1]
        finally:
            job.kill()
    status = (folder.read_result() or {}).get("status")
    assert (job.returncode, status) == (128 + signal.SIGTERM, "stopped"), told
    return " ".join(told.split())


@pytest.mark.full
def test_a_head_node_that_is_killed_stops_the_run_with_a_sentence_and_it_is_resumed(
    one_thread: None, source: Path, tmp_path: Path
) -> None:
    keys = {"trainer__nnodes": 2, "ray_kwargs__ray_init__num_cpus": 2}
    given = {**jobs.MANY, **keys, "trainer__total_training_steps": 100_000}
    words = ["train", "math", "--output", "run", *tiny_job.overrides(source, **given)]
    told = ended(tmp_path, words, 2, lambda pid: os.kill(head_of(pid), signal.SIGKILL))
    assert re.search(r"Ray's head node, \S+, no longer answers.*tutelage resume run", told)
    trained = len(tiny_job.steps(RunFolder(tmp_path / "run")))
    told = ended(tmp_path, ["resume", "run"], trained + 1, lambda pid: os.kill(pid, signal.SIGTERM))
    assert f"resumed after step {trained}/100000 of rl" in told


@pytest.mark.full
def test_what_one_rank_alone_meets_is_told(
    ray: Any, one_thread: None, source: Path, tmp_path: Path
) -> None:
    own = tiny_job.material(tmp_path)
    (own / "rewards.py").write_text(tiny_job.REWARD + BROKEN)
    with pytest.raises(RunError, match=r"^rank 1 of 2: .*no such luck"):
        train(own, tmp_path / "run")
    assert get_group().size == 1


@pytest.mark.full
def test_more_ranks_than_the_cluster_has_room_for_are_refused(
    ray: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tutelage.distributed.ray_ranks._RESERVE_SECONDS", 0.5)
    told = r"no room for trainer.nnodes=9: .*`RAY_AUTH_MODE=token ray start --address=\S+"
    with pytest.raises(ConfigError, match=told):
        train(source, tmp_path / "run", trainer__nnodes=9)
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.full
def test_an_agent_of_ones_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    @rollout
    async def digits(task: Any, llm: LLM) -> float:
        return 0.0

    with pytest.raises(ConfigError, match=r"by ranks placed by Ray: remove trainer.nnodes"):
        Trainer(
            algorithm=RL({"trainer.nnodes": 2, "ray_kwargs.ray_init.num_cpus": 2}),
            policy=tiny_policy(max_positions=256),
            train_dataset=[{"id": str(i), "text": str(i)} for i in range(8)],
            progress=Progress(),
        ).fit(digits)


@pytest.mark.full
def test_placed_ranks_train_on_what_a_vllm_server_samples(
    ray: Any, one_thread: None, source: Path, tmp_path: Path
) -> None:
    with VLLMServer(load_policy(str(source / "model"))) as server:
        keys: dict[str, Any] = {
            "rollout__name": "vllm",
            "rollout__servers": f"[{server.url}]",
            "trainer__total_training_steps": 2,
        }
        train(source, tmp_path / "placed", **keys)
        assert server.weight_version == "free"
        place = tmp_path / "started"
        together(2, place, jobs.train_with, source, place / "run", "plain", keys)
    assert_same(tmp_path / "placed", place / "run")
    trained = [line for line in jobs.metrics(tmp_path / "placed") if line["phase"] == "rl"]
    assert all(0 < line["vllm/probe"] < 1e-3 for line in trained)
