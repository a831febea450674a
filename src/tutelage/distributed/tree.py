"""Add gradients in the order of a binary tree over micro-batches, bit-equal on 1, 2 and 4 ranks.

In each round every rank has one of `size` micro-batches. Their gradients are added pairwise over
the ranks, which is the lower part of the tree, and a binary counter adds the sums of the rounds.
Missing micro-batches of the last round count as zeros. Of a sharded model each rank adds its shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
from torch.distributed.tensor import DTensor

from tutelage.weights.process_group import ONE_PROCESS

Item = TypeVar("Item")
Out = TypeVar("Out")


def accumulate_in_tree(
    parameters: Sequence[Tensor],
    items: Sequence[Item],
    rounds: int,
    loss: Callable[[Item], tuple[Tensor, Out]],
    size: int,
) -> list[Out]:
    """Accumulate gradients over all ranks, and return the reports of `loss` on this rank's items.

    In each of `rounds` rounds every rank has at most one micro-batch of its `items`.
    """
    reports: list[Out] = []
    trees: dict[int, list[Tensor]] = {}
    for index in range(rounds):
        reports += ONE_PROCESS.accumulate(parameters, items[index : index + 1], loss)
        height, total = size.bit_length() - 1, [_sum_over_ranks(p, size) for p in parameters]
        for parameter in parameters:
            parameter.grad = None
        while height in trees:
            total = [x + y for x, y in zip(trees.pop(height), total, strict=True)]
            height += 1
        trees[height] = total
    whole: list[Tensor] = []
    for height in sorted(trees):  # the smallest trees stand to the right
        left = trees[height]
        whole = [x + y for x, y in zip(left, whole, strict=True)] if whole else left
    for parameter, gradient in zip(parameters, whole, strict=False):
        parameter.grad = _shard_like(parameter, gradient)
    return reports


def _sum_over_ranks(parameter: Tensor, size: int) -> Tensor:
    """Return a parameter's gradient summed pairwise over the ranks.

    For a sharded parameter, return this rank's shard, which is already summed.
    """
    own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    if isinstance(own, DTensor):
        return own.to_local()
    if size == 1:
        return own
    parts = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(parts, own.contiguous())
    return _sum_pairwise(parts)


def _sum_pairwise(parts: list[Tensor]) -> Tensor:
    while len(parts) > 1:
        parts = [x + y for x, y in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _shard_like(parameter: Tensor, gradient: Tensor) -> Tensor:
    if not isinstance(parameter, DTensor):
        return gradient
    mesh, places = parameter.device_mesh, parameter.placements
    shape, stride = parameter.shape, parameter.stride()
    return DTensor.from_local(gradient, mesh, places, shape=shape, stride=stride)


class TreeReduceScatter(ReduceScatter):
    """A reduce-scatter that adds the ranks' gradients pairwise."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate a buffer for the gradients."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Reduce the ranks' `input_tensor`s into `output_tensor`."""
        found = torch.empty_like(input_tensor)
        dist.all_to_all_single(found, input_tensor, group=group)
        output_tensor.copy_(_sum_pairwise(list(found.view(group.size(), -1))))
