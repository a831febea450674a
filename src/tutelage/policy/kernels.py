"""Choose the matrix kernels of this machine, and compute linear layers with them.

The CPU build of torch multiplies float32 through MKL, which falls back to half-width vectors on
processors that are not Intel's; oneDNN, in the same wheel, does not. Measured on an AMD EPYC with
AVX-512: 220 against 95 GFLOP/s forward, 130-200 against 90 backward. So on an AMD processor
`linear` calls oneDNN, for strided operands too, and plain torch everywhere else. The choice depends
on the processor only, never on a timing, so that runs are reproducible; it is part of the recorded
conditions. oneDNN compiles a kernel per shape: callers round row counts up (`round_up`).
"""

from __future__ import annotations

import functools
import platform
import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROUND_TO = 64
"""Row counts of training batches are padded to a multiple of this."""


def round_up(count: int, multiple: int = ROUND_TO) -> int:
    """Round `count` up to a multiple, to limit the number of distinct kernel shapes."""
    return -(-count // multiple) * multiple


@functools.cache
def cpu_description() -> str:
    """Return the text of /proc/cpuinfo, or "" on systems other than Linux."""
    file = Path("/proc/cpuinfo")
    return file.read_text() if file.is_file() else ""


def cpu_vendor() -> str:
    """Return the processor's vendor, such as AuthenticAMD, or "" if it is unknown."""
    match = re.search(r"vendor_id\s*: *(\S+)", cpu_description())
    return match[1] if match else platform.processor()


@functools.cache
def matmul_kernel() -> str:
    """Return the matrix kernel: `onednn` on AMD if torch includes it, otherwise `torch`."""
    built = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return "onednn" if built and "AMD" in cpu_vendor() else "torch"


def _uses_onednn(x: Tensor) -> bool:
    """Return True if matrix products with `x` run on oneDNN, which rejects empty tensors."""
    cpu = x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() > 0
    return cpu and matmul_kernel() == "onednn"


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `a @ b + bias` without gradients, for a [N, in] and b [in, out] of any strides."""
    if not _uses_onednn(a):
        return F.linear(a, b.t(), bias)
    out: Any = torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", [], "")
    return out


def outer(grad: Tensor, x: Tensor) -> Tensor:
    """Return the weight gradient [out, in] of a linear layer, from grad [N, out] and x [N, in]."""
    if not _uses_onednn(x):
        return grad.t() @ x
    # oneDNN copies the transposed operand: transpose the smaller one.
    if grad.shape[1] > x.shape[1]:
        return product(x.t(), grad).t().contiguous()
    return product(grad.t(), x)


class _OneDNNLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return product(x, weight.t(), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad = grads[0]
        return (
            product(grad, weight) if ctx.needs_input_grad[0] else None,
            outer(grad, x) if ctx.needs_input_grad[1] else None,
            grad.sum(0) if ctx.has_bias else None,
        )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply a linear layer to inputs [N, in], with gradients, by this machine's matrix kernel."""
    if not _uses_onednn(x):
        return F.linear(x, weight, bias)
    if not torch.is_grad_enabled():
        return product(x, weight.t(), bias)
    out: Any = _OneDNNLinear.apply(x, weight, bias)
    return out


def fused_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    other: Tensor | None = None,
    op: str = "none",
) -> Tensor:
    """Apply a linear layer fused with `swish`, `mul` or `add`, without gradients.

    `op` is the operation; the weight may be in oneDNN's own layout."""
    if weight.is_mkldnn:
        kernel: Any = torch.ops.mkldnn._linear_pointwise
        if other is None:
            return kernel(x, weight, bias, op, [], "")
        return kernel.binary(x, other, weight, bias, op)
    y = linear(x, weight, bias)
    if other is None:
        return F.silu(y, inplace=True) if op == "swish" else y
    return y.mul_(other) if op == "mul" else y.add_(other)
