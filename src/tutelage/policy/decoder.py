"""The decoder's two forward passes: over packed training rows, and over cached slots.

`hidden` is the training forward. Tokens lie flat, without padding, for everything that works token
by token; only attention sees padded rows. A prompt that several rows share is computed once and
its keys and values serve all of them, and the last block works only where a loss needs its output.
`extend` is the sampling forward: any number of new tokens a row, appended to a key-value cache at
each row's own offset; decoding is the case of one token. Both compute the same function, to
rounding, in plain explicit attention, which beats fused kernels on a CPU at these lengths.
`packing.py` makes the `Packed` batches; `engine/native.py` drives `extend`.

Suffixes: N flat tokens, K flat positions with a loss, R attention rows, T queries, L keys, B slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tutelage.policy.kernels import linear
from tutelage.policy.weights import Layer, Weights


@dataclass(frozen=True, slots=True)
class Segment:
    """Attention rows of one kind in a packed batch: padded views into the flat tokens.

    `queries_RT` and `keys_RL` hold flat indices (any valid index where padded); `mask_RTL` is added
    to the scores (0 or -inf). Each flat token is a query exactly once: `valid_Q` lists the places
    in the flattened [R*T] queries that are real, in flat order from `start`. The last T keys of a
    row are its own tokens; the keys before them are those of the shared prompt `prefix_R`, whose
    padded flat indices are `prefix_GP`.
    """

    start: int
    queries_RT: Tensor
    keys_RL: Tensor
    mask_RTL: Tensor
    valid_Q: Tensor
    prefix_R: Tensor | None
    prefix_GP: Tensor | None


@dataclass(frozen=True, slots=True)
class Packed:
    """One micro-batch: flat tokens, their positions, attention segments, and where losses are.

    `sources_K` are flat indices whose next token is trained, `targets_K` those next tokens;
    `rows_K` and `columns_K` say to which row of the batch, and which token of it, each target
    belongs. Flat tokens beyond the last segment, and sources beyond `len(targets_K)`, are padding
    that rounds the shapes (see `kernels.py`).
    """

    ids_N: Tensor
    positions_N: Tensor
    segments: tuple[Segment, ...]
    sources_K: Tensor
    targets_K: Tensor
    rows_K: Tensor
    columns_K: Tensor


def rope(weights: Weights, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine tables [..., head_dim] for integer positions [...]."""
    angles = positions[..., None].to(torch.float32) * weights.inv_freq
    angles = torch.cat([angles, angles], dim=-1)
    scale = weights.rope_scale
    return (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to [..., heads, head_dim]; tables are [..., 1, head_dim]."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)


def _project(
    w: Weights, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys (both rotated) and values, each [..., heads or kv_heads, head_dim]."""
    s = w.shape
    bias = None if layer.qkv_bias is None else layer.qkv_bias.to(x.dtype)
    qkv = linear(_norm(x, layer.norm1, s.eps), layer.qkv.to(x.dtype), bias)
    qkv = qkv.view(*x.shape[:-1], s.heads + 2 * s.kv_heads, s.head_dim)
    turn = s.heads + s.kv_heads
    qk, v = qkv[..., :turn, :], qkv[..., turn:, :]
    if layer.q_norm is not None and layer.k_norm is not None:
        q = _norm(qk[..., : s.heads, :], layer.q_norm, s.eps)
        k = _norm(qk[..., s.heads :, :], layer.k_norm, s.eps)
        qk = torch.cat([q, k], dim=-2)
    qk = rotate(qk, cos[..., None, :], sin[..., None, :])
    return qk[..., : s.heads, :], qk[..., s.heads :, :], v


def _finish(w: Weights, layer: Layer, x: Tensor, attended: Tensor) -> Tensor:
    """Output projection and feed-forward, with both residuals."""
    x = x + linear(attended, layer.out.to(x.dtype))
    gate_up = linear(_norm(x, layer.norm2, w.shape.eps), layer.gate_up.to(x.dtype))
    gate, up = gate_up.chunk(2, dim=-1)
    return x + linear(F.silu(gate) * up, layer.down.to(x.dtype))


# ---------------------------------------------------------------- training


class _PackedAttention(torch.autograd.Function):
    """Attention of one segment with its own backward: gathers and scatters by index, no autograd
    bookkeeping in between. Inputs and outputs are flat: q [N, heads, D], k and v [N, kv, D]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, segment: Segment) -> Tensor:
        rows, queries = segment.queries_RT.shape
        length = segment.keys_RL.shape[1]
        heads, kv, dim = q.shape[1], k.shape[1], q.shape[2]
        group = heads // kv
        qp = q[segment.queries_RT].view(rows, queries, kv, group, dim).permute(0, 2, 3, 1, 4)
        qp = qp.reshape(rows * kv, group * queries, dim)
        kp = k[segment.keys_RL].transpose(1, 2).reshape(rows * kv, length, dim)
        vp = v[segment.keys_RL].transpose(1, 2).reshape(rows * kv, length, dim)
        scores = torch.bmm(qp, kp.transpose(1, 2)).view(rows, heads, queries, length)
        scores = torch.add(segment.mask_RTL[:, None], scores, alpha=dim**-0.5)
        probs = scores.softmax(-1).view(rows * kv, group * queries, length)
        out = torch.bmm(probs, vp).view(rows, kv, group, queries, dim).permute(0, 3, 1, 2, 4)
        ctx.save_for_backward(qp, kp, vp, probs)
        ctx.segment, ctx.sizes = segment, (q.shape[0], heads, kv, dim)
        return out.reshape(rows * queries, heads * dim)[segment.valid_Q]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        qp, kp, vp, probs = ctx.saved_tensors
        segment: Segment = ctx.segment
        total, heads, kv, dim = ctx.sizes
        rows, queries = segment.queries_RT.shape
        group = heads // kv
        padded = grads[0].new_zeros(rows * queries, heads * dim)
        padded[segment.valid_Q] = grads[0]
        do = padded.view(rows, queries, kv, group, dim).permute(0, 2, 3, 1, 4)
        do = do.reshape(rows * kv, group * queries, dim)
        dv = torch.bmm(probs.transpose(1, 2), do)
        dp = torch.bmm(do, vp.transpose(1, 2))
        ds = torch.ops.aten._softmax_backward_data(dp, probs, -1, probs.dtype) * dim**-0.5
        dq = torch.bmm(ds, kp).view(rows, kv, group, queries, dim).permute(0, 3, 1, 2, 4)
        dk = torch.bmm(ds.transpose(1, 2), qp)
        dq_flat = grads[0].new_zeros(total, heads, dim)
        count = segment.valid_Q.shape[0]
        dq_flat[segment.start : segment.start + count] = dq.reshape(rows * queries, heads, dim)[
            segment.valid_Q
        ]
        dk_flat = _scatter_keys(dk, segment, total, kv, dim)
        dv_flat = _scatter_keys(dv, segment, total, kv, dim)
        return dq_flat, dk_flat, dv_flat, None


def _scatter_keys(grad: Tensor, segment: Segment, total: int, kv: int, dim: int) -> Tensor:
    """Bring [R*kv, L, D] back to flat [N, kv, D]: own keys by place, shared ones summed."""
    rows, queries = segment.queries_RT.shape
    length = segment.keys_RL.shape[1]
    grad = grad.view(rows, kv, length, dim).transpose(1, 2)
    flat = grad.new_zeros(total, kv, dim)
    own = grad[:, length - queries :].reshape(rows * queries, kv, dim)[segment.valid_Q]
    flat[segment.start : segment.start + own.shape[0]] = own
    if segment.prefix_R is not None and segment.prefix_GP is not None:
        groups, width = segment.prefix_GP.shape
        shared = grad.new_zeros(groups, width, kv, dim)
        shared.index_add_(0, segment.prefix_R, grad[:, :width].contiguous())
        # Padded places carry exact zeros (their keys are masked), so adding them is harmless.
        flat.index_put_((segment.prefix_GP.reshape(-1),), shared.view(-1, kv, dim), accumulate=True)
    return flat


def hidden(w: Weights, batch: Packed, dtype: torch.dtype) -> Tensor:
    """Final normed hidden states [K, hidden] of the losses' places, with gradients to `w`.

    `dtype` is that of the activations; weights are cast to it on the way, gradients arrive in the
    weights' own dtype.
    """
    x = F.embedding(batch.ids_N, w.embed).to(dtype)
    cos, sin = rope(w, batch.positions_N, dtype)
    for i, layer in enumerate(w.layers):
        q, k, v = _project(w, layer, x, cos, sin)
        parts = [_attend(q, k, v, segment) for segment in batch.segments]
        attended = torch.cat(parts)
        attended = F.pad(attended, (0, 0, 0, x.shape[0] - attended.shape[0]))
        if i == len(w.layers) - 1:
            x, attended = x[batch.sources_K], attended[batch.sources_K]
        x = _finish(w, layer, x, attended)
    return _norm(x, w.norm, w.shape.eps)[: batch.targets_K.shape[0]]


def _attend(q: Tensor, k: Tensor, v: Tensor, segment: Segment) -> Tensor:
    out: Any = _PackedAttention.apply(q, k, v, segment)
    return out


def logits(w: Weights, hidden_KH: Tensor) -> Tensor:
    """Vocabulary scores [K, V] in float32."""
    return linear(hidden_KH, w.head.to(hidden_KH.dtype)).float()


# ---------------------------------------------------------------- sampling


@dataclass(slots=True)
class Cache:
    """Keys [slots, kv, D, width] and values [slots, kv, width, D] of every block.

    The last column is scratch: padded tokens of a ragged batch that would fall beyond the width are
    written there, and nothing reads it.
    """

    keys: list[Tensor]
    values: list[Tensor]
    width: int

    @staticmethod
    def allocate(w: Weights, slots: int, width: int) -> Cache:
        """Room for `slots` sequences of up to `width` tokens."""
        s, like = w.shape, w.embed
        make = like.new_zeros
        return Cache(
            [make(slots, s.kv_heads, s.head_dim, width + 1) for _ in w.layers],
            [make(slots, s.kv_heads, width + 1, s.head_dim) for _ in w.layers],
            width,
        )

    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        """Copy the first `length` columns of rows `source` to rows `target`."""
        for k, v in zip(self.keys, self.values, strict=True):
            k[target, :, :, :length] = k[source, :, :, :length]
            v[target, :, :length] = v[source, :, :length]


@torch.inference_mode()
def extend(
    w: Weights,
    cache: Cache,
    ids_BT: Tensor,
    starts_B: Tensor,
    lengths_B: Tensor,
    rows: Tensor | int,
    reach: int,
) -> Tensor:
    """Append tokens to cached rows and return the logits [B, V] after each row's last new token.

    `ids_BT` are the new tokens, right-padded; row b's go to positions `starts_B[b]` onwards, of
    which `lengths_B[b]` are real. `rows` are the slot numbers, or an int n for the first n slots
    (no gather then). `reach` is how many cache columns are read, at least every row's new length.
    """
    s = w.shape
    batch, count = ids_BT.shape
    group = s.heads // s.kv_heads
    slots = torch.arange(rows, device=ids_BT.device) if isinstance(rows, int) else rows
    positions = starts_B[:, None] + torch.arange(count, device=ids_BT.device)
    columns = positions.clamp(max=cache.width)
    x = F.embedding(ids_BT, w.embed)
    cos, sin = rope(w, positions, x.dtype)
    hide = torch.arange(reach, device=ids_BT.device) > positions[..., None]
    mask = torch.zeros(hide.shape, dtype=x.dtype, device=x.device).masked_fill_(hide, -torch.inf)
    mask = mask[:, None, None].expand(batch, s.kv_heads, group, count, reach)
    mask = mask.reshape(batch * s.kv_heads, group * count, reach)
    last = (torch.arange(batch, device=x.device), lengths_B - 1)
    for i, layer in enumerate(w.layers):
        q, k, v = _project(w, layer, x, cos, sin)
        keys, values = cache.keys[i], cache.values[i]
        if count == 1:
            keys[slots, :, :, columns[:, 0]] = k[:, 0]
            values[slots, :, columns[:, 0]] = v[:, 0]
        else:
            keys[slots[:, None], :, :, columns] = k
            values[slots[:, None], :, columns] = v
        if isinstance(rows, int):
            kr, vr = keys[:rows, :, :, :reach], values[:rows, :, :reach]
        else:
            kr, vr = keys[:, :, :, :reach][slots], values[:, :, :reach][slots]
        q = q.view(batch, count, s.kv_heads, group, s.head_dim).permute(0, 2, 3, 1, 4)
        q = q.reshape(batch * s.kv_heads, group * count, s.head_dim)
        scores = torch.baddbmm(mask, q, kr.flatten(0, 1), alpha=s.head_dim**-0.5)
        attended = torch.bmm(scores.softmax(-1), vr.flatten(0, 1))
        attended = attended.view(batch, s.kv_heads, group, count, s.head_dim).permute(0, 3, 1, 2, 4)
        attended = attended.reshape(batch, count, s.heads * s.head_dim)
        if i == len(w.layers) - 1:
            x, attended = x[last], attended[last]
        x = _finish(w, layer, x, attended)
    return logits(w, _norm(x, w.norm, s.eps))
