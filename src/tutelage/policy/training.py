"""The forward pass for training on a packed micro-batch, with a handwritten backward pass.

Tokens are flat, without padding, in all operations except attention, which uses padded rows.
Autograd would store and add up far more than a block needs: here a block is one operation with a
backward pass that saves memory and passes over it. Keys and values are gathered for attention, and
their gradients summed back, by kernels that move whole vectors. The last block computes only the
tokens that a loss needs. Plain explicit attention is faster than fused kernels on a CPU at these
lengths. `network.py` combines the blocks, `packing.py` builds the micro-batches; `decoder.py`
computes the same function for sampling, equal up to rounding.

Suffixes: N flat tokens, S flat tokens with a loss, R attention rows, T queries, L keys, M gathered
vectors, J heads of all kinds (queries, keys, values).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from tutelage.policy.decoder import rotate
from tutelage.policy.kernels import outer, product
from tutelage.policy.packing import MicroBatch
from tutelage.policy.weights import DecoderShape, Layer

# ---------------------------------------------------------------- index tables of attention


@dataclass(frozen=True, slots=True)
class _Segment:
    """An attention segment: sizes R, T and L, slices of the gathered vectors, and additive mask
    (0 or -inf)."""

    rows: int
    queries: int
    keys: int
    query_rows: slice
    key_rows: slice
    mask_R1TL: Tensor


@dataclass(frozen=True, slots=True)
class IndexTables:
    """A micro-batch's gather indices for the attention heads of a model.

    Attention reads queries as [R, kv, group, T] and keys and values as [R, kv, L], segment after
    segment. `gather_M` selects them (all queries, then keys, then values) from the vectors
    [N * J, D] of all heads; `gather_Q` selects the queries' gradients from the vectors
    [N * heads, D] that attention returns, and `place_NH` is the index of each of those among the
    queries (for padding, one beyond the last). `uses_E`, split at `first_KN`, lists the indices
    among the keys of each kv head of each token.
    """

    shape: DecoderShape
    cos: Tensor
    sin: Tensor
    parts: tuple[_Segment, ...]
    gather_M: Tensor
    gather_Q: Tensor
    place_NH: Tensor
    uses_E: Tensor
    first_KN: Tensor
    lean: bool
    """True if blocks save fewer activations: the backward pass recomputes those that take much
    memory and little time."""

    @staticmethod
    def build(
        s: DecoderShape, tables: tuple[Tensor, Tensor], batch: MicroBatch, *, lean: bool
    ) -> IndexTables:
        """Build the index tables of a micro-batch.

        `tables` are the rotary tables of its positions, in the dtype of its activations.
        """
        total, device = len(batch.ids_N), batch.ids_N.device
        parts: list[_Segment] = []
        places: list[Tensor] = []
        queries, keys = 0, 0
        for segment in batch.segments:
            (rows, t), length = segment.queries_RT.shape, segment.keys_RL.shape[1]
            q, k = rows * s.heads * t, rows * s.kv_heads * length
            where = slice(queries, queries + q), slice(keys, keys + k)
            hide = (
                torch.arange(length, device=device)
                > (segment.before_R[:, None] + torch.arange(t, device=device))[:, None, :, None]
            )
            mask = torch.zeros(hide.shape, dtype=tables[0].dtype, device=device)
            parts.append(_Segment(rows, t, length, *where, mask.masked_fill_(hide, -torch.inf)))
            place = torch.arange(keys, keys + k, device=device).view(rows, s.kv_heads, length)
            places.append(place.transpose(0, 1).flatten(1))
            queries, keys = queries + q, keys + k
        num_heads = s.heads + 2 * s.kv_heads
        heads = torch.arange(num_heads, device=device)
        q_of, k_of, v_of = heads.split([s.heads, s.kv_heads, s.kv_heads])
        gather_Q = torch.cat([_expand_heads(g.queries_RT * s.heads, q_of) for g in batch.segments])
        place_NH = torch.full((total * s.heads,), queries, device=device)
        place_NH[gather_Q] = torch.arange(queries, device=device)
        gather = [_expand_heads(g.queries_RT * num_heads, q_of) for g in batch.segments]
        for ids in (k_of, v_of):
            gather += [_expand_heads(g.keys_RL * num_heads, ids) for g in batch.segments]
        # For each kv head, then each token, its indices among the keys: a list and its offsets.
        token, order = torch.cat([g.keys_RL.flatten() for g in batch.segments]).sort(stable=True)
        first = torch.searchsorted(token, torch.arange(total, device=device))
        first_KN = (torch.arange(s.kv_heads, device=device)[:, None] * len(token) + first).flatten()
        uses_E = torch.cat(places, 1)[:, order].flatten()
        return IndexTables(
            s, *tables, tuple(parts), torch.cat(gather), gather_Q, place_NH, uses_E, first_KN, lean
        )


def _expand_heads(indices_RT: Tensor, heads: Tensor) -> Tensor:
    """Add head offsets to indices [R, T], flattened in the order [R, heads, T]."""
    return (indices_RT[:, None] + heads[:, None]).flatten()


# ---------------------------------------------------------------- one block


class BlockFunction(torch.autograd.Function):
    """Forward and backward pass of one decoder block: attention, feed-forward, residuals.

    Maps x [N, hidden] to [N, hidden], or to [S, hidden] for only the tokens `indices_S`. The
    weights are in the order of `Layer`.

    Activations have the dtype of `x`, to which weights are cast; gradients of the weights have
    their own dtype.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, plan: IndexTables, indices_S: Tensor | None, *weights: Tensor | None
    ) -> Tensor:
        layer, s = _cast(weights, x.dtype), plan.shape
        turn = s.heads + s.kv_heads
        normed1, scale1 = _normalise(x, s.eps)
        qkv = product(normed1 * layer.norm1, layer.qkv.t(), layer.qkv_bias)
        qkv = qkv.view(len(x), turn + s.kv_heads, s.head_dim)
        qk, norms, head_parts = qkv[:, :turn], layer.head_norms(s), ()
        if norms is not None:
            head_parts = _normalise(qk, s.eps)
            qk = head_parts[0] * norms
        qkv[:, :turn] = rotate(qk, plan.cos, plan.sin)
        vectors = qkv.view(-1, s.head_dim).index_select(0, plan.gather_M)
        attended, probs = _attend(vectors, plan)
        if indices_S is not None:
            x, attended = x.index_select(0, indices_S), attended.index_select(0, indices_S)
        middle = product(attended, layer.out.t()).add_(x)
        normed2, scale2 = _normalise(middle, s.eps)
        gate_up = product(normed2 * layer.norm2, layer.gate_up.t())
        silu = F.silu(gate_up[:, : s.ffn])
        inner = silu * gate_up[:, s.ffn :]
        large = (qkv,) if plan.lean else (vectors, gate_up, silu, inner, *probs)
        # Weights are saved like activations: with adapters they are computed for this pass, and
        # with checkpointed blocks computed again for the backward pass.
        own = weights if plan.lean else layer.items()
        ctx.save_for_backward(
            *(normed1, scale1, attended, normed2, scale2, *head_parts, *large), *own
        )
        ctx.plan, ctx.indices_S, ctx.heads_normed = plan, indices_S, norms is not None
        ctx.types = [None if t is None else t.dtype for t in weights]
        return product(inner, layer.down.t()).add_(middle)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        normed1, scale1, attended, normed2, scale2, *rest = ctx.saved_tensors
        at, weights = 2 if ctx.heads_normed else 0, -len(ctx.types)
        head_parts, large = rest[:at], rest[at:weights]
        plan: IndexTables = ctx.plan
        layer, s, total = _cast(rest[weights:], normed1.dtype), plan.shape, len(normed1)
        if plan.lean:  # recompute by the operations of the forward pass, bit for bit
            vectors = large[0].view(-1, s.head_dim).index_select(0, plan.gather_M)
            gate_up = product(normed2 * layer.norm2, layer.gate_up.t())
            silu = F.silu(gate_up[:, : s.ffn])
            inner, probs = silu * gate_up[:, s.ffn :], _probabilities(vectors, plan)
        else:
            vectors, gate_up, silu, inner, *probs = large
        # Feed-forward.
        d_inner = product(grads[0], layer.down)
        d_gate_up = torch.empty_like(gate_up)
        torch.mul(d_inner, silu, out=d_gate_up[:, s.ffn :])
        torch.ops.aten.silu_backward.grad_input(
            d_inner.mul_(gate_up[:, s.ffn :]), gate_up[:, : s.ffn], grad_input=d_gate_up[:, : s.ffn]
        )
        d_middle, g_norm2 = _normalise_backward(
            product(d_gate_up, layer.gate_up), normed2, scale2, layer.norm2
        )
        d_middle += grads[0]
        # Attention.
        d_attended = product(d_middle, layer.out)
        d_x = d_middle
        if ctx.indices_S is not None:
            d_x, d_attended = (
                t.new_zeros(total, t.shape[1]).index_copy_(0, ctx.indices_S, t)
                for t in (d_middle, d_attended)
            )
        d_qkv = _attend_backward(d_attended, vectors, probs, plan)
        g_q, g_k, turn = None, None, s.heads + s.kv_heads
        norms = layer.head_norms(s)
        if norms is not None:
            normed, scale = head_parts
            d_qkv[:, :turn], g = _normalise_backward(d_qkv[:, :turn], normed, scale, norms)
            g_q, g_k = g[: s.heads].sum(0), g[s.heads :].sum(0)
        d_qkv = d_qkv.view(total, -1)
        d_in, g_norm1 = _normalise_backward(product(d_qkv, layer.qkv), normed1, scale1, layer.norm1)
        items = (
            g_norm1,
            outer(d_qkv, normed1 * layer.norm1),
            None if layer.qkv_bias is None else d_qkv.sum(0),
            g_q,
            g_k,
            outer(d_middle, attended),
            g_norm2,
            outer(d_gate_up, normed2 * layer.norm2),
            outer(grads[0], inner),
        )  # gradients of the fields of Layer, in order
        typed = (None if g is None else g.to(t) for g, t in zip(items, ctx.types, strict=True))
        return d_in.add_(d_x), None, None, *typed


def _cast(weights: Sequence[Tensor | None], dtype: torch.dtype) -> Layer:
    """Cast a block's weights to the activation dtype."""
    return Layer(*(cast("Any", None if t is None else t.to(dtype)) for t in weights))


class NormFunction(torch.autograd.Function):
    """RMS norm of x [S, hidden], with gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        normed, scale = _normalise(x, eps)
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, scale, weight = ctx.saved_tensors
        d_x, g = _normalise_backward(grads[0], normed, scale, weight.to(normed.dtype))
        return d_x, g.to(weight.dtype), None


def _normalise(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Divide x by its root mean square, and return the result and the float32 factor [..., 1]."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (x * scale).to(x.dtype), scale


def _normalise_backward(
    grad: Tensor, normed: Tensor, scale: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the backward pass of RMS norm: the gradients of the input and the weight."""
    d_x = grad * weight
    along = (d_x * normed).sum(-1, keepdim=True).div_(normed.shape[-1])
    g = (grad * normed).sum(0)
    return d_x.addcmul_(normed, along, value=-1).mul_(scale.to(grad.dtype)), g


# ---------------------------------------------------------------- attention


def _split(vectors: Tensor, plan: IndexTables) -> Iterator[tuple[_Segment, Tensor, Tensor, Tensor]]:
    """Yield each segment's queries [R*kv, group*T, D], and keys and values [R*kv, L, D]."""
    keys = (len(vectors) - len(plan.gather_Q)) // 2
    q, k, v = vectors.split([len(plan.gather_Q), keys, keys])
    for part in plan.parts:
        batch = (part.rows * plan.shape.kv_heads, -1, plan.shape.head_dim)
        keys_BLD, values_BLD = (t[part.key_rows].view(batch) for t in (k, v))
        yield part, q[part.query_rows].view(batch), keys_BLD, values_BLD


def _probabilities(vectors: Tensor, plan: IndexTables) -> list[Tensor]:
    """Compute the attention probabilities [R*kv, group*T, L] of each segment."""
    s = plan.shape
    probs: list[Tensor] = []
    for part, q, k, _ in _split(vectors, plan):
        scores = torch.bmm(q, k.transpose(1, 2)).view(part.rows, s.heads, part.queries, part.keys)
        torch.add(part.mask_R1TL, scores, alpha=s.head_dim**-0.5, out=scores)
        probs.append(scores.softmax(-1).view(*q.shape[:2], part.keys))
    return probs


def _attend(vectors: Tensor, plan: IndexTables) -> tuple[Tensor, list[Tensor]]:
    """Compute the attention output [N, heads * D] and the probabilities of each segment."""
    s, probs = plan.shape, _probabilities(vectors, plan)
    out = vectors.new_zeros(len(plan.gather_Q) + 1, s.head_dim)
    for (part, q, _, v), p in zip(_split(vectors, plan), probs, strict=True):
        torch.bmm(p, v, out=out[part.query_rows].view_as(q))
    return out.index_select(0, plan.place_NH).view(-1, s.heads * s.head_dim), probs


def _attend_backward(
    d_attended: Tensor, vectors: Tensor, probs: Sequence[Tensor], plan: IndexTables
) -> Tensor:
    """Compute the gradients [N, J, D] of queries, keys and values before rotation."""
    s = plan.shape
    d_out = d_attended.view(-1, s.head_dim).index_select(0, plan.gather_Q)
    d_vectors = torch.empty_like(vectors)
    pieces = zip(_split(vectors, plan), _split(d_vectors, plan), probs, strict=True)
    for (part, q, k, v), (_, d_q, d_k, d_v), p in pieces:
        d_o = d_out[part.query_rows].view_as(q)
        torch.bmm(p.transpose(1, 2), d_o, out=d_v)
        d_p = torch.bmm(d_o, v.transpose(1, 2))
        d_scores = torch.ops.aten._softmax_backward_data(d_p, p, -1, p.dtype)
        torch.bmm(d_scores, k, out=d_q)
        torch.bmm(d_scores.transpose(1, 2), q, out=d_k)
    queries = len(plan.gather_Q)
    total = len(plan.place_NH) // s.heads
    keys = (len(vectors) - queries) // 2
    d_q = F.pad(d_vectors[:queries], (0, 0, 0, 1)).index_select(0, plan.place_NH)
    d_k, d_v = (
        F.embedding_bag(plan.uses_E, d, plan.first_KN, mode="sum").view(s.kv_heads, total, -1)
        for d in d_vectors[queries:].split(keys)
    )
    # The gradient is rotated by the opposite angle; the tables include the factor of the scores.
    cos, sin = plan.cos * s.head_dim**-0.5, plan.sin * -(s.head_dim**-0.5)
    d_qkv = d_vectors.new_empty(total, s.heads + 2 * s.kv_heads, s.head_dim)
    d_qkv[:, : s.heads] = rotate(d_q.view(total, s.heads, s.head_dim), cos, sin)
    d_qkv[:, s.heads : -s.kv_heads] = rotate(d_k.transpose(0, 1), cos, sin)
    d_qkv[:, -s.kv_heads :] = d_v.transpose(0, 1)
    return d_qkv
