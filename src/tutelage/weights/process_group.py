"""The processes that train together: this one alone, or the ranks of torch.distributed.

Every rank runs the same step on the same rows: rank 0 plays the rollouts and sends them to the
other ranks (`broadcast`), each rank computes its share of the micro-batches (`map`, `accumulate`),
and all get the same reports, gradients and metrics. `tutelage.distributed.process_group` implements
several ranks; it is imported if a launcher has started this process.

The gradient of a batch is added micro-batch by micro-batch, on one or more threads. Each
parameter's gradients are added in the order of the micro-batches; a backward pass that is ahead
waits for its turn. So the sum does not depend on the number of threads, and threads have no
separate gradients. Tensor operations release Python's lock, and threads that each use one core need
no barrier between operations, so they are faster than one thread with parallel operations, and a
busy core slows down only one of them. Callers divide every micro-batch by the whole batch's
denominator.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Condition, local
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from tutelage.errors import RunError
from tutelage.policy.kernels import matmul_kernel

if TYPE_CHECKING:
    from tutelage.policy.model import Policy

Item = TypeVar("Item")
Out = TypeVar("Out")


class ProcessGroup:
    """The process group of a training with a single process.

    `TorchProcessGroup` overrides these methods for several ranks, which all call them in the same
    order.
    """

    rank = 0
    """Rank of this process, from 0. Only rank 0 plays rollouts, writes files and shows progress."""
    size = 1
    """Number of processes."""

    def broadcast(self, compute: Callable[[], Out]) -> Out:
        """Call `compute` on rank 0 and return its value on every rank."""
        return compute()

    def map(self, items: Sequence[Item], function: Callable[[Item], Out]) -> list[Out]:
        """Apply `function` to all items, split over the ranks, and return the results in order."""
        return [function(item) for item in items]

    def accumulate(
        self,
        parameters: Sequence[Tensor],
        items: Sequence[Item],
        loss: Callable[[Item], tuple[Tensor, Out]],
        *,
        threads: int = 1,
    ) -> list[Out]:
        """Accumulate the gradients of `loss(item)` over all items, split over the ranks.

        `loss` returns a scalar with gradient and a detached report. Every rank gets the reports of
        all items, in order.
        """
        # torch takes oneDNN for attention's batched products when reduced precision is allowed. On
        # processors where oneDNN has no faster reduced format for float32 operands, that is plain
        # float32 at twice MKL's speed.
        devices = {_compute_device(p) for p in parameters}
        setting = nullcontext()
        if "cuda" in devices:
            setting = deterministic_kernels()
        elif devices == {"cpu"} and _is_lossless():
            setting = _reduced_precision()
        with setting:
            if threads <= 1 or len(items) <= 1:
                reports: list[Out] = []
                for item in items:
                    value, report = loss(item)
                    value.backward()
                    reports.append(report)
                return reports

            turns = _Turns(parameters)

            def run_item(number: int, item: Item) -> Out:
                with turns.compute_turn(number):
                    value, report = loss(item)
                    value.backward()
                return report

            with turns.ordered_backward():
                futures = [_get_pool(threads).submit(run_item, *pair) for pair in enumerate(items)]
                try:
                    return [future.result() for future in futures]
                finally:
                    wait(futures)

    def is_main_alive(self) -> bool:
        """Return True if rank 0 continues after an error on this rank."""
        return False

    def clip(self, parameters: Sequence[Tensor], max_norm: float) -> float:
        """Clip the gradients to a norm of `max_norm`, and return the norm before clipping."""
        return float(torch.nn.utils.clip_grad_norm_(parameters, max_norm))

    def shard(
        self, policy: Policy, dtype: torch.dtype, *, offload: bool = False, head: bool = True
    ) -> Policy:
        """Return the policy to train: the policy itself, or a sharded copy.

        `offload` keeps unused tensors in main memory; without `head` the copy returns hidden states
        only.
        """
        return policy

    def publish(self, sharded_policy: Policy, policy: Policy) -> None:
        """Copy the updated weights of a sharded policy to the full policy of rank 0."""

    def shard_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Shard the loaded state of an optimizer."""

    @torch.no_grad()
    def load(self, tensors: Iterable[tuple[str, Tensor]], values: Mapping[str, Tensor]) -> None:
        """Copy full values into tensors or into this rank's shards."""
        for name, tensor in tensors:
            tensor.copy_(values[name])

    def has_shards(self, state: object) -> bool:
        """Return True if a state has sharded tensors."""
        return False

    def write_shards(self, folder: Path | None, state: dict[str, Any]) -> None:
        """Write the shards of all ranks to the folder passed by rank 0."""


ONE_PROCESS = ProcessGroup()
"""The group of this process alone, used unless a launcher has started several ranks."""


@functools.cache
def get_group() -> ProcessGroup:
    """Return the process group of a launcher, or the group of this process without a launcher.

    Raises `ConfigError` if a launcher's variables are incomplete.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return ONE_PROCESS
    made: ProcessGroup = importlib.import_module("tutelage.distributed.process_group").join_group()
    return made


def run_on_all(group: ProcessGroup, compute: Callable[[], Out]) -> Out:
    """Call `compute` on every rank, and return its value if it succeeds on all ranks.

    An exception on any rank is raised on rank 0; other ranks exit silently.
    """
    made: Out | None = None
    error: Exception | None = None
    try:
        made = compute()
    except Exception as raised:
        error = raised
    told = None if error is None else str(error) or type(error).__name__
    group.broadcast(lambda: None)  # what rank 0 has failed at meanwhile ends the others here
    wrong = [(rank, text) for rank, text in enumerate(group.map(range(group.size), lambda _: told))]
    wrong = [(rank, text) for rank, text in wrong if text is not None]
    if wrong and group.rank:
        raise SystemExit(0)
    if error is not None:
        raise error
    if wrong:
        rank, text = wrong[0]
        raise RunError(f"rank {rank} of {group.size}: {text}")
    return cast("Out", made)


# ---------------------------------------------------------------- gradients


def _compute_device(parameter: Any) -> str:
    """Return the type of the device that computes with a parameter."""
    mesh = getattr(parameter, "device_mesh", None)
    return parameter.device.type if mesh is None else mesh.device_type


class _Turns:
    """Orders the gradient additions of threads by the number of the micro-batch."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._turns = [0] * len(parameters)
        self._changed = Condition()
        self._failed = False
        self._mine = local()

    @contextmanager
    def ordered_backward(self) -> Generator[None]:
        """Make backward passes inside the context add their gradients in order."""
        hooks = [
            hook
            for at, parameter in enumerate(self._parameters)
            if parameter.requires_grad
            for hook in (
                parameter.register_hook(functools.partial(self._wait_turn, at)),
                parameter.register_post_accumulate_grad_hook(functools.partial(self._end_turn, at)),
            )
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def compute_turn(self, number: int) -> Generator[None]:
        """Compute micro-batch `number` in this thread, inside the context.

        Later micro-batches do not wait for a failed micro-batch or for a missing gradient.
        """
        self._mine.number = number
        try:
            yield
            for at in range(len(self._turns)):
                self._wait_turn(at)
                self._end_turn(at)
        except BaseException:
            with self._changed:
                self._failed = True
                self._changed.notify_all()
            raise

    def _wait_turn(self, index: int, _: Tensor | None = None) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._turns[index] >= self._mine.number or self._failed)
            if self._turns[index] < self._mine.number:
                raise RuntimeError("the gradient of an earlier micro-batch failed")

    def _end_turn(self, index: int, _: Tensor | None = None) -> None:
        with self._changed:
            self._turns[index] = max(self._turns[index], self._mine.number + 1)
            self._changed.notify_all()


@contextmanager
def deterministic_kernels() -> Generator[None]:
    """Make torch use deterministic kernels inside the context, with a warning if it has none.

    Only gradients need them, and they slow down other operations, such as writing keys and values.
    A user's own setting is kept.
    """
    if torch.are_deterministic_algorithms_enabled():
        yield
        return
    memory: Any = torch.utils.deterministic  # type: ignore[attr-defined]
    filled = memory.fill_uninitialized_memory
    memory.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        memory.fill_uninitialized_memory = filled


@contextmanager
def _reduced_precision() -> Generator[None]:
    """Allow reduced precision in float32 products of oneDNN inside the context.

    Torch's setting for all devices would make GPUs use TF32.
    """
    setting: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = before


@functools.cache
def _is_lossless() -> bool:
    """Return True if reduced precision is exact on this processor.

    It is measured once on fixed numbers, so it is the same in every run on a machine.
    """
    if matmul_kernel() != "onednn":
        return False
    a = torch.linspace(-1, 1, 64 * 128).view(64, 128)
    b = torch.linspace(-1, 2, 128 * 64).view(128, 64).cos()
    with _reduced_precision():
        error = ((a @ b).double() - a.double() @ b.double()).abs().max()
    return float(error) < 1e-4  # bfloat16 products are off by 1e-2


@functools.cache
def _get_pool(threads: int) -> ThreadPoolExecutor:
    """Return the shared thread pool. Threads are reused, since each has a memory arena."""
    return ThreadPoolExecutor(threads, "tutelage-gradient", lambda: torch.set_num_threads(1))
