"""A Ray worker and a rank on another host: a network namespace that reaches this one by a cable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.distributed import jobs
from tests.distributed.ranks import together
from tests.distributed.ray_parts import (
    InvariantPlacement,
    digest,
    mortal_material,
    ray_session,
    rollouts_of,
    train_placed,
    weights_hash,
)
from tests.store.postgres import Server, find_programs
from tests.weights.tiny_job import material, run

from tutelage.weights import run as training_run

PATIENCE = 120.0
KEYS: dict[str, object] = {
    "trainer__total_training_steps": 2,
    "agent__agent_type": "PLACE/mortal.py:MortalAgent",
}
RAY: dict[str, object] = {"agent__placement": "ray", "ray_kwargs__ray_init__num_cpus": 1}


class Host:
    """A namespace of the network, and the two addresses of the cable to it."""

    def __init__(self) -> None:
        number = os.getpid() % 250
        self.name, self._cable = f"tutelage{os.getpid()}", f"tu{os.getpid()}"
        self.here, self.there = f"10.213.{number}.1", f"10.213.{number}.2"

    def connect(self) -> None:
        """Make it. Raises `CalledProcessError` where that is not permitted."""
        inside, ends = ("-n", self.name), (f"{self._cable}a", f"{self._cable}b")
        _ip("netns", "add", self.name)
        _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1], "netns", self.name)
        _ip("addr", "add", f"{self.here}/24", "dev", ends[0])
        _ip("link", "set", ends[0], "up")
        _ip(*inside, "addr", "add", f"{self.there}/24", "dev", ends[1])
        _ip(*inside, "link", "set", ends[1], "up")
        _ip(*inside, "link", "set", "lo", "up")

    def remove(self) -> None:
        """Remove it, and the cable with it."""
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, check=False)

    @contextmanager
    def node(self, head: str, place: Path) -> Generator[None]:
        """A node of Ray there, with one CPU."""
        program = str(Path(sys.executable).with_name("ray"))
        words = ["start", f"--address={head}", f"--node-ip-address={self.there}", "--num-cpus=1"]
        words += ["--object-store-memory=104857600", "--block", "--disable-usage-stats"]
        with (place / "node.txt").open("w") as log:
            node = subprocess.Popen(
                ["ip", "netns", "exec", self.name, program, *words], stdout=log, stderr=log
            )
            try:
                yield
            finally:
                node.terminate()
                node.wait(PATIENCE)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, text=True, check=True)


@pytest.fixture
def host() -> Iterator[Host]:
    if shutil.which("ip") is None:
        pytest.skip("no network namespace can be made here: there is no program `ip`")
    made = Host()
    try:
        made.connect()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"no network namespace can be made here: {error.stderr.strip()}")
    try:
        yield made
    finally:
        made.remove()


@contextmanager
def two_nodes(host: Host, cpus: int, place: Path) -> Generator[None]:
    """A Ray with so many CPUs here, and one on the other host."""
    with (
        ray_session(cpus=cpus, address_here=host.here) as ray,
        host.node(ray.get_runtime_context().gcs_address, place),
    ):
        limit = time.monotonic() + PATIENCE
        while ray.cluster_resources().get("CPU") != cpus + 1:
            assert time.monotonic() < limit, (place / "node.txt").read_text()
            time.sleep(0.1)
        yield


@pytest.mark.full
def test_a_worker_on_another_host_plays_the_rollouts_of_one_process(
    host: Host, one_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = mortal_material(tmp_path / "source")
    keys = {name: str(value).replace("PLACE", str(source)) for name, value in KEYS.items()}
    monkeypatch.setattr(training_run, "LocalPlacement", InvariantPlacement)
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    usual = run(source, tmp_path / "here" / "run", **keys)
    (source / "where").mkdir()
    with two_nodes(host, 0, tmp_path):
        found = run(source, tmp_path / "there" / "run", **keys, **RAY)
    played, mine = rollouts_of(found), os.readlink("/proc/self/ns/net")
    places = {path.name: path.read_text() for path in (source / "where").iterdir()}
    assert set(places) == {rollout.id for rollout in played}
    assert len(set(places.values())) == 1
    assert mine not in places.values()
    assert digest(played) == digest(rollouts_of(usual))
    assert weights_hash(found) == weights_hash(usual)


@pytest.fixture
def database() -> Iterator[str]:
    """A PostgreSQL, which nodes need for one record."""
    programs = find_programs()
    if programs is None:
        pytest.skip("no PostgreSQL server here: install Debian's package `postgresql`")
    server = Server(programs)
    server.start()
    try:
        yield server.create("runs")
    finally:
        server.stop()


@pytest.mark.full
def test_a_rank_on_another_host_trains_as_on_this_one(
    host: Host, database: str, one_thread: None, tmp_path: Path
) -> None:
    source = material(tmp_path)
    usual, out, own = (tmp_path / name / "run" for name in ("usual", "placed", "own_store"))
    together(2, usual.parent, jobs.train, source, usual, "plain")
    with two_nodes(host, 1, tmp_path):
        train_placed(source, out, trainer__store_url=f"'{database}'")
        train_placed(source, own)  # the SQLite file of its folder, which rank 0 alone opens
    for found in (out, own):
        assert jobs.digest(found) == jobs.digest(usual)
        assert jobs.metrics(found) == jobs.metrics(usual)
