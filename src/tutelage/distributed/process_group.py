"""`ProcessGroup` over torch.distributed: the ranks that a launcher has started, with gloo on CPUs.

Objects are sent between ranks as bytes, into main memory. Rank r computes every size-th micro-batch
of a plan, from the r-th on. Gradients are added by torch's reduction, which is reproducible for the
same number of ranks; `tree` adds them in the order of a binary tree over the micro-batches, which
gives the same sum on 1, 2 and 4 ranks but is slower (for tests of exactness). A rank that ends
closes its connections, which ends the other ranks; a rank that hangs ends them after torch's
timeout (`COLLECTIVE_TIMEOUT`). `weights/process_group.py` loads this module if there are several
ranks.
"""

from __future__ import annotations

import datetime
import io
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from tutelage.distributed import sharding
from tutelage.distributed.checkpoint import write
from tutelage.distributed.tree import accumulate_in_tree
from tutelage.distributed.waiting import run_in_thread
from tutelage.errors import ConfigError, RunError
from tutelage.policy.hf_model import Network
from tutelage.policy.machine import SMALL_MODEL
from tutelage.policy.model import Policy
from tutelage.runs.signals import ENDING
from tutelage.weights.process_group import ProcessGroup

Item = TypeVar("Item")
Out = TypeVar("Out")

CONNECT_TIMEOUT = datetime.timedelta(minutes=5)
"""Timeout of ranks that wait for each other at the start."""
COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=10)
"""Timeout of collective operations."""
ROLLOUT_TIMEOUT = datetime.timedelta(days=7)
"""Timeout of ranks that wait for the rollouts of rank 0."""
LAST_WORD = 20.0
"""Seconds that a failed rank waits to learn whether rank 0 has failed too."""
RANK_LOST = "another rank has ended, so the run cannot continue"
"""Start of the error message of rank 0 if another rank has ended."""


class TorchProcessGroup(ProcessGroup):
    """Process group over torch.distributed. All ranks call the same methods in the same order."""

    def __init__(
        self, rank: int = 0, size: int = 1, *, tree: bool = False, shard_from: int = SMALL_MODEL
    ) -> None:
        """Create the process group. If `size` is above 1, torch's default group must exist.

        Models below `shard_from` parameters are not sharded. Raises `ConfigError` if `tree` is set
        and the number of ranks is not a power of two.
        """
        if tree and size & (size - 1):
            raise ConfigError(
                f"the number of ranks must be a power of two (1, 2, 4, 8 ...), got {size}"
            )
        self.rank, self.size, self._tree, self._shard_from = rank, size, tree, shard_from
        self._sharded = WeakSet[Network]()
        self._rollout_group: Any = None
        if size > 1:
            self._rollout_group = dist.new_group(timeout=ROLLOUT_TIMEOUT, backend="gloo")

    def broadcast(self, compute: Callable[[], Out]) -> Out:
        """Call `compute` on rank 0 and return its value on every rank; see `ProcessGroup`.

        An error of `compute` ends all ranks.
        """
        made = compute() if self.rank == 0 else None
        if self.size > 1:
            packed = [_serialize(made) if self.rank == 0 else b""]
            self._sync(lambda: dist.broadcast_object_list(packed, src=0, group=self._rollout_group))
            made = _deserialize(packed[0]) if self.rank else made
        return cast("Out", made)

    def map(self, items: Sequence[Item], function: Callable[[Item], Out]) -> list[Out]:
        """Apply `function` to all items, split over the ranks; see `ProcessGroup`."""
        mine = items[self.rank :: self.size]
        with self._convert_peer_errors():
            found = [function(item) for item in mine]
            if self._sharded and len(mine) < -(-len(items) // self.size):
                function(items[-1])  # whoever gathers a tensor needs all
        for network in self._sharded:
            sharding.release(network)
        return self._gather_results(found, len(items))

    def accumulate(
        self,
        parameters: Sequence[Tensor],
        items: Sequence[Item],
        loss: Callable[[Item], tuple[Tensor, Out]],
        *,
        threads: int = 1,
    ) -> list[Out]:
        """Accumulate gradients over all ranks; see `ProcessGroup`."""
        mine: Sequence[Any] = items[self.rank :: self.size]
        turns, count, of = -(-len(items) // self.size), len(mine), cast("Any", loss)
        sharded = sharding.is_sharded(parameters)
        if sharded:
            mine, of = sharding.pad_items(items, self.rank, self.size, loss)
        with self._convert_peer_errors():
            if self._tree:
                reports = accumulate_in_tree(parameters, mine, turns, of, self.size)
            else:
                alone = 1 if sharded else threads
                reports = super().accumulate(parameters, mine, of, threads=alone)
                self._reduce_gradients(sharding.select_replicated(parameters))
        if sharded:
            for network in self._sharded:
                sharding.release(network)
        return self._gather_results(cast("list[Out]", reports[:count]), len(items))

    def is_main_alive(self) -> bool:
        """Return True if rank 0 continues after an error on this rank; see `ProcessGroup`."""
        heard: list[None] = []
        listener = threading.Thread(
            target=lambda: heard.append(self.broadcast(lambda: None)), name="last-word", daemon=True
        )
        listener.start()
        listener.join(LAST_WORD)
        return bool(heard) or listener.is_alive()

    def clip(self, parameters: Sequence[Tensor], max_norm: float) -> float:
        """Clip the gradients by the norm over all ranks; see `ProcessGroup`."""
        if not sharding.is_sharded(parameters):
            return super().clip(parameters, max_norm)
        with self._convert_peer_errors():
            return sharding.clip(parameters, max_norm, exact=self._tree)

    def shard(
        self, policy: Policy, dtype: torch.dtype, *, offload: bool = False, head: bool = True
    ) -> Policy:
        """Return the policy, or a sharded copy if it is large; see `ProcessGroup`."""
        if self.size == 1 or policy.count() < self._shard_from:
            return policy
        made = sharding.shard_policy(
            policy, self.size, dtype, offload=offload, tree=self._tree, head=head
        )
        self._sharded.add(made.network)
        if self.rank and policy.device.type != "cpu":  # rank 0 alone samples from it
            policy.network = policy.network.to(torch.device("cpu"))
        return made

    def publish(self, sharded_policy: Policy, policy: Policy) -> None:
        """Copy sharded weights to the full policy of rank 0; see `ProcessGroup`."""
        if sharded_policy is not policy:
            with self._convert_peer_errors():
                sharding.publish(sharded_policy, policy, self.rank)

    def shard_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Shard the loaded state of an optimizer; see `ProcessGroup`."""
        sharding.shard_optimizer(optimizer)

    def load(self, tensors: Iterable[tuple[str, Tensor]], values: Mapping[str, Tensor]) -> None:
        """Copy full values into tensors or into this rank's shards; see `ProcessGroup`."""
        sharding.load(tensors, values)

    def has_shards(self, state: object) -> bool:
        """Return True if a state has sharded tensors; see `ProcessGroup`."""
        return sharding.has_shards(state)

    def write_shards(self, folder: Path | None, state: dict[str, Any]) -> None:
        """Write the shards of all ranks to a folder; see `ProcessGroup`."""
        there = self.broadcast(lambda: str(folder))
        with self._convert_peer_errors():
            write(there, state)

    def _reduce_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Sum the gradients over all ranks. Gradients that are None on all ranks remain None."""
        if self.size == 1 or not parameters:
            return
        there = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32)
        dist.all_reduce(there, dist.ReduceOp.MAX)
        for parameter in (p for p, any_has in zip(parameters, there, strict=True) if any_has):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)

    def _gather_results(self, results: list[Out], count: int) -> list[Out]:
        """Gather the results of all ranks, in the order of the items."""
        if self.size == 1:
            return results
        parts: list[Any] = [None] * self.size
        packed = _serialize(results)
        self._sync(lambda: dist.all_gather_object(parts, packed))
        by_rank: list[list[Out]] = [_deserialize(part) for part in parts]
        return [by_rank[i % self.size][i // self.size] for i in range(count)]

    def _sync(self, collective: Callable[[], object]) -> None:
        """Run a collective operation.

        On rank 0, which receives signals, it runs in a thread, since torch blocks signals until all
        ranks have called it.
        """
        with self._convert_peer_errors():
            if self.rank or threading.current_thread() is not threading.main_thread():
                collective()
            else:
                run_in_thread(collective)

    @contextmanager
    def _convert_peer_errors(self) -> Generator[None]:
        """Convert errors caused by the end of another rank to a `RunError` or a silent exit."""
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and "gloo" not in str(error):
                raise
            if self.rank:
                raise SystemExit(0) from error
            reason = str(error).partition("\n")[0].rpartition("] ")[2].partition(". ")[0]
            raise RunError(f"{RANK_LOST} ({reason})") from error


def join_group() -> TorchProcessGroup:
    """Join the process group described by the environment variables of a launcher.

    Raises `ConfigError` for missing or invalid variables, and `RunError` if the other ranks do not
    connect.
    """
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"):
        value, count = os.environ.get(name, ""), os.environ["WORLD_SIZE"]
        if not value:
            raise ConfigError(
                f"WORLD_SIZE={count} needs several ranks, but {name} is not set; start them with "
                f"torchrun --nproc-per-node={count} -m tutelage ..., or unset WORLD_SIZE"
            )
        if name != "MASTER_ADDR" and not value.isdecimal():
            raise ConfigError(f"{name}={value!r} is not a number; start ranks with torchrun")
    size, rank, port = (int(os.environ[n]) for n in ("WORLD_SIZE", "RANK", "MASTER_PORT"))
    if rank >= size:
        raise ConfigError(f"RANK={rank} must be less than WORLD_SIZE={size}")
    if port >= 1 << 16:
        raise ConfigError(f"MASTER_PORT={port} is not a port number below 65536")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"

    def connect() -> TorchProcessGroup:
        store: Any = next(rendezvous("env://", rank, size, timeout=CONNECT_TIMEOUT))[0]
        own = cast("Any", dist).PrefixStore(agree_on_name(store, rank, size), store)
        dist.init_process_group(
            backend, store=own, rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT
        )
        return TorchProcessGroup(rank, size)

    try:
        group = run_in_thread(connect)
    except (RuntimeError, ValueError) as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        reason = str(error).partition("\n")[0]
        problem = "cannot listen" if "failed to listen" in reason else "found no other ranks"
        raise RunError(f"rank {rank} of {size} {problem} at {address}: {reason}") from error
    if rank and threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, *ENDING):  # rank 0 hears them, and ends all
            signal.signal(number, signal.SIG_IGN)
    return group


def agree_on_name(store: Any, rank: int, size: int) -> str:
    """Return a random name for this start that is equal on all ranks.

    A launcher's store still has the values of ranks before a restart. So each rank asks under a new
    random key, and rank 0 answers under that key. Raises `RuntimeError` if a rank does not connect
    in time.
    """
    word, until = secrets.token_hex(8), time.monotonic() + CONNECT_TIMEOUT.total_seconds()
    if rank:
        store.set(f"asks/{rank}", word)
        store.wait([f"answer/{word}"], CONNECT_TIMEOUT)
        name: str = store.get(f"answer/{word}").decode()
        store.set(f"known/{name}/{rank}", "")
        return name
    missing = [*range(1, size)]
    while missing:
        if time.monotonic() > until:
            raise RuntimeError(f"rank {missing[0]} did not connect")
        for other in missing:
            if store.check([f"asks/{other}"]):
                store.set(f"answer/{store.get(f'asks/{other}').decode()}", word)
        time.sleep(0.01)
        missing = [other for other in missing if not store.check([f"known/{word}/{other}"])]
    return word


def _serialize(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _deserialize(packed: bytes) -> Any:
    return torch.load(io.BytesIO(packed), map_location="cpu", weights_only=False)
