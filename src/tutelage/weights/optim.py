"""Optimizers: AdamW for reinforcement learning, Muon with AdamW for the cold start.

Both are torch's own. Muon (Jordan et al. 2024) orthogonalises the momentum of matrices; on the
embedded policy it reaches the same skill in about half the steps of AdamW. It leaves embeddings,
norms and biases to AdamW. `learner.py` and `cold_start.py` step them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tutelage.config.rl import OptimizerConfig
from tutelage.weights.process_group import ONE_PROCESS, ProcessGroup

Kind = Literal["adamw", "muon"]
SUPERVISED = OptimizerConfig(betas=(0.9, 0.98), weight_decay=0.01)
"""Optimizer settings of supervised training from random weights."""


class Optimizer:
    """One or more torch optimizers over disjoint parameters, stepped together."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        clip_grad: float,
        group: ProcessGroup = ONE_PROCESS,
    ) -> None:
        self._parts = list(optimizers)
        self._clip, self._group = clip_grad, group
        self._rates = [[float(g["lr"]) for g in p.param_groups] for p in self._parts]
        self.parameters: list[Tensor] = [
            t for p in self._parts for g in p.param_groups for t in g["params"]
        ]

    def step(self, rate: float = 1.0) -> float:
        """Clip gradients, step with `rate` times the learning rates, and return the norm."""
        norm = self._group.clip(self.parameters, self._clip)
        for part, rates in zip(self._parts, self._rates, strict=True):
            for group, lr in zip(part.param_groups, rates, strict=True):
                group["lr"] = lr * rate
            with _step_context(part):
                part.step()
            part.zero_grad(set_to_none=True)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all optimizers."""
        return {"parts": [p.state_dict() for p in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict."""
        for part, saved in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(saved)
            self._group.shard_optimizer(part)


def make_optimizer(
    parameters: Sequence[tuple[str, Tensor]],
    optim: OptimizerConfig,
    kind: Kind = "adamw",
    group: ProcessGroup = ONE_PROCESS,
    prefix: str | None = None,
) -> Optimizer:
    """Create the optimizer configured by `actor.optim` or `critic.optim`.

    It is fused AdamW over all parameters, or Muon over the blocks' matrices and AdamW over the rest
    with the same learning rate. Tensors whose name begins with `prefix` have a separate AdamW.
    """
    matrices: list[Tensor] = []
    if kind == "muon":  # embedding and head are outside of the transformer's blocks
        blocks = ("layers.", ".h.", "blocks.")
        matrices = [t for n, t in parameters if t.ndim == 2 and any(part in n for part in blocks)]
    alone = [t for n, t in parameters if prefix is not None and n.startswith(prefix)]
    chosen = {id(t) for t in (*matrices, *alone)}
    rest = [t for _, t in parameters if id(t) not in chosen]
    lr, decay = optim.lr, optim.weight_decay
    parts: list[torch.optim.Optimizer] = []
    if matrices:
        parts.append(
            torch.optim.Muon(matrices, lr=lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
        )
    parts += [
        torch.optim.AdamW(tensors, lr=lr, betas=optim.betas, weight_decay=decay, fused=True)
        for tensors in ([rest, alone] if alone else [rest])
    ]
    return Optimizer(parts, optim.clip_grad, group)


def learning_rate_factor(step: int, total_steps: int | None, optim: OptimizerConfig) -> float:
    """Return the learning-rate factor at a step: warm-up, then constant or decaying to 0."""
    rate = min(1.0, (step + 1) / optim.warmup_steps) if optim.warmup_steps else 1.0
    if total_steps is not None and optim.lr_scheduler_type == "linear":
        rate *= 1.0 - step / total_steps
    if total_steps is not None and optim.lr_scheduler_type == "cosine":
        rate *= 0.5 + 0.5 * math.cos(math.pi * step / total_steps)
    return rate


class _InFloat32(TorchFunctionMode):
    """A torch function mode in which conversions to bfloat16 copy the tensor instead."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is Tensor.bfloat16:
            return args[0].clone()
        return func(*args, **(kwargs or {}))


def _step_context(optimizer: torch.optim.Optimizer) -> contextlib.AbstractContextManager[Any]:
    """Return the context manager for the step of an optimizer.

    Muon orthogonalises in bfloat16, which is ten to thirty times slower than float32 on a processor
    without it; there it stays in float32.
    """
    if not isinstance(optimizer, torch.optim.Muon) or _has_bfloat16():
        return contextlib.nullcontext()
    on_cpu = optimizer.param_groups[0]["params"][0].device.type == "cpu"
    return _InFloat32() if on_cpu else contextlib.nullcontext()


def _has_bfloat16() -> bool:
    """Return True if oneDNN has bfloat16 products for this processor (AVX-512, AMX and similar)."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
