"""A cluster that asks for tokens is reached with the user's, and its absence is said."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from weights.samples import LAPTOP

from tutelage.distributed import ray_cluster
from tutelage.distributed.ray_cluster import import_ray
from tutelage.errors import ConfigError
from tutelage.weights.config import resolve

TOKEN = "5f0b" * 16
CONNECT = """
import sys
from tutelage.config import Machine
from tutelage.distributed import ray_cluster
from tutelage.errors import ConfigError
from tutelage.weights.config import resolve

keys = ["agent.placement=ray", "ray_kwargs.ray_init.address=" + sys.argv[1]]
try:
    ray_cluster.connect(resolve("math", keys, machine=Machine(cuda_devices=0, cores=2)).config, 0)
except ConfigError as error:
    print(error)
else:
    print("played", int(ray_cluster.import_ray().cluster_resources()["CPU"]))
    print(ray_cluster.node_advice())
"""


def refused(monkeypatch: pytest.MonkeyPatch, wrong: Exception, mode: str | None) -> str:
    """Why a cluster cannot be used that ends a connection with `wrong`."""

    def init(**options: Any) -> None:
        raise wrong

    monkeypatch.setattr(import_ray(), "init", init)
    monkeypatch.setattr(ray_cluster, "_send_token", lambda: None)
    monkeypatch.setattr(import_ray(), "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    keys = ["agent.placement=ray", "ray_kwargs.ray_init.address=head:6379"]
    with pytest.raises(ConfigError) as error:
        ray_cluster.connect(resolve("math", keys, machine=LAPTOP).config, 0)
    return str(error.value)


def test_a_token_that_is_missing_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = ConnectionError("Failed to connect to Ray cluster at head:6379")
    wrong.__cause__ = RuntimeError("AuthenticationError: RPC error: InvalidAuthToken: missing")
    none = import_ray().exceptions.AuthenticationError("no authentication token was found")
    for error, mode in ((wrong, "token"), (wrong, None), (wrong, "disabled"), (none, "token")):
        told = refused(monkeypatch, error, mode)
        for words in ("'head:6379' needs a token", "~/.ray/auth_token", "RAY_AUTH_TOKEN"):
            assert words in told
        assert ("RAY_AUTH_MODE=token" in told) is (mode == "disabled")
    told = refused(monkeypatch, ConnectionError("Failed to connect"), None)
    assert "Failed to connect; start one with `ray start --head --port=6379`" in told


def own_environment(home: Path, token: str | None, mode: str | None = None) -> dict[str, str]:
    """That of a user who has this token, or none."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    env |= {"HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0"}
    if token is not None:
        (home / ".ray").mkdir(parents=True, exist_ok=True)
        (home / ".ray" / "auth_token").write_text(token)
    return env if mode is None else {**env, "RAY_AUTH_MODE": mode}


@pytest.fixture(params=["token", "disabled"])
def cluster(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Generator[tuple[str, str, dict[str, str]]]:
    """Whether it asks for tokens, its address, and the environment that started it."""
    env = own_environment(tmp_path, TOKEN, None if request.param == "token" else "disabled")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as short:
        options = f"--port={port} --num-cpus=1 --temp-dir={short}"
        start = f"start --head --block --include-dashboard=false {options}"
        head = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", *start.split()],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for_raylet(Path(short), head)
            yield request.param, f"127.0.0.1:{port}", env
        finally:
            head.send_signal(signal.SIGTERM)
            head.wait(60)


def wait_for_raylet(place: Path, head: subprocess.Popen[bytes]) -> None:
    """Until a node is complete."""
    until = time.monotonic() + 60
    while not list(place.glob("session_latest/sockets/raylet*")):
        assert time.monotonic() < until
        assert head.poll() is None, "the head node does not start"
        time.sleep(0.1)


@pytest.mark.full
def test_a_cluster_is_reached_by_its_address(
    cluster: tuple[str, str, dict[str, str]], tmp_path: Path
) -> None:
    asks, address, env = cluster
    env = {key: value for key, value in env.items() if key != "RAY_AUTH_MODE"}
    command = [sys.executable, "-c", CONNECT, address]

    def told(env: dict[str, str]) -> str:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        return done.stdout

    first = told(env)
    assert first.startswith("played 1\n")
    advice = first.split("`")[1]
    assert advice.startswith("RAY_AUTH_MODE=token ray start --address=")
    ray = f"{sys.executable} -m ray.scripts.scripts"
    added = advice.replace(" ray start", f" exec {ray} start").replace("=N", "=2 --block")
    with subprocess.Popen(added, shell=True, env=env, stdout=subprocess.DEVNULL) as node:
        until = time.monotonic() + 60
        while not told(env).startswith("played 3\n"):
            assert time.monotonic() < until
        node.send_signal(signal.SIGTERM)
    stranger = told(own_environment(tmp_path / "stranger", "0123" * 16))
    if asks == "token":
        assert stranger.startswith(f"the Ray cluster at '{address}' needs a token")
    else:
        assert stranger.startswith("played ")
