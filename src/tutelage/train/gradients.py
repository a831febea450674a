"""The gradient of a batch, micro-batch by micro-batch, on one or more threads.

Each micro-batch gives its gradients apart; they are added in the order of the micro-batches, so the
sum does not depend on how many threads worked. Tensor operations release Python's lock, and
threads that each use one core need no barrier between operations, which makes them faster than
one thread with parallel operations at these sizes, and immune to a busy core. Callers give every
micro-batch the whole batch's denominator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

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


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """One pool for the process: every new thread would get a memory arena of its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix="tutelage-gradient")
