"""Shard a model's tensors over the ranks with FSDP2, block by block.

A rank holds its shard of each tensor, of its gradient and of the optimizer's state; a block's
tensors are whole only while the block computes. The sharded model is a copy for training: the
policy that samples and is saved stays whole on rank 0, which gets the weights after each update,
tensor by tensor (`publish`). Gathering a tensor needs all ranks, so every rank computes equally
many micro-batches; a rank with fewer computes another rank's and drops the result.
`process_group.py` calls this.
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


def shard_policy(
    policy: Policy, size: int, dtype: torch.dtype, *, offload: bool, tree: bool, head: bool = True
) -> Policy:
    """Return a copy of the policy, sharded over all ranks.

    Blocks compute in `dtype` and gradients are added in float32. `offload` keeps unused tensors in
    main memory; without `head` the copy returns hidden states only.
    """
    network = policy.network.copy()
    if isinstance(network, HFNetwork) and not head:  # whose own call gathers the tensors
        network = network.without_head()
    module: nn.Module = network.model if isinstance(network, HFNetwork) else network
    device = policy.device.type
    settings: dict[str, Any] = {"mesh": init_device_mesh(device, (size,))}
    if dtype != torch.float32:
        settings["mp_policy"] = MixedPrecisionPolicy(dtype, torch.float32)
    if device != "cpu":
        settings["offload_policy"] = CPUOffloadPolicy() if offload else OffloadPolicy()
    parts = [*find_blocks(network), module]
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


def find_blocks(network: Any) -> list[nn.Module]:
    """Return the blocks of a model that are sharded and gathered separately."""
    if not isinstance(network, HFNetwork):
        return list(network.layers)
    names: set[str] = set(getattr(network.model, "_no_split_modules", None) or ())
    modules: list[nn.Module] = list(network.model.modules())
    return [module for module in modules if type(module).__name__ in names]


def release(network: Network) -> None:
    """Free gathered tensors after a forward pass without a backward pass.

    Otherwise the next forward pass would use weights from before the next update.
    """
    whole: nn.Module = network.model if isinstance(network, HFNetwork) else network
    parts: list[Any] = [*find_blocks(network), whole]
    for part in parts:
        part.reshard()


@torch.no_grad()
def publish(sharded_policy: Policy, policy: Policy, rank: int) -> None:
    """Copy sharded weights to the full policy of rank 0."""
    parts = sharded_policy.named_tensors()
    for (_, part), (_, tensor) in zip(parts, policy.named_tensors(), strict=True):
        now = gather_tensor(part)
        if rank == 0:
            tensor.copy_(now)
    policy.version = sharded_policy.version


def gather_tensor(tensor: Tensor) -> Tensor:
    """Return the full tensor on every rank."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Shard the loaded state of an optimizer."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(parameter, DTensor) and value.shape == parameter.shape:
                state[name] = _shard_like(value, parameter)


@torch.no_grad()
def load(tensors: Iterable[tuple[str, Tensor]], values: Mapping[str, Tensor]) -> None:
    """Copy full values into tensors. A sharded tensor gets this rank's shard."""
    for name, tensor in tensors:
        value = values[name]
        tensor.copy_(_shard_like(value, tensor) if isinstance(tensor, DTensor) else value)


def _shard_like(value: Tensor, target: DTensor) -> DTensor:
    """Shard a full tensor in the same way as the tensor `target`."""
    mesh, places = target.device_mesh, target.placements
    return distribute_tensor(value.to(target.device), mesh, places, src_data_rank=None)


def has_shards(values: object) -> bool:
    """Return True if nested dictionaries and lists contain a sharded tensor."""
    if isinstance(values, dict):
        return any(map(has_shards, cast("dict[object, object]", values).values()))
    if isinstance(values, list):
        return any(map(has_shards, cast("list[object]", values)))
    return isinstance(values, DTensor)


def is_sharded(parameters: Sequence[Tensor]) -> bool:
    """Return True if at least one tensor is sharded."""
    return any(isinstance(p, DTensor) for p in parameters)


def select_replicated(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors that are not sharded, such as the head of a critic."""
    return [p for p in parameters if not isinstance(p, DTensor)]


def clip(parameters: Sequence[Tensor], max_norm: float, *, exact: bool) -> float:
    """Clip sharded gradients to a norm of `max_norm` and return their norm.

    `exact` computes the norm as a single process does, from whole gradients one by one.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    others = select_replicated(gradients)
    if not exact and not others:
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        return float(gather_tensor(norm))
    if exact:
        norms = [torch.linalg.vector_norm(gather_tensor(g)) for g in gradients]
    else:
        parts = [g for g in gradients if isinstance(g, DTensor)]
        norms = [gather_tensor(get_total_norm(parts)).cpu(), get_total_norm(others).cpu()]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    scale = float(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    for gradient in gradients:
        gradient.mul_(scale)
    return float(norm)


def pad_items(
    items: Sequence[Item], rank: int, size: int, loss: Callable[[Item], tuple[Tensor, Out]]
) -> tuple[list[Item | None], Callable[[Item | None], tuple[Tensor, Out | None]]]:
    """Return this rank's items, padded with None to equal length on all ranks, and their loss.

    The loss of None is zero times the loss of the last item.
    """
    mine: list[Item | None] = list(items[rank::size])
    mine += [None] * (-(-len(items) // size) - len(mine))

    def padded_loss(item: Item | None) -> tuple[Tensor, Out | None]:
        value, report = loss(items[-1] if item is None else item)
        return (value * 0.0, None) if item is None else (value, report)

    return mine, padded_loss
