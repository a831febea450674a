"""The forward pass for sampling: append tokens to cached rows of keys and values.

`extend` takes any number of new tokens per row, at each row's own offset; decoding is the case of
one token. Plain explicit attention is faster than fused kernels on a CPU at short lengths; for many
tokens in long rows its scores would take too much memory. `training.py` computes the same function
with gradients, equal up to rounding; `engine/native.py` calls this one.

Suffixes: B rows, T new tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tutelage.policy.kernels import linear
from tutelage.policy.weights import DecoderWeights

WHOLE_PROMPT = 1024
"""Maximum length of a prompt that is computed in one call, with all its scores at once."""
_ALIGNMENT = 64
"""Alignment of tensors in bytes, as torch allocates them."""


def rope(
    inv_freq: Tensor, scale: float, positions_N: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the rotary tables [N, 1, head_dim] of positions: cosines and signed sines."""
    angles = positions_N[:, None, None].to(torch.float32) * inv_freq
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position embeddings to [N, heads, head_dim]."""
    half = x.shape[-1] // 2
    swapped = torch.cat([x[..., half:], x[..., :half]], dim=-1)
    return torch.addcmul(x * cos, swapped, sin)


def lazy_zeros(like: Tensor, *shape: int) -> Tensor:
    """Allocate zeros of a shape, with the dtype and device of `like`.

    On a CPU, pages that are never written to take no memory: NumPy gets zeroed pages from the
    operating system, while torch writes its zeros."""
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    size = math.prod(shape) * like.element_size()
    pages = torch.from_numpy(np.zeros(size + _ALIGNMENT, np.uint8))
    start = -pages.data_ptr() % _ALIGNMENT
    return pages[start : start + size].view(like.dtype).view(shape)


@dataclass(slots=True)
class Cache:
    """KV cache of all blocks: keys [rows, kv, D, width], values [rows, kv, width, D], rotary tables
    [width, 1, D].

    The last column is scratch space: padding tokens of a ragged batch beyond the width are written
    there, and it is never read.
    """

    keys: list[Tensor]
    values: list[Tensor]
    cos: Tensor
    sin: Tensor
    width: int

    @staticmethod
    def allocate(w: DecoderWeights, rows: int, width: int) -> Cache:
        """Allocate a KV cache for `rows` sequences of up to `width` tokens."""
        s, like = w.shape, w.embed
        positions = torch.arange(width + 1, device=like.device)
        cos, sin = rope(w.inv_freq, w.rope_scale, positions, like.dtype)
        return Cache(
            [lazy_zeros(like, rows, s.kv_heads, s.head_dim, width + 1) for _ in w.layers],
            [lazy_zeros(like, rows, s.kv_heads, width + 1, s.head_dim) for _ in w.layers],
            cos,
            sin,
            width,
        )

    def widen(self, w: DecoderWeights, width: int, lengths: Sequence[int]) -> Cache:
        """Return a wider KV cache that starts with the first `lengths[row]` tokens of each row."""
        cache = Cache.allocate(w, len(lengths), width)
        for row, length in enumerate(lengths):
            for i in range(len(w.layers) if length else 0):
                cache.keys[i][row, :, :, :length] = self.keys[i][row, :, :, :length]
                cache.values[i][row, :, :length] = self.values[i][row, :, :length]
        return cache

    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        """Copy the first `length` columns of `source` rows to `target` rows, which may overlap."""
        for k, v in zip(self.keys, self.values, strict=True):
            k, v = k[..., :length], v[:, :, :length]
            k.index_copy_(0, target, k.index_select(0, source))
            v.index_copy_(0, target, v.index_select(0, source))


@torch.inference_mode()
def extend(
    w: DecoderWeights,
    cache: Cache,
    ids_BT: Tensor,
    starts_B: Tensor,
    lengths_B: Tensor,
    rows: Tensor | int,
    width: int,
) -> Tensor:
    """Append tokens to cached rows and return the logits [B, V] after each row's last new token.

    `ids_BT` are the new tokens, right-padded; those of row b are written from position
    `starts_B[b]` on, and `lengths_B[b]` of them are real. `rows` are the row indices, or an
    int n for the first n rows (without a gather). `width` is the number of cache columns to read,
    at least the new length of every row.
    """
    s = w.shape
    batch, count = ids_BT.shape
    group, turn = s.heads // s.kv_heads, s.heads + s.kv_heads
    device = ids_BT.device
    numbers = torch.arange(rows, device=device) if isinstance(rows, int) else rows
    positions = starts_B[:, None] + torch.arange(count, device=device)
    at = numbers[:, None].expand(batch, count).reshape(-1)
    columns = positions.clamp(max=cache.width).view(-1)
    cos, sin = cache.cos.index_select(0, columns), cache.sin.index_select(0, columns)
    x = F.embedding(ids_BT.reshape(-1), w.embed)
    hide = torch.arange(width, device=device) > positions[..., None]
    mask = torch.zeros(hide.shape, dtype=x.dtype, device=device).masked_fill_(hide, -torch.inf)
    mask, explicit = mask[:, None], count == 1 or width <= WHOLE_PROMPT
    if explicit:
        mask = mask[:, None].expand(batch, s.kv_heads, group, count, width)
        mask = mask.reshape(batch * s.kv_heads, group * count, width)
    last = torch.arange(0, batch * count, count, device=device) + lengths_B - 1
    for i, layer in enumerate(w.layers):
        qkv = linear(F.rms_norm(x, (s.hidden,), layer.norm1, s.eps), layer.qkv, layer.qkv_bias)
        qkv = qkv.view(batch * count, turn + s.kv_heads, s.head_dim)
        qk, norms = qkv[:, :turn], layer.head_norms(s)
        if norms is not None:
            qk = F.rms_norm(qk, (s.head_dim,), None, s.eps) * norms
        qk = rotate(qk, cos, sin)
        keys, values = cache.keys[i], cache.values[i]
        keys[at, :, :, columns] = qk[:, s.heads :]
        values[at, :, columns] = qkv[:, turn:]
        keys, values = keys[..., :width], values[:, :, :width]
        if isinstance(rows, int):
            keys, values = keys[:rows], values[:rows]
        else:
            keys, values = keys.index_select(0, rows), values.index_select(0, rows)
        q = qk[:, : s.heads].view(batch, count, s.kv_heads, group, s.head_dim)
        q = q.permute(0, 2, 3, 1, 4)
        if explicit:
            q = q.reshape(batch * s.kv_heads, group * count, s.head_dim)
            scores = torch.baddbmm(mask, q, keys.flatten(0, 1), alpha=s.head_dim**-0.5)
            attended = torch.bmm(scores.softmax(-1), values.flatten(0, 1))
        else:
            attended = F.scaled_dot_product_attention(
                q.flatten(1, 2), keys.mT.contiguous(), values, mask, enable_gqa=True
            )
        attended = attended.view(batch, s.kv_heads, group, count, s.head_dim).permute(0, 3, 1, 2, 4)
        attended = attended.reshape(batch * count, s.heads * s.head_dim)
        if i == len(w.layers) - 1 and count > 1:
            x, attended = x.index_select(0, last), attended.index_select(0, last)
        x = x + linear(attended, layer.out)
        gate_up = linear(F.rms_norm(x, (s.hidden,), layer.norm2, s.eps), layer.gate_up)
        x = x + linear(F.silu(gate_up[:, : s.ffn]).mul_(gate_up[:, s.ffn :]), layer.down)
    return linear(F.rms_norm(x, (s.hidden,), w.norm, s.eps), w.head).float()
