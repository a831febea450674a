"""`ProcessGroup` over torch.distributed: the ranks that a launcher has started, with gloo on CPUs.

Objects go from rank to rank as bytes and arrive in main memory. Every rank works on each size-th
micro-batch of a plan. Gradients are added by torch's own reduction, which repeats for the same
number of ranks; `tree` adds them in the order of a binary tree over the micro-batches instead,
which is the same sum on 1, 2 and 4 ranks: for the test of exactness, since it costs more. A rank
that ends closes its connections, which ends the others; one that stands still does so after torch's
timeout (`WORKING`). `weights/process_group.py` loads this module where there are several ranks.
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
from tutelage.distributed.waiting import in_thread
from tutelage.errors import ConfigError, RunError
from tutelage.policy.hf_model import Network
from tutelage.policy.machine import SMALL_MODEL
from tutelage.policy.model import Policy
from tutelage.runs.signals import ENDING
from tutelage.weights.process_group import ProcessGroup

Item = TypeVar("Item")
Out = TypeVar("Out")

MEETING = datetime.timedelta(minutes=5)
"""Timeout of ranks that wait for each other at the start."""
WORKING = datetime.timedelta(minutes=10)
"""Timeout of what ranks compute together."""
PLAYING = datetime.timedelta(days=7)
"""Timeout of ranks that wait for rank 0: rollouts take what they take."""
LAST_WORD = 20.0
"""Seconds that a rank which has failed listens whether rank 0 has too."""
LOST = "another rank has ended, so the run cannot continue"
"""How rank 0's message begins where another rank has ended."""


class TorchProcessGroup(ProcessGroup):
    """Ranks of torch.distributed."""

    def __init__(
        self, rank: int = 0, size: int = 1, *, tree: bool = False, shard_from: int = SMALL_MODEL
    ) -> None:
        """The default group has been made where `size` is above 1; all ranks make this object. Each
        rank has the whole of a model below `shard_from` parameters. Raises `ConfigError` for a
        number of ranks that no binary tree has."""
        if tree and size & (size - 1):
            raise ConfigError(
                f"the number of ranks must be a power of two (1, 2, 4, 8 ...), got {size}"
            )
        self.rank, self.size, self._tree, self._shard_from = rank, size, tree, shard_from
        self._sharded = WeakSet[Network]()
        self._patient: Any = None
        if size > 1:
            self._patient = dist.new_group(timeout=PLAYING, backend="gloo")

    def agree(self, make: Callable[[], Out]) -> Out:
        """See `ProcessGroup`. An error of `make` ends rank 0, and with it the others."""
        made = make() if self.rank == 0 else None
        if self.size > 1:
            packed = [_packed(made) if self.rank == 0 else b""]
            self._wait(lambda: dist.broadcast_object_list(packed, src=0, group=self._patient))
            made = _unpacked(packed[0]) if self.rank else made
        return cast("Out", made)

    def map(self, items: Sequence[Item], work: Callable[[Item], Out]) -> list[Out]:
        """See `ProcessGroup`."""
        mine = items[self.rank :: self.size]
        with self._peers():
            found = [work(item) for item in mine]
            if self._sharded and len(mine) < -(-len(items) // self.size):
                work(items[-1])  # whoever gathers a tensor needs all
        for network in self._sharded:
            sharding.release(network)
        return self._together(found, len(items))

    def accumulate(
        self,
        parameters: Sequence[Tensor],
        items: Sequence[Item],
        loss: Callable[[Item], tuple[Tensor, Out]],
        *,
        threads: int = 1,
    ) -> list[Out]:
        """See `ProcessGroup`."""
        mine: Sequence[Any] = items[self.rank :: self.size]
        turns, count, of = -(-len(items) // self.size), len(mine), cast("Any", loss)
        sharded = sharding.is_sharded(parameters)
        if sharded:
            mine, of = sharding.padded(items, self.rank, self.size, loss)
        with self._peers():
            if self._tree:
                reports = accumulate_in_tree(parameters, mine, turns, of, self.size)
            else:
                alone = 1 if sharded else threads
                reports = super().accumulate(parameters, mine, of, threads=alone)
                self._reduce(sharding.whole(parameters))
        if sharded:
            for network in self._sharded:
                sharding.release(network)
        return self._together(cast("list[Out]", reports[:count]), len(items))

    def goes_on(self) -> bool:
        """See `ProcessGroup`."""
        heard: list[None] = []
        listener = threading.Thread(
            target=lambda: heard.append(self.agree(lambda: None)), name="last-word", daemon=True
        )
        listener.start()
        listener.join(LAST_WORD)
        return bool(heard) or listener.is_alive()

    def clip(self, parameters: Sequence[Tensor], limit: float) -> float:
        """See `ProcessGroup`."""
        if not sharding.is_sharded(parameters):
            return super().clip(parameters, limit)
        with self._peers():
            return sharding.clip(parameters, limit, exact=self._tree)

    def shard(
        self, policy: Policy, dtype: torch.dtype, *, offload: bool = False, head: bool = True
    ) -> Policy:
        """See `ProcessGroup`."""
        if self.size == 1 or policy.count() < self._shard_from:
            return policy
        made = sharding.sharded(
            policy, self.size, dtype, offload=offload, tree=self._tree, head=head
        )
        self._sharded.add(made.network)
        if self.rank and policy.device.type != "cpu":  # rank 0 alone samples from it
            policy.network = policy.network.to(torch.device("cpu"))
        return made

    def publish(self, trained: Policy, whole: Policy) -> None:
        """See `ProcessGroup`."""
        if trained is not whole:
            with self._peers():
                sharding.publish(trained, whole, self.rank)

    def share_out(self, optimizer: torch.optim.Optimizer) -> None:
        """See `ProcessGroup`."""
        sharding.share_out(optimizer)

    def load(self, named: Iterable[tuple[str, Tensor]], whole: Mapping[str, Tensor]) -> None:
        """See `ProcessGroup`."""
        sharding.load(named, whole)

    def in_parts(self, values: object) -> bool:
        """See `ProcessGroup`."""
        return sharding.in_parts(values)

    def write_parts(self, place: Path | None, values: dict[str, Any]) -> None:
        """See `ProcessGroup`."""
        there = self.agree(lambda: str(place))
        with self._peers():
            write(there, values)

    def _reduce(self, parameters: Sequence[Tensor]) -> None:
        """Add the gradients of all ranks; a parameter that none has a gradient for stays so."""
        if self.size == 1 or not parameters:
            return
        there = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32)
        dist.all_reduce(there, dist.ReduceOp.MAX)
        for parameter in (p for p, any_has in zip(parameters, there, strict=True) if any_has):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)

    def _together(self, mine: list[Out], count: int) -> list[Out]:
        """Gather what all ranks have, in the order of the items."""
        if self.size == 1:
            return mine
        parts: list[Any] = [None] * self.size
        packed = _packed(mine)
        self._wait(lambda: dist.all_gather_object(parts, packed))
        by_rank: list[list[Out]] = [_unpacked(part) for part in parts]
        return [by_rank[i % self.size][i // self.size] for i in range(count)]

    def _wait(self, collective: Callable[[], object]) -> None:
        """Wait for the other ranks: on rank 0, which receives signals, in a thread, since torch
        handles none before all ranks have come."""
        with self._peers():
            if self.rank or threading.current_thread() is not threading.main_thread():
                collective()
            else:
                in_thread(collective)

    @contextmanager
    def _peers(self) -> Generator[None]:
        """Convert the error of a rank that has ended: rank 0 raises `RunError`, others end."""
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and "gloo" not in str(error):
                raise
            if self.rank:
                raise SystemExit(0) from error
            reason = str(error).partition("\n")[0].rpartition("] ")[2].partition(". ")[0]
            raise RunError(f"{LOST} ({reason})") from error


def joined() -> TorchProcessGroup:
    """Return the group that this process was started in. Raises `ConfigError` where a launcher's
    variables are missing or wrong, `RunError` where the other ranks do not come."""
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"):
        value, many = os.environ.get(name, ""), os.environ["WORLD_SIZE"]
        if not value:
            raise ConfigError(
                f"WORLD_SIZE={many} needs several ranks, but {name} is not set; start them with "
                f"torchrun --nproc-per-node={many} -m tutelage ..., or unset WORLD_SIZE"
            )
        if name != "MASTER_ADDR" and not value.isdecimal():
            raise ConfigError(f"{name}={value!r} is not a number; start ranks with torchrun")
    size, rank, port = (int(os.environ[n]) for n in ("WORLD_SIZE", "RANK", "MASTER_PORT"))
    if rank >= size:
        raise ConfigError(f"RANK={rank} is not in WORLD_SIZE={size}")
    if port >= 1 << 16:
        raise ConfigError(f"MASTER_PORT={port} is not a port number below 65536")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"

    def connect() -> TorchProcessGroup:
        store: Any = next(rendezvous("env://", rank, size, timeout=MEETING))[0]
        own = cast("Any", dist).PrefixStore(meet(store, rank, size), store)
        dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=WORKING)
        return TorchProcessGroup(rank, size)

    try:
        group = in_thread(connect)
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        reason = str(error).partition("\n")[0]
        what = "cannot listen" if "failed to listen" in reason else "found no other ranks"
        raise RunError(f"rank {rank} of {size} {what} at {where}: {reason}") from error
    if rank and threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, *ENDING):  # rank 0 hears them, and ends all
            signal.signal(number, signal.SIG_IGN)
    return group


def meet(store: Any, rank: int, size: int) -> str:
    """Return a name that the ranks of this start agree on. A launcher's store keeps the values of
    ranks before a restart, so each rank asks with a word that nobody has used, and is answered
    under it. Raises `RuntimeError` where a rank does not come in time."""
    word, until = secrets.token_hex(8), time.monotonic() + MEETING.total_seconds()
    if rank:
        store.set(f"asks/{rank}", word)
        store.wait([f"answer/{word}"], MEETING)
        name: str = store.get(f"answer/{word}").decode()
        store.set(f"known/{name}/{rank}", "")
        return name
    left = [*range(1, size)]
    while left:
        if time.monotonic() > until:
            raise RuntimeError(f"rank {left[0]} did not connect")
        for other in left:
            if store.check([f"asks/{other}"]):
                store.set(f"answer/{store.get(f'asks/{other}').decode()}", word)
        time.sleep(0.01)
        left = [other for other in left if not store.check([f"known/{word}/{other}"])]
    return word


def _packed(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpacked(packed: bytes) -> Any:
    return torch.load(io.BytesIO(packed), map_location="cpu", weights_only=False)
