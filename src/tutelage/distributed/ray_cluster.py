"""Connect to a Ray cluster at an address, or start Ray on this machine for one run.

Ray runs without dashboard, usage statistics and output. A process that was already connected to Ray
stays connected after the run.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

from tutelage.config import RunConfig
from tutelage.distributed.ray_head import HeadWatch
from tutelage.errors import ConfigError, MissingExtraError, TutelageError
from tutelage.runs.signals import StopRequested
from tutelage.types import JSON

_REACH_SECONDS = 10.0
"""Seconds that a head node may take to accept a connection."""
_FREE_SECONDS = 10.0
"""Seconds to wait for the CPUs of a run that has just ended."""
_AUTH_MODE = "RAY_AUTH_MODE"
_TOKEN_FILE = "~/.ray/auth_token"
_TOKEN_SETUP = "ray._private.authentication.authentication_token_setup"
_NO_TOKEN = "needs a token, and got none or a wrong one"
_MIN_STORE_BYTES = 100 * 2**20
"""Minimum size in bytes of Ray's object store, which holds the weights for workers."""


def import_ray(setting: str = "agent.placement='ray'") -> Any:
    """Import Ray. Raises `MissingExtraError` with the `setting` that needs it if it is missing."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # The workers have no GPU, and Ray need not say how it will hide some one day.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(
            f"{setting} needs Ray; install it with: pip install 'tutelage[ray]'"
        ) from error
    return ray


def check_address(config: RunConfig) -> None:
    """Raise `ConfigError` if no server answers at the configured address of the cluster."""
    address = config.ray_kwargs.ray_init.address
    if address in (None, "auto"):
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _connection_error(address, reason) from error


def connect(config: RunConfig, weight_bytes: int) -> bool:
    """Connect this process to Ray and return True, or return False if it is already connected.

    `weight_bytes` is the size in bytes of the policies' weights, by which the store of a new local
    cluster is sized. Raises `ConfigError` if connecting fails.
    """
    ray = import_ray()
    if ray.is_initialized():
        return False
    init = config.ray_kwargs.ray_init
    options: dict[str, Any] = {"address": init.address}
    if init.address is None:
        options = {
            "address": "local",  # else RAY_ADDRESS would be read
            "num_cpus": init.num_cpus,
            "include_dashboard": False,
            "object_store_memory": max(_MIN_STORE_BYTES, 4 * weight_bytes),
            "_node_ip_address": "127.0.0.1",
        }
    else:
        _send_token()
    with _keep_signal_handler():
        try:
            ray.init(**options, log_to_driver=False, logging_level="ERROR", configure_logging=True)
        except BaseException as error:
            with suppress(Exception):
                ray.shutdown()
            if not isinstance(error, Exception):
                raise
            raise _connection_error(init.address or "local", _describe_failure(error)) from error
    return True


def watch_head() -> HeadWatch:
    """Start a watch on the head node of the connected cluster."""
    return HeadWatch(import_ray().get_runtime_context().gcs_address)


def count_workers(config: RunConfig) -> int:
    """Return the number of rollout workers. Raises `ConfigError` if the cluster lacks free CPUs."""
    ray, requested = import_ray(), config.ray_kwargs.ray_init.num_cpus
    total, free = (int(f().get("CPU", 0)) for f in (ray.cluster_resources, ray.available_resources))
    until = time.monotonic() + _FREE_SECONDS
    while free < min(requested or 1, total) and time.monotonic() < until:
        time.sleep(0.1)
        free = int(ray.available_resources().get("CPU", 0))
    if free < (requested or 1):
        fewer = f"set ray_kwargs.ray_init.num_cpus={free}, or " if free else ""
        wait = "wait until some are free, or " if total and not free else ""
        raise ConfigError(
            f"the Ray cluster has {free} of {total} CPUs free and needs {requested or 1}: "
            f"{fewer}{wait}{node_advice()}"
        )
    return min(requested or free, config.data.train_batch_size)


def node_advice(resource: str = "CPU") -> str:
    """Return advice on adding a node with CPUs or GPUs to the connected cluster."""
    address = import_ray().get_runtime_context().gcs_address
    option = {"CPU": "--num-cpus", "GPU": "--num-gpus"}[resource]
    mode = "RAY_AUTH_MODE=token " if _auth_mode() == "token" else ""
    return f"start a node with `{mode}ray start --address={address} {option}=N`"


def _auth_mode() -> str | None:
    """Return the value of `RAY_AUTH_MODE` in lower case, or None if it is not set."""
    mode = os.environ.get(_AUTH_MODE)
    return None if mode is None else mode.lower()


def _send_token() -> None:
    """Enable authentication with the user's token if it exists and `RAY_AUTH_MODE` allows it.

    Ray does this for the address `auto` only. A cluster without authentication accepts a token. If
    this version of Ray has no such function, Ray's own rule applies.
    """
    try:
        setup = importlib.import_module(_TOKEN_SETUP)
        enable = setup.maybe_enable_token_auth_if_token_available
    except (ImportError, AttributeError):
        return
    logging.getLogger(_TOKEN_SETUP).setLevel(logging.ERROR)  # it speaks of clusters started here
    enable(warn_if_disabled=False)


def wait_until_ready(references: list[Any]) -> list[JSON]:
    """Wait for actors to start and return their results. Raises `ConfigError` if one fails."""
    ray = import_ray()
    try:
        return ray.get(references)
    except TutelageError as error:
        raise ConfigError(remote_message(error)) from error
    except ray.exceptions.RayActorError as error:
        raise ConfigError(
            f"cannot start a Ray actor: {' '.join(str(error).split())[-600:]}. Install this "
            "version of tutelage, and the packages of the agent, on every node"
        ) from error


def remote_message(error: BaseException) -> str:
    """Return the message of an exception raised by an actor, without Ray's traceback."""
    cause = getattr(error, "cause", None)
    return str(cause if cause is not None else error)


def _connection_error(address: str, reason: object) -> ConfigError:
    if reason is _NO_TOKEN:
        fix = f"copy {_TOKEN_FILE} of its head node here, or set RAY_AUTH_TOKEN to it"
        if _auth_mode() not in (None, "token"):
            fix = f"set {_AUTH_MODE}=token (it is {_auth_mode()!r}); {fix}"
        return ConfigError(f"the Ray cluster at {address!r} {_NO_TOKEN}: {fix}")
    port = address.rpartition(":")[2]
    start = f"ray start --head --port={port}" if port.isdecimal() else "ray start --head"
    way = (
        f"start one with `{start}`, or remove ray_kwargs.ray_init.address to use workers on this "
        "machine only. To resume a run with another address, edit it in config.json and use "
        "`tutelage resume RUN --allow-changes`"
    )
    if address == "local":
        return ConfigError(f"cannot start Ray on this machine: {reason}")
    if address == "auto":
        return ConfigError(f"this machine is not part of a running Ray cluster ({reason}); {way}")
    return ConfigError(f"cannot use a Ray cluster at {address!r}: {reason}; {way}")


def _describe_failure(error: Exception) -> str:
    """Return the reason why connecting to Ray failed, including a missing token."""
    account = "".join(traceback.format_exception(error))
    if "AuthenticationError" in account or "InvalidAuthToken" in account:
        return _NO_TOKEN
    return " ".join(str(error).split())[:500] or type(error).__name__


@contextmanager
def _keep_signal_handler() -> Generator[None]:
    """Restore the SIGTERM handler of the run, which Ray replaces, after the context."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as ended:
        if ended.code != signal.SIGTERM:
            raise
        raise StopRequested(signal.SIGTERM) from None
    finally:
        signal.signal(signal.SIGTERM, before)
