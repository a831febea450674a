"""A model whose tensors are sharded over the ranks: FSDP2, block by block.

A rank holds its part of each tensor, of its gradient and of the optimizer's state; a block's
tensors are whole only while it computes. What is trained so is a copy: the policy that samples, is
saved and is copied further stays whole on rank 0, which takes the weights over after each update,
tensor by tensor (`publish`). `process_group.py` works on micro-batches through this module, of
which every rank has equally many here, since gathering a tensor needs all: a rank without one
computes another's and drops it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import get_total_norm

from tutelage.policy.hf_model import HFNetwork, Network
from tutelage.policy.model import Policy

Item = TypeVar("Item")
Out = TypeVar("Out")


def sharded(
    policy: Policy, size: int, dtype: torch.dtype, *, offload: bool, tree: bool, head: bool = True
) -> Policy:
    """A copy of the policy, sharded over all ranks; its blocks compute with `dtype`, and gradients
    are added in float32. With `offload` what is not computed with lies in main memory; without
    `head` it gives hidden states alone."""
    network = policy.network.copy()
    if isinstance(network, HFNetwork) and not head:  # whose own call gathers the tensors
        network = network.headless()
    module: nn.Module = network.model if isinstance(network, HFNetwork) else network
    device = policy.device.type
    settings: dict[str, Any] = {"mesh": init_device_mesh(device, (size,))}
    if dtype != torch.float32:
        settings["mp_policy"] = MixedPrecisionPolicy(dtype, torch.float32)
    if device != "cpu":
        settings["offload_policy"] = CPUOffloadPolicy() if offload else OffloadPolicy()
    parts = [*blocks(network), module]
    for part in parts:
        fully_shard(part, **settings)
    for part in parts:
        made: Any = part
        made.set_force_sum_reduction_for_comms(True)
        made.set_gradient_divide_factor(1.0)
        if tree:
            from tutelage.distributed.tree import TreeReduceScatter

            made.set_custom_reduce_scatter(TreeReduceScatter())
    return Policy(network, policy.config, policy.codec, version=policy.version)


def blocks(network: Any) -> list[nn.Module]:
    """The blocks of a model, which are gathered one after the other."""
    if not isinstance(network, HFNetwork):
        return list(network.layers)
    names: set[str] = set(getattr(network.model, "_no_split_modules", None) or ())
    modules: list[nn.Module] = list(network.model.modules())
    return [module for module in modules if type(module).__name__ in names]


def release(network: Network) -> None:
    """Let go of tensors that are whole after a forward pass without a backward one: they would be
    those of before the next update."""
    whole: nn.Module = network.model if isinstance(network, HFNetwork) else network
    parts: list[Any] = [*blocks(network), whole]
    for part in parts:
        part.reshard()


@torch.no_grad()
def publish(trained: Policy, whole: Policy, rank: int) -> None:
    """Bring the whole policy of rank 0 up to the sharded one."""
    for (_, part), (_, tensor) in zip(trained.named(), whole.named(), strict=True):
        now = full(part)
        if rank == 0:
            tensor.copy_(now)
    whole.version = trained.version


def full(tensor: Tensor) -> Tensor:
    """The whole of a tensor, on every rank."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def share_out(optimizer: torch.optim.Optimizer) -> None:
    """Of a state that was loaded whole, keep this rank's parts."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(parameter, DTensor) and value.shape == parameter.shape:
                state[name] = _part(value, parameter)


@torch.no_grad()
def load(named: Iterable[tuple[str, Tensor]], values: Mapping[str, Tensor]) -> None:
    """Set tensors from whole ones, of which this rank keeps its parts."""
    for name, tensor in named:
        value = values[name]
        tensor.copy_(_part(value, tensor) if isinstance(tensor, DTensor) else value)


def _part(value: Tensor, like: DTensor) -> DTensor:
    """A whole tensor, sharded as another one is."""
    mesh, places = like.device_mesh, like.placements
    return distribute_tensor(value.to(like.device), mesh, places, src_data_rank=None)


def in_parts(values: object) -> bool:
    """Whether a state, of dictionaries and lists, holds parts of tensors."""
    if isinstance(values, dict):
        return any(map(in_parts, cast("dict[object, object]", values).values()))
    if isinstance(values, list):
        return any(map(in_parts, cast("list[object]", values)))
    return isinstance(values, DTensor)


def is_sharded(parameters: Sequence[Tensor]) -> bool:
    """Whether a rank has parts of these."""
    return any(isinstance(p, DTensor) for p in parameters)


def whole(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Those that every rank has whole beside what is sharded, such as the head of a critic."""
    return [p for p in parameters if not isinstance(p, DTensor)]


def clip(parameters: Sequence[Tensor], limit: float, *, exact: bool) -> float:
    """`clip_grad_norm_` of sharded gradients; `exact` as one process computes it, from whole
    gradients one by one."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    others = whole(gradients)
    if not exact and not others:
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        return float(full(norm))
    if exact:
        norms = [torch.linalg.vector_norm(full(g)) for g in gradients]
    else:
        parts = [g for g in gradients if isinstance(g, DTensor)]
        norms = [full(get_total_norm(parts)).cpu(), get_total_norm(others).cpu()]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    scale = float(torch.clamp(limit / (norm + 1e-6), max=1.0))
    for gradient in gradients:
        gradient.mul_(scale)
    return float(norm)


def padded(
    items: Sequence[Item], rank: int, size: int, loss: Callable[[Item], tuple[Tensor, Out]]
) -> tuple[list[Item | None], Callable[[Item | None], tuple[Tensor, Out | None]]]:
    """This rank's items, as many as any rank has, and their loss: None has the last item's, times
    zero."""
    mine: list[Item | None] = list(items[rank::size])
    mine += [None] * (-(-len(items) // size) - len(mine))

    def of(item: Item | None) -> tuple[Tensor, Out | None]:
        value, report = loss(items[-1] if item is None else item)
        return (value * 0.0, None) if item is None else (value, report)

    return mine, of
