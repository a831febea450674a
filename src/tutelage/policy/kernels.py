"""Which matrix kernels a machine gets, and the linear layer that uses them.

The CPU build of torch multiplies float32 through MKL, which falls back to half-width vectors on
processors that are not Intel's; oneDNN, in the same wheel, does not. Measured on an AMD EPYC with
AVX-512: 220 against 95 GFLOP/s forward, 130-200 against 90 backward. So on an AMD processor
`linear` calls oneDNN, strided operands included, and plain torch everywhere else. The choice
depends on the processor alone, never on a timing, so that a run repeats; it is part of the recorded
conditions. oneDNN compiles a kernel per shape: callers round row counts up (`rounded`).
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROUND_TO = 64
"""Row counts of training batches are padded to a multiple of this."""


def rounded(count: int, multiple: int = ROUND_TO) -> int:
    """`count` rounded up to a multiple, so that few kernel shapes occur."""
    return -(-count // multiple) * multiple


@functools.cache
def cpu_vendor() -> str:
    """The processor's vendor string, such as AuthenticAMD; empty where it is not known."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    lines = (line.partition(":")[2].strip() for line in text.splitlines() if "vendor_id" in line)
    return next(lines, platform.processor())


@functools.cache
def matmul_kernel() -> str:
    """`onednn` on AMD processors where the wheel has it, else `torch`."""
    has = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return "onednn" if has and "AMD" in cpu_vendor() else "torch"


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [N, in] times weight [out, in] transposed; any strides."""
    out: Any = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


class _OneDNNLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad = grads[0]
        return (
            _onednn(grad, weight.t()) if ctx.needs_input_grad[0] else None,
            _onednn(grad.t(), x.t()) if ctx.needs_input_grad[1] else None,
            grad.sum(0) if ctx.has_bias else None,
        )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` for [..., in] inputs, by the kernel this machine gets."""
    eligible = x.dtype == torch.float32 and x.device.type == "cpu" and matmul_kernel() == "onednn"
    if not eligible or not x.numel():  # oneDNN refuses empty operands
        return F.linear(x, weight, bias)
    flat = x.reshape(-1, x.shape[-1])
    if torch.is_grad_enabled():
        out: Any = _OneDNNLinear.apply(flat, weight, bias)
    else:
        out = _onednn(flat, weight, bias)
    return out.view(*x.shape[:-1], weight.shape[0])
