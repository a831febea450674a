"""Ray itself: found at an address, or started on this machine for one run, and left as it was.

Ray is asked for nothing that a run does not need: no dashboard, no usage statistics, no output of
its own. A process that has connected to Ray already is left connected.
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
"""How long a head node may take to accept a connection."""
_FREE_SECONDS = 10.0
"""How long the workers of a run that has just ended may still hold their CPUs."""
_AUTH_MODE = "RAY_AUTH_MODE"
_TOKEN_FILE = "~/.ray/auth_token"
_TOKEN_SETUP = "ray._private.authentication.authentication_token_setup"
_NO_TOKEN = "needs a token, and got none or a wrong one"
_LEAST_STORE = 100 * 2**20
"""Bytes of the store in which weights lie between training and workers."""


def import_ray(asked: str = "agent.placement='ray'") -> Any:
    """The package, for what is `asked`. Raises `MissingExtraError`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # The workers have no GPU, and Ray need not say how it will hide some one day.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(
            f"{asked} needs Ray; install it with: pip install 'tutelage[ray]'"
        ) from error
    return ray


def check_address(config: RunConfig) -> None:
    """Raise `ConfigError` where nothing answers at the address of the cluster."""
    address = config.ray_kwargs.ray_init.address
    if address in (None, "auto"):
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _unreachable(address, reason) from error


def connect(config: RunConfig, weights: int) -> bool:
    """Have this process connected to Ray, whose local store is to hold `weights` bytes some times;
    returns whether it was not before. Raises `ConfigError` where that is impossible."""
    ray = import_ray()
    if ray.is_initialized():
        return False
    asked = config.ray_kwargs.ray_init
    options: dict[str, Any] = {"address": asked.address}
    if asked.address is None:
        options = {
            "address": "local",  # else RAY_ADDRESS would be read
            "num_cpus": asked.num_cpus,
            "include_dashboard": False,
            "object_store_memory": max(_LEAST_STORE, 4 * weights),
            "_node_ip_address": "127.0.0.1",
        }
    else:
        _send_token()
    with _own_signals():
        try:
            ray.init(**options, log_to_driver=False, logging_level="ERROR", configure_logging=True)
        except BaseException as error:
            with suppress(Exception):
                ray.shutdown()
            if not isinstance(error, Exception):
                raise
            raise _unreachable(asked.address or "local", _reason(error)) from error
    return True


def watch_head() -> HeadWatch:
    """What looks for the head node of the cluster that this process is connected to."""
    return HeadWatch(import_ray().get_runtime_context().gcs_address)


def workers_of(config: RunConfig) -> int:
    """How many workers a run gets. Raises `ConfigError` where the cluster has no room for them."""
    ray, asked = import_ray(), config.ray_kwargs.ray_init.num_cpus
    there, free = (int(f().get("CPU", 0)) for f in (ray.cluster_resources, ray.available_resources))
    until = time.monotonic() + _FREE_SECONDS
    while free < min(asked or 1, there) and time.monotonic() < until:
        time.sleep(0.1)
        free = int(ray.available_resources().get("CPU", 0))
    if free < (asked or 1):
        fewer = f"set ray_kwargs.ray_init.num_cpus={free}, or " if free else ""
        wait = "wait until some are free, or " if there and not free else ""
        raise ConfigError(
            f"the Ray cluster has {there} CPUs, of which {free} are free, but "
            f"{asked or 'at least 1'} {'are' if asked and asked > 1 else 'is'} needed: "
            f"{fewer}{wait}{add_node()}"
        )
    return min(asked or free, config.data.train_batch_size)


def add_node(what: str = "CPU") -> str:
    """How CPUs or GPUs are added to the cluster that this process is connected to."""
    address = import_ray().get_runtime_context().gcs_address
    option = {"CPU": "--num-cpus", "GPU": "--num-gpus"}[what]
    mode = "RAY_AUTH_MODE=token " if _mode() == "token" else ""
    return f"start a node with `{mode}ray start --address={address} {option}=N`"


def _mode() -> str | None:
    """Whether Ray sends tokens, and asks for them: `token`, `disabled`, or not set."""
    mode = os.environ.get(_AUTH_MODE)
    return None if mode is None else mode.lower()


def _send_token() -> None:
    """Send the token of this user where there is one, unless `RAY_AUTH_MODE` says otherwise. Ray
    does so for the address `auto` alone; a cluster without tokens accepts one. Where another
    version of Ray has this elsewhere, its own rule holds."""
    try:
        setup = importlib.import_module(_TOKEN_SETUP)
        enable = setup.maybe_enable_token_auth_if_token_available
    except (ImportError, AttributeError):
        return
    logging.getLogger(_TOKEN_SETUP).setLevel(logging.ERROR)  # it speaks of clusters started here
    enable(warn_if_disabled=False)


def prepared(references: list[Any]) -> list[JSON]:
    """Return what actors say of themselves once they are ready. Raises `ConfigError` where one
    cannot be started."""
    ray = import_ray()
    try:
        return ray.get(references)
    except TutelageError as error:
        raise ConfigError(own_words(error)) from error
    except ray.exceptions.RayActorError as error:
        raise ConfigError(
            f"cannot start a Ray actor: {' '.join(str(error).split())[-600:]}. Install this "
            "version of tutelage, and the packages of the agent, on every node"
        ) from error


def own_words(error: BaseException) -> str:
    """The message of an error as it was raised in an actor, without Ray's account of the way."""
    cause = getattr(error, "cause", None)
    return str(cause if cause is not None else error)


def _unreachable(address: str, reason: object) -> ConfigError:
    if reason is _NO_TOKEN:
        mend = f"copy {_TOKEN_FILE} of its head node here, or set RAY_AUTH_TOKEN to it"
        if _mode() not in (None, "token"):
            mend = f"set {_AUTH_MODE}=token (it is {_mode()!r}); {mend}"
        return ConfigError(f"the Ray cluster at {address!r} {_NO_TOKEN}: {mend}")
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


def _reason(error: Exception) -> str:
    """Why Ray could not be had; that it wants a token is said by a cause of the error alone."""
    account = "".join(traceback.format_exception(error))
    if "AuthenticationError" in account or "InvalidAuthToken" in account:
        return _NO_TOKEN
    return " ".join(str(error).split())[:500] or type(error).__name__


@contextmanager
def _own_signals() -> Generator[None]:
    """Ray replaces the handler of SIGTERM, which is the run's, with one that ends the process and
    says nothing."""
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
