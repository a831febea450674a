"""The gradient of a batch, micro-batch by micro-batch, on one or more threads.

Each micro-batch gives its gradients apart; they are added in the order of the micro-batches, so the
sum does not depend on how many threads worked. Tensor operations release Python's lock, and
threads that each use one core need no barrier between operations, which makes them faster than
one thread with parallel operations at these sizes, and immune to a busy core. Callers give every
micro-batch the whole batch's denominator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from tutelage.policy.kernels import matmul_kernel

Item = TypeVar("Item")
Out = TypeVar("Out")


def accumulate(
    parameters: Sequence[Tensor],
    items: Sequence[Item],
    loss: Callable[[Item], tuple[Tensor, Out]],
    *,
    threads: int = 1,
) -> list[Out]:
    """Add the gradients of `loss(item)` over all items to `parameters`; return what else it gave.

    `loss` returns a scalar with gradient and anything detached to report.
    """
    # torch takes oneDNN for attention's batched products when reduced precision is allowed. On
    # processors where oneDNN has no faster reduced format for float32 operands, that is plain
    # float32 at twice MKL's speed.
    on_cpu = all(p.device.type == "cpu" for p in parameters)
    with _reduced_on_cpu() if on_cpu and _reduced_is_float32() else nullcontext():
        return _accumulate(parameters, items, loss, threads)


def _accumulate(
    parameters: Sequence[Tensor],
    items: Sequence[Item],
    loss: Callable[[Item], tuple[Tensor, Out]],
    threads: int,
) -> list[Out]:
    if threads <= 1 or len(items) <= 1:
        reports: list[Out] = []
        for item in items:
            value, report = loss(item)
            value.backward()
            reports.append(report)
        return reports

    def work(item: Item) -> tuple[tuple[Tensor | None, ...], Out]:
        value, report = loss(item)
        return torch.autograd.grad(value, parameters, allow_unused=True), report

    reports = []
    for grads, report in _pool(threads).map(work, items):
        for parameter, grad in zip(parameters, grads, strict=True):
            if grad is not None:
                parameter.grad = grad if parameter.grad is None else parameter.grad + grad
        reports.append(report)
    return reports


@contextmanager
def _reduced_on_cpu() -> Generator[None]:
    """Allow oneDNN, and nobody else, reduced precision in float32 products: torch's switch for all
    devices would put the GPUs of such a host on TF32."""
    setting: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = before


@functools.cache
def _reduced_is_float32() -> bool:
    """Whether reduced precision loses nothing here: a property of the processor, measured once on
    fixed numbers, so it is the same in every run on a machine."""
    if matmul_kernel() != "onednn":
        return False
    a = torch.linspace(-1, 1, 64 * 128).view(64, 128)
    b = torch.linspace(-1, 2, 128 * 64).view(128, 64).cos()
    with _reduced_on_cpu():
        error = ((a @ b).double() - a.double() @ b.double()).abs().max()
    return float(error) < 1e-4  # bfloat16 products are off by 1e-2


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """One pool for the process: every new thread would get a memory arena of its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix="tutelage-gradient")
