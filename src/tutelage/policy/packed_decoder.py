"""The forward pass for sampling large models on a CPU: packed weights and cached prefixes.

`decoder.py` computes the same function for small models and on GPUs. The methods here are faster
where weights and cached keys dominate. In bfloat16 the weights have oneDNN's own layout, and
activations and residuals are fused into its products. A prefix, the tokens of system prompt and
tools, is computed once, cached, and read by all rows that begin with it; a row only holds the
tokens after it. Rows are stored as densely as the longest one allows, so that products read them in
place. Prompts are computed without padding.

A batch is computed in shards of its rows, each on a thread of its own (`machine.py` chooses their
number): they synchronise once per token, while the threads of an operation do so at the end of each
one, where a busy core delays them all. Shards share weights, prefixes and the cache.

A prefix is computed separately from the rows that use it first, and a call reads as many columns as
its longest row needs, so the content of the cache does not change any result.

Suffixes: B rows, T new tokens, N of B * T without padding, L columns read, P prefix tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from tutelage.policy.decoder import WHOLE_PROMPT, lazy_zeros, rope, rotate
from tutelage.policy.kernels import fused_linear, round_up
from tutelage.policy.machine import parallel_map
from tutelage.policy.network import FusedNetwork

if TYPE_CHECKING:
    from tutelage.policy.model import Policy

_COLUMNS, _LONG_COLUMNS = 32, 256
"""The number of columns that are read, and the width of rows, are multiples of the first number.
The width of long rows, which are expensive to move, is a multiple of the second."""
_MIN_PREFIX = 32
"""Minimum number of tokens of a cached prefix."""
_MAX_PREFIXES = 8
"""Number of most recently used prefixes to cache."""
_ROWS = 64
"""Number of rows for which packed weights are optimised."""
_MIN_TOKENS = 16
"""Minimum number of tokens of a shard, since each shard reads all weights."""
_FEW = 16
"""With fewer queries, keys are the first factor of the product, so that they are read without a
copy."""

_Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Attention of a block: maps its index, queries, keys and values [N, heads, D] to [N, heads * D].
"""


@dataclass(slots=True)
class _Prefix:
    """Keys and values [kv, P, D] of a prompt prefix per block, cached up to `size` tokens."""

    keys: list[Tensor]
    values: list[Tensor]
    size: int


@dataclass(frozen=True, slots=True)
class _Block:
    """A decoder block's tensors, packed for matrix products."""

    norm1: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norms: Tensor | None
    out: Tensor
    norm2: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


class PackedDecoder:
    """CPU decoder for large policies, with a KV cache in rows.

    In float32 it computes with the policy's own tensors, otherwise with copies.
    """

    exact_shapes = True
    prefill_tokens = 1024
    prefill_chunk = 64
    chunk = 1

    def __init__(
        self, network: FusedNetwork, rows: int, width: int, dtype: torch.dtype, shards: int = 1
    ) -> None:
        self.device, self._dtype, self.shards = network.device, dtype, shards
        packs = torch.backends.mkldnn.is_available() and dtype == torch.bfloat16
        self._pack = packs and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        self._room = rows * network.shape.kv_heads * round_up(width, _LONG_COLUMNS)
        self._keys, self._values = list[Tensor](), list[Tensor]()
        self._load_weights(network)
        w = self._weights
        self._cos, self._sin = rope(w.inv_freq, w.rope_scale, torch.arange(width + 1), dtype)
        self._prefix_cache: dict[tuple[int, ...], _Prefix] = {}
        self._row_prefixes: list[_Prefix | None] = [None] * rows
        # For each row, the number of prefix tokens, and of computed tokens after them.
        self._base, self._filled = torch.zeros(2, rows, dtype=torch.long)

    # ------------------------------------------------------------ weights

    def load(self, policy: Policy) -> None:
        """Load the policy's current weights and clear the cached prefixes."""
        self._load_weights(cast("FusedNetwork", policy.network))
        self._prefix_cache.clear()

    def free(self) -> None:
        """Free copied weights, rows and prefixes until the next `load`."""
        self._blocks, self._keys, self._values, self._prefix_cache = [], [], [], {}
        self._row_prefixes = [None] * len(self._row_prefixes)
        self._filled.zero_()
        empty = self._weights.embed[:0]
        self._weights, self._head = replace(self._weights, embed=empty, head=empty), empty

    @torch.no_grad()
    def _load_weights(self, network: FusedNetwork) -> None:
        network.merge()
        w = network.weights
        if self._dtype != torch.float32:
            w = w.to(self.device, self._dtype)
        self._weights, self._head = w, self._pack_weight(w.head)
        self._blocks: list[_Block] = []
        for b in w.layers:
            gate, up = (self._pack_weight(t) for t in b.gate_up.split(w.shape.ffn))
            qkv, out, down = (self._pack_weight(t) for t in (b.qkv, b.out, b.down))
            norms = b.head_norms(w.shape)
            block = _Block(b.norm1, qkv, b.qkv_bias, norms, out, b.norm2, gate, up, down)
            self._blocks.append(block)
        if self._pack:
            w.layers.clear()  # the layers of the copy
        if not self._keys:
            room, self._width = self._room * w.shape.head_dim, _COLUMNS
            self._keys = [lazy_zeros(w.embed, room) for _ in self._blocks]
            self._values = [lazy_zeros(w.embed, room) for _ in self._blocks]

    def _pack_weight(self, weight: Tensor) -> Tensor:
        mkldnn: Any = torch.ops.mkldnn
        return mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS) if self._pack else weight

    # ------------------------------------------------------------ rows

    @torch.inference_mode()
    def attach_prefix(self, row: int, ids: tuple[int, ...], compute: bool) -> int | None:
        """Attach a cached prefix to a row and return the number of its tokens: all of `ids`, or 0.

        If `compute` is True, a call computes one chunk of a long prefix; returns None while the
        prefix is incomplete.
        """
        prefix = self._find_prefix(ids, compute) if len(ids) >= _MIN_PREFIX else None
        size = 0 if prefix is None else prefix.size
        self._row_prefixes[row], self._base[row], self._filled[row] = prefix, size, 0
        return size if prefix is None or size == len(ids) else None

    @torch.inference_mode()
    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        """Copy the first `length` cached tokens of `source` rows to `target` rows, which may
        overlap."""
        columns = min(length, int(self._filled[source].max()))
        for flat in (*self._keys, *self._values):
            view = self._view(flat)[:, :, :columns]
            view.index_copy_(0, target, view.index_select(0, source))
        for counts in (self._base, self._filled):
            counts[target] = counts[source]
        prefixes = [self._row_prefixes[row] for row in source.tolist()]
        for row, prefix in zip(target.tolist(), prefixes, strict=True):
            self._row_prefixes[row] = prefix

    def _view(self, flat: Tensor) -> Tensor:
        """Return a block's flat key or value cache as [rows, kv, width, D]."""
        shape = (len(self._row_prefixes), self._weights.shape.kv_heads, self._width, -1)
        size = shape[0] * shape[1] * shape[2] * self._weights.shape.head_dim
        return flat[:size].view(shape)

    # ------------------------------------------------------------ forward

    @torch.inference_mode()
    def extend(
        self, ids_BT: Tensor, starts_B: Tensor, lengths_B: Tensor, rows: Tensor | int, width: int
    ) -> Tensor:
        """Append tokens to cached rows and return the logits [B, V] after each row's last token."""
        at = slice(rows) if isinstance(rows, int) else rows
        self._filled[at] = starts_B + lengths_B - self._base[at]
        # Change the width of rows if they are too narrow or much too wide.
        step = _COLUMNS if self._filled.max() <= WHOLE_PROMPT else _LONG_COLUMNS
        before, needed = self._width, round_up(int(self._filled.max()), step)
        if not before - 2 * _COLUMNS < needed <= before:
            used, columns = int(self._filled.nonzero().max()) + 1, min(before, needed)
            for flat in (*self._keys, *self._values):
                self._width = before
                stored = self._view(flat)[:used, :, :columns].clone()
                self._width = needed
                self._view(flat)[:used, :, :columns] = stored

        def extend_shard(part: slice) -> Tensor:
            own = part if isinstance(rows, int) else rows[part]
            return self._extend(ids_BT[part], starts_B[part], lengths_B[part], own)

        # Cut the rows into shards with about the same number of new tokens.
        lengths = lengths_B.tolist()
        total = sum(lengths)
        middles = [e - n / 2 for e, n in zip(accumulate(lengths), lengths, strict=True)]
        count = max(1, min(self.shards, total // _MIN_TOKENS))
        cuts = {bisect_left(middles, total * i / count) for i in range(1, count)}
        shards = [slice(*cut) for cut in pairwise(sorted({0, *cuts, len(lengths)}))]
        return torch.cat(parallel_map(extend_shard, shards, self.shards))

    @torch.inference_mode()
    def _extend(
        self, ids_BT: Tensor, starts_B: Tensor, lengths_B: Tensor, rows: Tensor | slice
    ) -> Tensor:
        """Append tokens to one shard of the rows and return their logits."""
        batch, count = ids_BT.shape
        steps = torch.arange(count)
        real_N = None
        last: Tensor | slice = slice(None)
        ids_N, positions_N = ids_BT.flatten(), (starts_B[:, None] + steps).flatten()
        if count > 1:
            real_N = (steps < lengths_B[:, None]).flatten().nonzero().squeeze(1)
            ids_N, positions_N = ids_N[real_N], positions_N[real_N]
            last = lengths_B.cumsum(0) - 1
        numbers = torch.arange(rows.stop)[rows] if isinstance(rows, slice) else rows
        columns_BT = (starts_B - self._base[numbers])[:, None] + steps
        length = round_up(int(self._filled[numbers].max()), _COLUMNS)
        hide = torch.arange(length) > columns_BT[:, None, None, :, None]
        mask = torch.zeros(hide.shape, dtype=self._dtype).masked_fill_(hide, -torch.inf)
        heads = torch.arange(self._weights.shape.kv_heads)
        first = (numbers[:, None] * len(heads) + heads) * self._width
        places = (first[:, None] + columns_BT[..., None]).flatten(0, 1)
        if real_N is not None:
            places = places[real_N]
        places = places.flatten()
        readers: dict[int, tuple[_Prefix, list[int]]] = {}
        for b, row in enumerate(numbers.tolist()):
            if (prefix := self._row_prefixes[row]) is not None:
                readers.setdefault(id(prefix), (prefix, []))[1].append(b)
        prefixes: list[tuple[_Prefix, Tensor | slice]] = [
            (prefix, slice(None) if len(part) == batch else torch.tensor(part))
            for prefix, part in readers.values()
        ]
        s = self._weights.shape
        group, scale = s.heads // s.kv_heads, s.head_dim**-0.5
        prefix_len = max((prefix.size for prefix, _ in prefixes), default=0)

        def attend(i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            """Compute attention of block i for this shard's rows and their prefixes."""
            read: list[Tensor] = []  # keys and values [B * kv, L, D]
            for flat, new in ((self._keys[i], k), (self._values[i], v)):
                view = self._view(flat)
                view.view(-1, s.head_dim).index_copy_(0, places, new.flatten(0, 1))
                view = view[:, :, :length]
                stored = view[rows] if isinstance(rows, slice) else view.index_select(0, rows)
                read.append(stored.flatten(0, 1))
            keys, values = read
            if batch == 1 < count and prefix_len + length - _COLUMNS >= WHOLE_PROMPT:  # a chunk
                chunk_mask = F.pad(mask[0, 0, 0, : len(q)], (prefix_len, 0))
                for prefix, _ in prefixes:
                    keys = torch.cat([prefix.keys[i], keys], 1)
                    values = torch.cat([prefix.values[i], values], 1)
                return _attend_row(q, keys, values, chunk_mask)
            if real_N is not None:
                q = q.new_zeros(batch * count, s.heads, s.head_dim).index_copy_(0, real_N, q)
            q = q.reshape(batch, count, s.kv_heads, group, s.head_dim).permute(0, 2, 3, 1, 4)
            q = q.reshape(batch, s.kv_heads, group * count, s.head_dim)
            scores = q.new_empty(batch, s.kv_heads, group * count, prefix_len + length)
            scores[..., :prefix_len] = -torch.inf
            for prefix, part in prefixes:
                q_kv = q[part].transpose(0, 1).flatten(1, 2)
                block = torch.bmm(q_kv, prefix.keys[i].transpose(1, 2)).mul_(scale)
                scores[part, ..., : prefix.size] = block.unflatten(1, (-1, q.shape[2])).transpose(
                    0, 1
                )
            flat = q.flatten(0, 1)
            own = torch.bmm(keys, flat.mT).mT if flat.shape[1] < _FEW else torch.bmm(flat, keys.mT)
            torch.add(
                mask,
                own.view(batch, s.kv_heads, group, count, -1),
                alpha=scale,
                out=scores.unflatten(2, (group, count))[..., prefix_len:],
            )
            probs = scores.softmax(-1)
            out = torch.bmm(probs[..., prefix_len:].flatten(0, 1), values)
            out = out.view(batch, s.kv_heads, group * count, s.head_dim)
            for prefix, part in prefixes:
                p_kv = probs[part, ..., : prefix.size].transpose(0, 1).flatten(1, 2)
                block = torch.bmm(p_kv, prefix.values[i]).unflatten(1, (-1, q.shape[2]))
                out[part] += block.transpose(0, 1)
            out = out.view(batch, s.kv_heads, group, count, s.head_dim).permute(0, 3, 1, 2, 4)
            out = out.reshape(batch * count, s.heads * s.head_dim)
            return out if real_N is None else out[real_N]

        return self._forward(ids_N, positions_N, attend, last)

    def _find_prefix(self, ids: tuple[int, ...], compute: bool) -> _Prefix:
        """Return a prefix from the cache, after computing it or its next chunk if necessary."""
        prefix = self._prefix_cache.pop(ids, None) or _Prefix([], [], 0)
        at_once, start = len(ids) <= WHOLE_PROMPT, prefix.size
        if start < len(ids) and (at_once or compute):
            end = len(ids) if at_once else min(len(ids), start + self.prefill_chunk)
            positions = torch.arange(start, end)
            seen = torch.arange(end) <= positions[:, None] if start else None

            def attend(i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                for cached, new in ((prefix.keys, k), (prefix.values, v)):
                    if not start:
                        cached.append(new.new_empty(new.shape[1], len(ids), new.shape[2]))
                    cached[i][:, start:end] = new.transpose(0, 1)
                return _attend_row(q, prefix.keys[i][:, :end], prefix.values[i][:, :end], seen)

            self._forward(torch.tensor(ids[start:end]), positions, attend, None)
            prefix.size = end
        if prefix.size:  # an empty prefix would evict one that is being computed
            self._prefix_cache[ids] = prefix
        if len(self._prefix_cache) > _MAX_PREFIXES:
            del self._prefix_cache[next(iter(self._prefix_cache))]
        return prefix

    def _forward(
        self, ids_N: Tensor, positions_N: Tensor, attend: _Attend, last: Tensor | slice | None
    ) -> Tensor:
        """Run the forward pass and return the logits after the tokens `last`, or only fill the
        cache if `last` is None."""
        w = self._weights
        s, turn = w.shape, w.shape.heads + w.shape.kv_heads
        cos, sin = self._cos[positions_N], self._sin[positions_N]
        x = F.embedding(ids_N, w.embed)
        for i, b in enumerate(self._blocks):
            qkv = fused_linear(_apply_norm(x, b.norm1, s.eps), b.qkv, b.qkv_bias)
            qkv = qkv.view(len(x), turn + s.kv_heads, s.head_dim)
            qk = qkv[:, :turn]
            if b.head_norms is not None:
                qk = F.rms_norm(qk, (s.head_dim,), None, s.eps) * b.head_norms
            qk = rotate(qk, cos, sin)
            attended = attend(i, qk[:, : s.heads], qk[:, s.heads :], qkv[:, turn:])
            if i == len(self._blocks) - 1:
                if last is None:
                    return x
                x, attended = x[last], attended[last]
            x = fused_linear(attended, b.out, other=x, op="add")
            normed = _apply_norm(x, b.norm2, s.eps)
            gate = fused_linear(normed, b.gate, op="swish")
            x = fused_linear(
                fused_linear(normed, b.up, other=gate, op="mul"), b.down, other=x, op="add"
            )
        return fused_linear(_apply_norm(x, w.norm, s.eps), self._head)


def _attend_row(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Compute attention of one row's queries to its keys, without materialising the scores.

    The keys are [kv, L, D], the result is [N, heads * D]. Attention is causal if there is no mask.
    """
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys[None], values[None], mask,
        is_causal=mask is None, enable_gqa=True,
    )  # fmt: skip
    return out[0].transpose(0, 1).flatten(1)


def _apply_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Apply RMS norm."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return torch.mul(x, scale, out=torch.empty_like(x)).mul_(weight)
