"""Optimizers and gradients: what continues is what would have gone on, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tutelage.config.rl import OptimizerConfig
from tutelage.weights import optim
from tutelage.weights.optim import SUPERVISED, Optimizer, make_optimizer
from tutelage.weights.process_group import ONE_PROCESS

Made = tuple[list[tuple[str, Tensor]], Optimizer]


def parameters(seed: int = 0) -> list[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "embed": (12, 8),
        "layers.0.up": (16, 8),
        "layers.0.norm": (8,),
        "layers.1.up": (8, 8),
    }
    return [
        (name, torch.randn(shape, generator=generator).requires_grad_())
        for name, shape in shapes.items()
    ]


def make_adamw() -> Made:
    named = parameters()
    keys = OptimizerConfig(lr=1e-2, betas=(0.9, 0.98), weight_decay=0.1)
    return named, make_optimizer(named, keys)


def make_muon() -> Made:
    named = parameters()
    return named, make_optimizer(named, SUPERVISED.model_copy(update={"lr": 1e-2}), "muon")


def work(named: list[tuple[str, Tensor]], optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        for i, (_, tensor) in enumerate(named):
            generator = torch.Generator().manual_seed(100 * step + i)
            tensor.grad = torch.randn(tensor.shape, generator=generator)
        optimizer.step(0.5 + step / 10)


@pytest.mark.parametrize("make", [make_adamw, make_muon])
def test_a_saved_state_goes_on_bit_for_bit(make: Callable[[], Made], tmp_path: Any) -> None:
    named, optimizer = make()
    work(named, optimizer, range(4))
    saved = {n: t.detach().clone() for n, t in named}
    torch.save(optimizer.state_dict(), tmp_path / "o.pt")
    work(named, optimizer, range(4, 9))

    again, fresh = make()
    fresh.load_state_dict(torch.load(tmp_path / "o.pt", weights_only=True))
    with torch.no_grad():
        for name, tensor in again:
            tensor.copy_(saved[name])
    work(again, fresh, range(4, 9))
    assert all(a.equal(b) for (_, a), (_, b) in zip(named, again, strict=True))

    unprepared, without = make()
    with torch.no_grad():
        for name, tensor in unprepared:
            tensor.copy_(saved[name])
    work(unprepared, without, range(4, 9))
    assert not all(a.equal(b) for (_, a), (_, b) in zip(named, unprepared, strict=True))


class Products(TorchDispatchMode):
    """Notes the number formats of products of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.formats: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.formats.add(args[-1].dtype)
        return func(*args, **(kwargs or {}))


def test_muon_multiplies_in_float32_where_the_processor_lacks_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: list[Tensor] = []
    for has, wanted in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(optim, "_has_bfloat16", lambda has=has: has)
        named, optimizer = make_muon()
        with Products() as products:
            work(named, optimizer, range(2))
        assert products.formats == {wanted}
        assert all(t.dtype == torch.float32 for _, t in named)
        ends.append(torch.cat([t.detach().flatten() for _, t in named]))
    moved = ends[1] - torch.cat([t.detach().flatten() for _, t in parameters()])
    assert 0 < (ends[0] - ends[1]).norm() < 0.05 * moved.norm()


@pytest.mark.parametrize("make", [make_adamw, make_muon])
def test_a_step_clips_steps_and_clears(make: Callable[[], Made]) -> None:
    named, optimizer = make()
    before = [t.detach().clone() for _, t in named]
    for _, tensor in named:
        tensor.grad = torch.full_like(tensor, 3.0)
    size = sum(t.numel() for _, t in named)
    assert optimizer.step() == pytest.approx(3.0 * size**0.5, rel=1e-5)
    assert all(t.grad is None for _, t in named)
    assert not any(a.equal(t) for a, (_, t) in zip(before, named, strict=True))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_gradients_add_up_in_the_order_of_the_items(threads: int) -> None:
    weights = torch.randn(40, 40, generator=torch.Generator().manual_seed(1)).requires_grad_()
    unused = torch.ones(3, requires_grad=True)
    generator = torch.Generator().manual_seed(2)
    items = [torch.randn(30, 40, generator=generator) for _ in range(7)]

    def loss(item: Tensor) -> tuple[Tensor, int]:
        return (item @ weights).tanh().pow(2).sum(), id(item)

    reports = ONE_PROCESS.accumulate([weights, unused], items, loss, threads=threads)
    assert reports == [id(item) for item in items]
    found = weights.grad
    assert found is not None
    assert unused.grad is None

    twin = weights.detach().clone().requires_grad_()
    wanted: Tensor | None = None
    for item in items:
        (grad,) = torch.autograd.grad((item @ twin).tanh().pow(2).sum(), [twin])
        wanted = grad if wanted is None else wanted + grad
    assert wanted is not None
    torch.testing.assert_close(found, wanted)
    weights.grad = None
    ONE_PROCESS.accumulate([weights, unused], items, loss, threads=1)
    assert weights.grad is not None
    assert torch.equal(weights.grad, found), "threads change no bit"


def test_threads_that_overtake_each_other_never_wait_for_ever() -> None:
    weights = torch.ones(2, requires_grad=True)
    for _ in range(300):
        ONE_PROCESS.accumulate([weights], range(5), lambda n: (weights.sum() * n, None), threads=3)
    assert weights.grad is not None
    assert weights.grad.tolist() == [3000.0, 3000.0]


def test_an_error_in_a_thread_is_raised() -> None:
    weights = torch.ones(2, requires_grad=True)

    def loss(item: int) -> tuple[Tensor, None]:
        if item == 2:
            raise ZeroDivisionError("item 2")
        return weights.sum() * item, None

    for threads in (1, 2):
        with pytest.raises(ZeroDivisionError, match="item 2"):
            ONE_PROCESS.accumulate([weights], [1, 2, 3], loss, threads=threads)
