"""The processes that train together: this one alone, or the ranks of torch.distributed.

Every rank runs the same step on the same rows: rank 0 plays the rollouts and sends them to the
other ranks (`agree`), each rank computes its share of the micro-batches (`map`, `accumulate`), and
all get the same reports, gradients and metrics. `tutelage.distributed.process_group` implements
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
    """The processes of a training, here a single one.

    `TorchProcessGroup` overrides these methods for several ranks, which all call them in the same
    order.
    """

    rank = 0
    """Of this process, from 0. Rank 0 leads: it alone plays, writes and shows."""
    size = 1
    """Number of processes."""

    def agree(self, make: Callable[[], Out]) -> Out:
        """Call `make` on rank 0 only and return its value on every rank."""
        return make()

    def map(self, items: Sequence[Item], work: Callable[[Item], Out]) -> list[Out]:
        """Return the results of `work` for all items, in order; each rank computes its share."""
        return [work(item) for item in items]

    def accumulate(
        self,
        parameters: Sequence[Tensor],
        items: Sequence[Item],
        loss: Callable[[Item], tuple[Tensor, Out]],
        *,
        threads: int = 1,
    ) -> list[Out]:
        """Add the gradients of `loss(item)` over all items, of which each rank works on its share,
        to `parameters`. `loss` returns a scalar with gradient and anything detached to report:
        every rank gets the reports of all items, in order."""
        # torch takes oneDNN for attention's batched products when reduced precision is allowed. On
        # processors where oneDNN has no faster reduced format for float32 operands, that is plain
        # float32 at twice MKL's speed.
        devices = {_computes_on(p) for p in parameters}
        setting = nullcontext()
        if "cuda" in devices:
            setting = repeating()
        elif devices == {"cpu"} and _reduced_is_float32():
            setting = _reduced_on_cpu()
        with setting:
            if threads <= 1 or len(items) <= 1:
                reports: list[Out] = []
                for item in items:
                    value, report = loss(item)
                    value.backward()
                    reports.append(report)
                return reports

            turns = _Turns(parameters)

            def work(number: int, item: Item) -> Out:
                with turns.taken(number):
                    value, report = loss(item)
                    value.backward()
                return report

            with turns.watched():
                working = [_pool(threads).submit(work, *numbered) for numbered in enumerate(items)]
                try:
                    return [work.result() for work in working]
                finally:
                    wait(working)

    def goes_on(self) -> bool:
        """Return whether rank 0 goes on after what ended this rank."""
        return False

    def clip(self, parameters: Sequence[Tensor], limit: float) -> float:
        """Scale the gradients down to a norm of `limit`; return their norm before."""
        return float(torch.nn.utils.clip_grad_norm_(parameters, limit))

    def shard(
        self, policy: Policy, dtype: torch.dtype, *, offload: bool = False, head: bool = True
    ) -> Policy:
        """Return the policy to train: itself, or a sharded copy.

        `offload` keeps unused tensors in main memory; without `head` the copy returns hidden states
        only.
        """
        return policy

    def publish(self, trained: Policy, whole: Policy) -> None:
        """Copy the updated weights of the sharded `trained` to the policy that rank 0 samples from
        and saves."""

    def share_out(self, optimizer: torch.optim.Optimizer) -> None:
        """Shard an optimizer state that was loaded whole."""

    @torch.no_grad()
    def load(self, named: Iterable[tuple[str, Tensor]], whole: Mapping[str, Tensor]) -> None:
        """Load whole tensors into tensors, or into this rank's shards of them, bit for bit."""
        for name, tensor in named:
            tensor.copy_(whole[name])

    def in_parts(self, values: object) -> bool:
        """Return True if tensors of a state are sharded."""
        return False

    def write_parts(self, place: Path | None, values: dict[str, Any]) -> None:
        """Write each rank's shards of a state to the folder that rank 0 names."""


ONE_PROCESS = ProcessGroup()
"""The group of this process alone, used unless a launcher has started several ranks."""


@functools.cache
def launched() -> ProcessGroup:
    """Return the ranks that a launcher has started, or this process alone without a launcher.

    Raises `ConfigError` if a launcher's variables are incomplete.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return ONE_PROCESS
    made: ProcessGroup = importlib.import_module("tutelage.distributed.process_group").joined()
    return made


def in_step(group: ProcessGroup, make: Callable[[], Out]) -> Out:
    """Return the value of `make` on each rank, after it has succeeded on all.

    An exception on any rank is raised on rank 0; other ranks exit silently.
    """
    made: Out | None = None
    error: Exception | None = None
    try:
        made = make()
    except Exception as raised:
        error = raised
    told = None if error is None else str(error) or type(error).__name__
    group.agree(lambda: None)  # what rank 0 has failed at meanwhile ends the others here
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


def _computes_on(parameter: Any) -> str:
    """Return the type of a parameter's device, or of its ranks' device if it is sharded and
    offloaded."""
    mesh = getattr(parameter, "device_mesh", None)
    return parameter.device.type if mesh is None else mesh.device_type


class _Turns:
    """The order in which threads add to each parameter's gradient: by the number of the
    micro-batch."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._turns = [0] * len(parameters)
        self._changed = Condition()
        self._failed = False
        self._mine = local()

    @contextmanager
    def watched(self) -> Generator[None]:
        """Make backward passes inside the context add gradients in turn."""
        hooks = [
            hook
            for at, parameter in enumerate(self._parameters)
            if parameter.requires_grad
            for hook in (
                parameter.register_hook(functools.partial(self._await, at)),
                parameter.register_post_accumulate_grad_hook(functools.partial(self._pass_on, at)),
            )
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def taken(self, number: int) -> Generator[None]:
        """Compute micro-batch `number` in this thread.

        Later ones do not wait for a failed micro-batch, nor for a gradient that it does not have.
        """
        self._mine.number = number
        try:
            yield
            for at in range(len(self._turns)):
                self._await(at)
                self._pass_on(at)
        except BaseException:
            with self._changed:
                self._failed = True
                self._changed.notify_all()
            raise

    def _await(self, at: int, _: Tensor | None = None) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._turns[at] >= self._mine.number or self._failed)
            if self._turns[at] < self._mine.number:
                raise RuntimeError("the gradient of an earlier micro-batch failed")

    def _pass_on(self, at: int, _: Tensor | None = None) -> None:
        with self._changed:
            self._turns[at] = max(self._turns[at], self._mine.number + 1)
            self._changed.notify_all()


@contextmanager
def repeating() -> Generator[None]:
    """Make torch use deterministic kernels inside the context, with a warning where it has none.

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
def _reduced_on_cpu() -> Generator[None]:
    """Allow reduced precision in float32 products of oneDNN only.

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
def _reduced_is_float32() -> bool:
    """Return True if reduced precision loses nothing on this processor.

    It is measured once on fixed numbers, so it is the same in every run on a machine.
    """
    if matmul_kernel() != "onednn":
        return False
    a = torch.linspace(-1, 1, 64 * 128).view(64, 128)
    b = torch.linspace(-1, 2, 128 * 64).view(128, 64).cos()
    with _reduced_on_cpu():
        error = ((a @ b).double() - a.double() @ b.double()).abs().max()
    return float(error) < 1e-4  # bfloat16 products are off by 1e-2


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return the process's thread pool, which is reused because each thread has a memory arena."""
    return ThreadPoolExecutor(threads, "tutelage-gradient", lambda: torch.set_num_threads(1))
