"""Start the ranks of a training on Ray, in place of torchrun.

The process of the command is rank 0, which has the console, the signals and the run folder, as
under torchrun. Each other rank is a Ray actor, in a placement group that reserves room for rank 0
too. An actor sets the variables that torchrun would set and runs the same training
(`weights/jobs.py`). If a rank ends, all ranks end, and its error is raised here.
"""

from __future__ import annotations

import importlib
import os
import platform
import socket
import struct
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist

from tutelage.config import Resolved, RunConfig
from tutelage.distributed import ray_cluster
from tutelage.distributed.process_group import RANK_LOST
from tutelage.distributed.ray_cluster import remote_message
from tutelage.distributed.waiting import run_in_thread
from tutelage.errors import ConfigError, RunError, TutelageError
from tutelage.policy.machine import OMP, detect_machine
from tutelage.runs.folder import RunFolder
from tutelage.runs.progress import Progress
from tutelage.types import JSON
from tutelage.weights import jobs
from tutelage.weights.process_group import ProcessGroup, get_group

_RESERVE_SECONDS = 20.0
"""Seconds to wait for free CPUs or GPUs."""
_ERROR_SECONDS = 10.0
"""Seconds that Ray may take to report the error of a rank."""
_CHECK_SECONDS = 0.5
_INTERFACE = "GLOO_SOCKET_IFNAME"
_ADDRESS_OF_INTERFACE = 0x8915
"""Linux's ioctl request for the address of an interface (SIOCGIFADDR)."""


class RayRank:
    """A Ray actor that runs one rank of the training, except rank 0."""

    def prepare(self) -> JSON:
        """Return the node, host and process id of this actor."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        return {"node": node, "host": platform.node(), "pid": os.getpid()}

    def run(self, env: Mapping[str, str], cwd: str, resolved: str, folder: str) -> bool:
        """Run this rank until the training ends. Returns False if it exits early."""
        os.environ.update({**_interface_variables(), **env})
        with suppress(OSError):
            os.chdir(cwd)
        try:
            jobs.train(Resolved.from_json(resolved), RunFolder(Path(folder)), Progress())
        except SystemExit:
            return False
        return True


@contextmanager
def start_ranks(resolved: Resolved, folder: Path) -> Generator[ProcessGroup]:
    """Start the ranks on Ray, and yield the process group with this process as rank 0.

    Raises `ConfigError`, `MissingExtraError` and `RunError` if the ranks cannot be started or one
    of them ends.
    """
    ranks = _RayRanks(resolved.config)
    try:
        with ranks.run_ranks(resolved, folder) as group:
            yield group
    except RunError as error:
        if str(error).startswith(RANK_LOST):
            ranks.raise_cause(error)
        raise
    finally:
        ranks.close()


class _RayRanks:
    """The Ray actors of all ranks, and the errors of ended actors."""

    def __init__(self, config: RunConfig) -> None:
        self._ray = ray_cluster.import_ray(f"trainer.nnodes={config.trainer.nnodes}")
        ray_cluster.check_address(config)
        self._connected = ray_cluster.connect(config, 0)
        self._head = ray_cluster.watch_head()
        self._actors, self._facts = list[Any](), list[JSON]()
        self._group: Any = None
        self._errors = dict[int, Exception]()
        """The error that ended a rank, by the index of its actor."""
        self._closed = threading.Event()
        self._watcher: threading.Thread | None = None
        try:
            self._start_actors(config)
        except BaseException:
            self.close()
            raise

    def _start_actors(self, config: RunConfig) -> None:
        """Start all actors in the bundles of the placement group."""
        gpu, nodes = detect_machine().training_device(config) == "cuda", config.trainer.nnodes
        each = config.trainer.n_gpus_per_node or 1 if gpu else 1
        self._group = self._reserve_resources(nodes, each, gpu=gpu)
        schedule: Any = importlib.import_module("ray.util.scheduling_strategies")
        # A GPU is chosen by LOCAL_RANK, so an actor has to see all of its node.
        env = {"runtime_env": {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}}
        make = self._ray.remote(num_cpus=1, max_restarts=0, **(env if gpu else {}))(RayRank)
        for rank in range(1, nodes * each):
            where = schedule.PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=rank // each
            )
            self._actors.append(make.options(scheduling_strategy=where).remote())
        self._facts = ray_cluster.wait_until_ready([a.prepare.remote() for a in self._actors])

    def _reserve_resources(self, nodes: int, per_node: int, *, gpu: bool) -> Any:
        """Reserve CPUs or GPUs for all ranks, with rank 0 on this node. Raises `ConfigError`."""
        util, address = self._ray.util, self._ray.util.get_node_ip_address()
        bundle: dict[str, float] = {"CPU": per_node, **({"GPU": per_node} if gpu else {})}
        bundles = [{**bundle, f"node:{address}": 0.001}, *([bundle] * (nodes - 1))]
        group = util.placement_group(bundles, strategy="STRICT_SPREAD" if gpu else "SPREAD")
        if group.wait(_RESERVE_SECONDS):
            return group
        free, kind = self._ray.available_resources(), "GPU" if gpu else "CPU"
        util.remove_placement_group(group)
        mine = self._ray.get_runtime_context().get_node_id()
        local = next(n["Resources"] for n in self._ray.nodes() if n["NodeID"] == mine)
        raise ConfigError(
            f"the Ray cluster has no room for trainer.nnodes={nodes}: each needs {per_node} "
            f"{kind}{'s' if per_node > 1 else ''}{' on a separate node' if gpu else ''}, the first "
            f"on this node, which has {local.get(kind, 0):.0f}, and {free.get(kind, 0):.0f} "
            f"are free in total; lower it, or {ray_cluster.node_advice(kind)}"
        )

    @contextmanager
    def run_ranks(self, resolved: Resolved, folder: Path) -> Generator[ProcessGroup]:
        """Run all ranks inside the context, and yield the process group.

        Raises `RunError` if a rank ends before all have connected.
        """
        address, c10d = self._ray.util.get_node_ip_address(), cast("Any", dist)
        store = c10d.TCPStore(address, 0, is_master=True, wait_for_workers=False)
        nodes = [self._ray.get_runtime_context().get_node_id(), *(f["node"] for f in self._facts)]
        order = list(dict.fromkeys(nodes))
        variables = [
            {  # what torchrun would set
                "RANK": str(rank),
                "WORLD_SIZE": str(len(nodes)),
                "LOCAL_RANK": str(nodes[:rank].count(node)),
                "LOCAL_WORLD_SIZE": str(nodes.count(node)),
                "GROUP_RANK": str(order.index(node)),
                "GROUP_WORLD_SIZE": str(len(order)),
                "MASTER_ADDR": address,
                "MASTER_PORT": str(store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                OMP: os.environ.get(OMP, "1"),
            }
            for rank, node in enumerate(nodes)
        ]
        texts = resolved.to_json(), str(folder.absolute())
        refs = [
            actor.run.remote(env, str(Path.cwd()), *texts)
            for actor, env in zip(self._actors, variables[1:], strict=True)
        ]
        self._watcher = threading.Thread(target=self._watch, args=(refs,), daemon=True)
        self._watcher.start()
        before = dict(os.environ)
        os.environ.update({**_interface_variables(), **variables[0]})
        get_group.cache_clear()
        try:
            try:
                group = run_in_thread(get_group, lambda: bool(self._errors), RANK_LOST)
            except ConnectionError as error:
                raise RunError(RANK_LOST) from error
            yield group
        finally:
            with suppress(Exception):
                dist.destroy_process_group()
            get_group.cache_clear()
            os.environ.clear()
            os.environ.update(before)

    def _watch(self, refs: Sequence[Any]) -> None:
        """Record the errors of ended ranks, and kill their processes to close the connections."""
        left = dict(zip(refs, range(len(refs)), strict=True))
        while left and not self._closed.is_set():
            done, _ = self._ray.wait(list(left), timeout=_CHECK_SECONDS)
            for ref in done:
                number, well = left.pop(ref), False
                try:
                    well = self._ray.get(ref)
                except Exception as error:
                    self._errors[number] = error
                if not well:
                    self._kill(self._actors[number])

    def raise_cause(self, lost_error: RunError) -> None:
        """Raise the error that ended a rank, if it is reported within some seconds.

        If the head node is lost, the error names this as the cause.
        """
        until, reachable = time.monotonic() + _ERROR_SECONDS, self._head.is_reachable()
        while reachable and not self._errors and time.monotonic() < until:
            time.sleep(_CHECK_SECONDS / 10)
            reachable = self._head.is_reachable()
        if not reachable:
            raise RunError(f"{self._head.reason}, so the run cannot continue") from lost_error
        for number, error in sorted(self._errors.items()):
            if isinstance(error, TutelageError):
                raise RunError(remote_message(error)) from lost_error
            facts, size = self._facts[number], len(self._facts) + 1
            name = f"rank {number + 1} of {size}, process {facts['pid']} on {facts['host']}"
            told = RunError(f"{name}: {remote_message(error).partition(chr(10))[0]}")
            told.add_note(str(error))
            raise told from lost_error

    def close(self) -> None:
        """Kill the actors, and shut Ray down if this run started it."""
        self._closed.set()
        self._head.close()
        if self._watcher is not None:
            self._head.call(self._watcher.join)
        if self._head.call(self._kill_all) and self._connected:
            self._ray.shutdown()

    def _kill_all(self) -> None:
        for actor in self._actors:
            self._kill(actor)
        if self._group is not None:
            with suppress(Exception):
                self._ray.util.remove_placement_group(self._group)

    def _kill(self, actor: Any) -> None:
        with suppress(Exception):
            self._ray.kill(actor)


def _interface_variables() -> dict[str, str]:
    """Return the environment variable for the network interface of this node's Ray address.

    By default torch uses the network of the host's name.
    """
    if os.environ.get(_INTERFACE) or platform.system() != "Linux":
        return {}
    import fcntl

    import ray

    wanted = socket.inet_aton(ray.util.get_node_ip_address())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            question = struct.pack("256s", name.encode()[:15])
            with suppress(OSError):
                told = fcntl.ioctl(asked.fileno(), _ADDRESS_OF_INTERFACE, question)
                if told[20:24] == wanted:
                    return {_INTERFACE: name}
    return {}
