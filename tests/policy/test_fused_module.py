"""The fused decoder is an ordinary module: parameters, state and hooks as torch's tools expect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tutelage.config.schema import LoraConfig
from tutelage.engine.factory import make_engine
from tutelage.policy.lora import with_lora
from tutelage.policy.network import FusedNetwork
from tutelage.policy.row import Row

FUSED = ("qwen2", "qwen3", "llama")
ROWS = [
    Row(tuple(range(20, 40)), (0,) * 8 + (1,) * 12),
    Row((*range(20, 30), 7), (0,) * 8 + (1,) * 3),
]
Fresh = Callable[..., Any]


def logp(policy: Any) -> torch.Tensor:
    return policy.score(ROWS).logp_K


@pytest.mark.parametrize("name", FUSED)
def test_its_parameters_are_the_tensors_that_are_trained(fresh: Fresh, name: str) -> None:
    policy = fresh(name)
    network = policy.network
    assert isinstance(network, FusedNetwork)
    named = dict(network.named_parameters())
    assert {n: id(t) for n, t in policy.named()} == {n: id(t) for n, t in named.items()}
    assert sum(p.numel() for p in network.parameters()) == policy.count()
    logp(policy).sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in network.parameters())
    assert float(nn.utils.clip_grad_norm_(network.parameters(), 1.0)) > 1.0


@pytest.mark.parametrize("name", FUSED)
def test_its_state_goes_into_another_one_that_then_says_the_same(fresh: Fresh, name: str) -> None:
    policy, other = fresh(name, 0), fresh(name, 1)
    engine = make_engine(other, slots=1)
    before = logp(other).detach()
    state = policy.network.state_dict()
    assert list(state) == [n for n, _ in policy.network.named_parameters()]
    other.network.load_state_dict(state)
    assert torch.equal(logp(other), logp(policy))
    assert not torch.equal(logp(other), before)
    # The engine computes with these very tensors, so it has them too.
    weights = engine.engine._backend._weights  # pyright: ignore
    assert all(
        a.data_ptr() == b.data_ptr()
        for a, b in zip(weights.parameters(), other.network.weights.parameters(), strict=True)
    )


@pytest.mark.parametrize("adapted", [False, True])
def test_a_copy_computes_activations_again_as_it_does(fresh: Fresh, adapted: bool) -> None:
    """What is sharded is a copy."""
    policy = fresh("qwen2")
    policy = with_lora(policy, LoraConfig(rank=4), seed=1) if adapted else policy
    assert policy.network.copy().checkpoints_blocks is False
    policy.network.recompute()
    assert policy.network.copy().checkpoints_blocks is True
