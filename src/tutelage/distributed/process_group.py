"""`ProcessGroup` over torch.distributed: the ranks that torchrun has started, with gloo on CPUs.

Objects go from rank to rank as bytes and arrive in main memory. Every rank works on each size-th
micro-batch of a plan. Gradients are added by torch's own reduction, which repeats for the same
number of ranks; `tree` adds them in the order of a binary tree over the micro-batches instead,
which is the same sum on 1, 2 and 4 ranks: for the test of exactness, since it costs more.
`weights/process_group.py` has the protocol, and loads this module where there are several ranks.
"""

from __future__ import annotations

import datetime
import io
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from tutelage.distributed import sharding
from tutelage.distributed.checkpoint import write
from tutelage.distributed.heartbeat import Heartbeat
from tutelage.distributed.meeting import FirstRank, RankEndedError, meet
from tutelage.distributed.tree import accumulate_in_tree
from tutelage.errors import ConfigError, RunError
from tutelage.policy.hf_model import Network
from tutelage.policy.machine import SMALL_MODEL
from tutelage.policy.model import Policy
from tutelage.runs.signals import ENDING
from tutelage.weights.gradients import accumulate
from tutelage.weights.process_group import FirstRankLostError

Item = TypeVar("Item")
Out = TypeVar("Out")

MEETING = datetime.timedelta(minutes=5)
"""How long ranks wait for each other at the start."""
WORKING = datetime.timedelta(days=7)
"""How long one waits for the others later: rollouts take what they take, one that has ended is
noticed at once, and one that stands still by its missing signs of life (`heartbeat.py`)."""
LOST = "another rank has ended, so the run cannot continue"
"""How rank 0's message begins where another rank has ended."""
HEARD = 5.0
"""Seconds that rank 0, when it has failed, waits until the others are told."""
_ENDED = b"ended"


class TorchProcessGroup:
    """Ranks of torch.distributed."""

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        *,
        tree: bool = False,
        shard_from: int = SMALL_MODEL,
        first: FirstRank | None = None,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        """The default group has been made where `size` is above 1, and `first` is its rank 0. Each
        rank has the whole of a model below `shard_from` parameters. Raises `ConfigError` for a
        number of ranks that no binary tree has."""
        if tree and size & (size - 1):
            raise ConfigError(
                f"the number of ranks must be a power of two (1, 2, 4, 8 ...), got {size}"
            )
        self.rank, self.size, self._tree = rank, size, tree
        self._over, self._shard_from, self.first = False, shard_from, first
        self._heartbeat = heartbeat
        self._sharded = WeakSet[Network]()

    def agree(self, make: Callable[[], Out]) -> Out:
        """See `ProcessGroup`. What rank 0 raises ends the others, quietly."""
        if self.size == 1:
            return make()
        if self.rank:
            (told,) = self._broadcast(None)
            if told == _ENDED:
                raise SystemExit(0)
            return cast("Out", _unpacked(told))
        try:
            made = make()
        except BaseException:
            self._end_others()
            raise
        self._broadcast(_packed(made))
        return made

    def map(self, items: Sequence[Item], work: Callable[[Item], Out]) -> list[Out]:
        """See `ProcessGroup`."""
        mine = items[self.rank :: self.size]
        with self._peers(computes=True):
            found = [work(item) for item in mine]
            if self._sharded and len(mine) < -(-len(items) // self.size):
                work(items[-1])  # whoever gathers a tensor needs all
        self._release()
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
        with self._peers(computes=True):
            reports = self._accumulated(parameters, items, loss, threads)
        return self._together(reports, len(items))

    def _accumulated(
        self,
        parameters: Sequence[Tensor],
        items: Sequence[Item],
        loss: Callable[[Item], tuple[Tensor, Out]],
        threads: int,
    ) -> list[Out]:
        """What `loss` reports of this rank's items, once the gradients of all are added."""
        mine, turns = items[self.rank :: self.size], -(-len(items) // self.size)
        if sharding.is_sharded(parameters):
            same, padded = sharding.padded(items, self.rank, self.size, loss)
            if self._tree:
                found = accumulate_in_tree(parameters, same, turns, padded, self.size)
            else:
                found = accumulate(parameters, same, padded)
                self._reduce(sharding.whole(parameters))
            self._release()
            return cast("list[Out]", found[: len(mine)])
        if self._tree:
            return accumulate_in_tree(parameters, mine, turns, loss, self.size)
        reports = accumulate(parameters, mine, loss, threads=threads)
        self._reduce(parameters)
        return reports

    def clip(self, parameters: Sequence[Tensor], limit: float) -> float:
        """See `ProcessGroup`."""
        if sharding.is_sharded(parameters):
            with self._peers(computes=True):
                return sharding.clip(parameters, limit, exact=self._tree)
        return float(torch.nn.utils.clip_grad_norm_(parameters, limit))

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
            with self._peers(computes=True):
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
        with self._peers(computes=True):
            write(there, values)

    def leave(self) -> None:
        """The ranks have done what they were started for, or cannot any more."""
        self._over = True
        if self._heartbeat is not None:
            self._heartbeat.leave()

    def _end_others(self) -> None:
        """Tell the other ranks that this one has failed. Those that wait for something else, such
        as a sum of gradients, do not take it: they end because gloo closes the connections of an
        operation that has waited too long."""
        if self._over:
            return
        self.leave()
        self._tell_end()
        backend: Any = cast("Any", dist.group.WORLD)._get_backend(torch.device("cpu"))
        backend.set_timeout(datetime.timedelta(seconds=HEARD))
        with suppress(Exception):  # they may have ended already
            self._broadcast(_ENDED)

    def _tell_end(self) -> None:
        if self.rank == 0 and self.first is not None:
            self.first.tell_end()

    def _release(self) -> None:
        for network in self._sharded:
            sharding.release(network)

    def _reduce(self, parameters: Sequence[Tensor]) -> None:
        """Add the gradients of all ranks; a parameter that none has a gradient for stays so."""
        if self.size == 1 or not parameters:
            return
        there = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32)
        with self._peers():
            dist.all_reduce(there, dist.ReduceOp.MAX)
            for parameter in (p for p, any_has in zip(parameters, there, strict=True) if any_has):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)

    def _together(self, mine: list[Out], count: int) -> list[Out]:
        """What all ranks found, in the order of the items."""
        if self.size == 1:
            return mine
        found: list[Any] = [None] * self.size
        with self._peers():
            self._interruptible(lambda: dist.all_gather_object(found, _packed(mine)))
        by_rank: list[list[Out]] = [_unpacked(told) for told in found]
        return [by_rank[i % self.size][i // self.size] for i in range(count)]

    def _broadcast(self, told: bytes | None) -> list[Any]:
        there: list[Any] = [told]
        with self._peers():
            self._interruptible(lambda: dist.broadcast_object_list(there, src=0))
        return there

    def _interruptible(self, wait: Callable[[], object]) -> None:
        """Wait for the other ranks: on rank 0, which receives signals, in a thread that is left
        behind where one of them ends the wait. torch handles none before all ranks have come."""
        if self.rank or threading.current_thread() is not threading.main_thread():
            wait()
            return
        raised: list[BaseException] = []

        def work() -> None:
            try:
                wait()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=work, name="other-ranks", daemon=True)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]

    @contextmanager
    def _peers(self, *, computes: bool = False) -> Generator[None]:
        """Around what needs the other ranks: rank 0 says that one has ended, others end. Where this
        rank `computes` meanwhile, an error of its own is left as it is."""
        heartbeat = self._heartbeat
        try:
            with nullcontext() if heartbeat is None else heartbeat.waiting():
                yield
        except RuntimeError as error:
            if computes and not (isinstance(error, dist.DistError) or "/gloo/" in str(error)):
                raise
            self.leave()
            if self.rank == 1 and self.first is not None and self.first.was_killed():
                raise FirstRankLostError(
                    f"rank 0 of {self.size}, {self.first}, was killed, so the run cannot continue"
                ) from error
            if self.rank:
                raise SystemExit(0) from error
            self._tell_end()
            reason = str(error).partition("\n")[0].rpartition("] ")[2].partition(". ")[0]
            raise RunError(f"{LOST} ({reason})") from error


def joined() -> TorchProcessGroup:
    """The group that this process was started in. Raises `ConfigError` where a launcher's variables
    are not all there, `RunError` where the other ranks do not come, or one of them ends first."""
    size, rank = _number("WORLD_SIZE"), _number("RANK")
    _variable("MASTER_ADDR")
    if not 0 <= rank < size:
        raise ConfigError(f"RANK={rank} is not in WORLD_SIZE={size}")
    if not 0 <= (port := _number("MASTER_PORT")) < 1 << 16:
        raise ConfigError(f"MASTER_PORT={port} is not a port number below 65536")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        store, _, _ = next(rendezvous("env://", rank, size, timeout=MEETING))
        first, beats = list[FirstRank](), list[Heartbeat]()

        def join(name: str) -> None:
            prefixed = partial(cast("Any", dist).PrefixStore, name)
            own, told = (prefixed(s) for s in (store, cast("Any", store).clone()))
            beats.append(Heartbeat(lambda: prefixed(cast("Any", store).clone()), rank, size))
            connect = partial(dist.init_process_group, backend, store=own, rank=rank)
            first.append(FirstRank(told, rank, partial(connect, world_size=size, timeout=WORKING)))
            beats[0].start()

        meet(store, rank, size, join, MEETING.total_seconds())
    except RankEndedError as ended:
        if rank:
            raise SystemExit(0) from ended
        raise RunError(f"{LOST}: {ended}") from ended
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        reason = str(error).partition("\n")[0]
        what = "cannot listen" if "failed to listen" in reason else "found no other ranks"
        raise RunError(f"rank {rank} of {size} {what} at {where}: {reason}") from error
    if rank and threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, *ENDING):  # rank 0 hears them, and ends all
            signal.signal(number, signal.SIG_IGN)
    return TorchProcessGroup(rank, size, first=first[0], heartbeat=beats[0])


def _variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        size = os.environ["WORLD_SIZE"]
        raise ConfigError(
            f"WORLD_SIZE={size} needs several ranks, but {name} is not set; start them with "
            f"torchrun --nproc-per-node={size} -m tutelage ..., or unset WORLD_SIZE"
        )
    return value


def _number(name: str) -> int:
    value = _variable(name)
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"{name}={value!r} is not a number; start ranks with torchrun") from None


def _packed(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpacked(told: bytes) -> Any:
    return torch.load(io.BytesIO(told), map_location="cpu", weights_only=False)
