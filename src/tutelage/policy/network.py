"""The fused decoder as a network, and the scoring of training rows.

A network holds the tensors of a policy, returns them by their Hugging Face names, and computes the
log-probabilities of trained tokens. `FusedNetwork` runs the fused decoder (`training.py`);
`hf_model.py` is the fallback for other architectures, with the same methods; `model.py` chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tutelage.policy import training
from tutelage.policy.constrained import AllowedTokens, unpack_bits
from tutelage.policy.decoder import rope
from tutelage.policy.kernels import linear, outer, product
from tutelage.policy.machine import SMALL_MODEL
from tutelage.policy.packing import MicroBatch
from tutelage.policy.row import Row
from tutelage.policy.weights import DecoderWeights, Layer

_LOGITS_LIMIT = 1 << 22
"""Maximum number of logits in memory; more are computed in chunks, and again in the backward
pass."""
_SCORING = Lock()
"""Held while the gradient of a chunk of logits is computed, so that threads that work on several
micro-batches need this memory only once."""


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Log-probabilities and entropies of K trained tokens.

    `logp_K` is the log-probability at the sampling temperature, with gradient; `entropy_K` the
    entropy of that distribution (with gradient only if `Scoring` requests it); `rows_K` and
    `columns_K` are the token's row and column.
    """

    logp_K: Tensor
    entropy_K: Tensor
    rows_K: Tensor
    columns_K: Tensor
    full_kl_K: Tensor | None = None
    """Exact KL from the reference at each trained token, if its log-probabilities were given."""

    def detach(self) -> TokenScores:
        """Return the scores without gradients and without the exact KL."""
        return TokenScores(
            self.logp_K.detach(), self.entropy_K.detach(), self.rows_K, self.columns_K
        )


@dataclass(frozen=True, slots=True)
class Scoring:
    """Options of token scoring: temperature, activation dtype, entropy gradient, reference
    log-probabilities for the exact KL, and the tokens allowed by grammars."""

    temperature: float = 1.0
    dtype: torch.dtype = torch.float32
    entropy_gradient: bool = False
    reference_KV: Tensor | None = None
    allowed: AllowedTokens | None = None


class TokenTensors(NamedTuple):
    """Values of K trained tokens, with gradients, and each token's row and column."""

    values: Tensor
    rows_K: Tensor
    columns_K: Tensor


class Block(nn.Module):
    """A decoder block, with parameters named like the fields of `Layer`."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        for name, tensor in zip(Layer.__slots__, layer.items(), strict=True):
            self.register_parameter(name, None if tensor is None else _to_parameter(tensor))

    def tensors(self) -> Layer:
        """Return the block's tensors for the forward pass, with gradients."""
        return Layer(**{name: getattr(self, name) for name in Layer.__slots__})

    def forward(self, x: Tensor, plan: training.IndexTables, indices_S: Tensor | None) -> Tensor:
        """Apply the decoder block to hidden states `x`."""
        out: Any = training.BlockFunction.apply(x, plan, indices_S, *self.tensors().items())
        return out


class FusedNetwork(nn.Module):
    """The fused decoder as an ordinary torch module with custom kernels.

    Parameters, `state_dict` and hooks work as usual; `weights` returns the same tensors in the form
    that the kernels use.
    """

    embed: nn.Parameter
    norm: nn.Parameter
    head: nn.Parameter | None
    """None if the embedding is also the output head."""
    inv_freq: Tensor
    checkpoints_blocks = False
    """True if the backward pass recomputes each block's activations (`enable_checkpointing`)."""
    large: bool
    """True if the model is large: then micro-batches are planned by computed tokens, and blocks
    keep fewer activations."""

    def __init__(self, weights: DecoderWeights, block: Callable[[Layer], Block] = Block) -> None:
        """Create a network from tensors, sharing existing parameters."""
        super().__init__()
        self.shape, self.rope_scale = weights.shape, weights.rope_scale
        self.embed = _to_parameter(weights.embed)
        self.layers = nn.ModuleList(block(layer) for layer in weights.layers)
        self.norm = _to_parameter(weights.norm)
        self.head = None if weights.shape.tied else _to_parameter(weights.head)
        self.register_buffer("inv_freq", weights.inv_freq, persistent=False)
        self.large = weights.count() >= SMALL_MODEL

    @property
    def device(self) -> torch.device:
        """Return the device of the forward pass, even if tensors are offloaded to main memory."""
        return self.inv_freq.device

    @property
    def weights(self) -> DecoderWeights:
        """Return the tensors in the form that the kernels use, for sampling."""
        layers = [block.tensors() for block in cast("list[Block]", list(self.layers))]
        return DecoderWeights(
            self.shape, self.embed, layers, self.norm, self._output, self.inv_freq, self.rope_scale
        )

    def forward(self, batch: MicroBatch, dtype: torch.dtype, *, scored: bool = False) -> Tensor:
        """Compute final hidden states [S, hidden] at the positions that predict trained tokens.

        `dtype` is that of the activations; `scored` is True if the output head is applied next."""
        tables = rope(self.inv_freq, self.rope_scale, batch.positions_N, dtype)
        plan = training.IndexTables.build(self.shape, tables, batch, lean=self.large)
        # With a tied head, the gradient of the lookup can be sparse: that of the head is dense.
        cpu = self.device.type == "cpu"  # sparse gradients are not deterministic on other devices
        sparse = cpu and scored and self.large and self.head is None
        x = F.embedding(batch.ids_N, self.embed, sparse=sparse).to(dtype)
        last = len(self.layers) - 1
        for i, block in enumerate(self.layers):
            indices_S = batch.sources_S if i == last else None
            if self.checkpoints_blocks and torch.is_grad_enabled():
                x = checkpoint(block, x, plan, indices_S, use_reentrant=False)
            else:
                x = block(x, plan, indices_S)
        out: Any = training.NormFunction.apply(x, self.norm, self.shape.eps)
        return out

    def named_tensors(self) -> Iterable[tuple[str, Tensor]]:
        """Return the trainable tensors by name, in a fixed order."""
        return self.weights.named_tensors()

    def enable_checkpointing(self) -> None:
        """Enable activation checkpointing, which trades compute for memory."""
        self.checkpoints_blocks = True

    def merge(self) -> None:
        """Do nothing: a network without adapters has nothing to merge."""

    def copy(self) -> FusedNetwork:
        """Return a copy of the network that shares no tensors."""
        return deepcopy(self)

    def count(self) -> int:
        """Return the number of parameters."""
        return self.weights.count()

    def trunk(self) -> Iterable[tuple[str, Tensor]]:
        """Return the trainable tensors by name, except a separate output head."""
        return ((n, t) for n, t in self.named_tensors() if n != "head")

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the current weights by their Hugging Face names. The tensors are views, so they
        are valid until the next update."""
        self.merge()
        return self.weights.hf_tensors()

    def state(self) -> dict[str, Tensor]:
        """Return copies of the weights in main memory, by their Hugging Face names."""
        named = self.hf_tensors()
        return {name: t.to("cpu", torch.float32).clone().contiguous() for name, t in named}

    @property
    def _output(self) -> Tensor:
        return self.embed if self.head is None else self.head

    def score(self, rows: Sequence[Row], opts: Scoring) -> TokenScores:
        """Compute the scores of the trained tokens of `rows`, with logits in chunks."""
        batch = MicroBatch.pack(rows, self.device, opts.dtype)
        hidden, head, kl = self(batch, opts.dtype, scored=True), self._output, None
        if opts.reference_KV is None and len(hidden) * len(head) > _LOGITS_LIMIT:
            scores: Any = _ChunkedScores.apply(hidden, head, batch, opts)
            logp, entropy = scores
        else:
            z, lines_K = _logits(hidden, head, opts.temperature), batch.lines_K
            logp, entropy = pick(z, lines_K, batch.targets_K, opts.entropy_gradient, opts.allowed)
            if opts.reference_KV is not None:
                kl = exact_kl(z[lines_K], opts.reference_KV)
        return TokenScores(logp, entropy, batch.rows_K, batch.columns_K, kl)

    def hidden_states(self, rows: Sequence[Row], dtype: torch.dtype) -> TokenTensors:
        """Return the final hidden states [K, hidden] that predict the trained tokens."""
        batch = MicroBatch.pack(rows, self.device, dtype)
        hidden = self(batch, dtype)
        return TokenTensors(hidden[batch.lines_K].float(), batch.rows_K, batch.columns_K)

    @torch.no_grad()
    def distribution(self, rows: Sequence[Row], temperature: float, dtype: torch.dtype) -> Tensor:
        """Return log-probabilities [K, V] over the vocabulary at each trained token."""
        batch = MicroBatch.pack(rows, self.device, dtype)
        z = _logits(self(batch, dtype), self._output, temperature)
        return torch.log_softmax(z, -1)[batch.lines_K]


def _to_parameter(tensor: Tensor) -> nn.Parameter:
    """Convert a tensor to a parameter if it is not one already."""
    return tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor)


def _logits(hidden_SH: Tensor, head_VH: Tensor, temperature: float) -> Tensor:
    """Return temperature-scaled logits [S, V] of hidden states."""
    z_SV = linear(hidden_SH, head_VH.to(hidden_SH.dtype)).float()
    return z_SV if temperature == 1.0 else z_SV / temperature


def exact_kl(z_KV: Tensor, reference_KV: Tensor) -> Tensor:
    """Compute `KL(policy || reference)` [K] from policy logits and reference log-probabilities."""
    logp_KV = torch.log_softmax(z_KV, -1)
    return (logp_KV.exp() * (logp_KV - reference_KV)).sum(-1)


class _ChunkedScores(torch.autograd.Function):
    """Token scores computed in chunks of logits, which the backward pass recomputes to save
    memory."""

    @staticmethod
    def forward(
        ctx: Any, hidden_SH: Tensor, head: Tensor, batch: MicroBatch, opts: Scoring
    ) -> tuple[Tensor, Tensor]:
        cast = head.to(hidden_SH.dtype)
        ctx.save_for_backward(hidden_SH, head)
        ctx.batch, ctx.opts = batch, opts
        logp, entropy = (torch.zeros(len(batch.lines_K), device=head.device) for _ in range(2))
        for chunk, which_K, lines_K, targets_K, allowed in _chunks(len(cast), batch, opts.allowed):
            z = _logits(hidden_SH[chunk], cast, opts.temperature)
            logp[which_K], entropy[which_K] = pick(z, lines_K, targets_K, False, allowed)
        if not opts.entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_SH, head = ctx.saved_tensors
        batch, opts = ctx.batch, ctx.opts
        count, d_hidden = 2 if opts.entropy_gradient else 1, torch.zeros_like(hidden_SH)
        g_head = torch.zeros_like(head) if ctx.needs_input_grad[1] else None
        with _SCORING:
            cast = head.to(hidden_SH.dtype)
            for chunk, which_K, lines_K, targets_K, allowed in _chunks(
                len(cast), batch, opts.allowed
            ):
                z = _logits(hidden_SH[chunk], cast, opts.temperature).requires_grad_()
                with torch.enable_grad():
                    out = pick(z, lines_K, targets_K, opts.entropy_gradient, allowed)
                d_z = torch.autograd.grad(out[:count], z, [g[which_K] for g in grads[:count]])[0]
                d_z = d_z.div_(opts.temperature).to(hidden_SH.dtype)
                d_hidden[chunk] = product(d_z, cast)
                if g_head is not None:
                    g_head += outer(d_z, hidden_SH[chunk])
        return d_hidden, g_head, None, None


def _chunks(
    vocab: int, batch: MicroBatch, allowed: AllowedTokens | None
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor, AllowedTokens | None]]:
    """Split the positions that predict trained tokens into chunks.

    A chunk is the slice of lines, the indices of targets, and for each target its line within the
    chunk, its token and the allowed tokens.
    """
    size = max(1, _LOGITS_LIMIT // vocab)
    for at in range(0, len(batch.sources_S), size):
        which_K = ((batch.lines_K >= at) & (batch.lines_K < at + size)).nonzero().squeeze(1)
        if len(which_K):
            narrowed = (
                None if allowed is None else replace(allowed, number_K=allowed.number_K[which_K])
            )
            lines_K, targets_K = batch.lines_K[which_K] - at, batch.targets_K[which_K]
            yield slice(at, at + size), which_K, lines_K, targets_K, narrowed


def pick(
    z_SV: Tensor,
    lines_K: Tensor,
    targets_K: Tensor,
    entropy_gradient: bool,
    allowed: AllowedTokens | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the log-probability [K] of each target token and its distribution's entropy [K].

    `z_SV` are tempered logits; target k has the line `lines_K[k]`. `allowed` restricts the
    vocabulary of tokens under a grammar.
    """
    logp_SV = torch.log_softmax(z_SV, -1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_S = -(logp_SV.exp() * logp_SV).sum(-1)
    logp_K, entropy_K = logp_SV[lines_K, targets_K], entropy_S[lines_K]
    if allowed is None:
        return logp_K, entropy_K
    which_N = (allowed.number_K >= 0).nonzero().squeeze(1)
    hidden_NV = ~unpack_bits(allowed.words_NW[allowed.number_K[which_N]], z_SV.shape[1])
    narrow_NV = z_SV[lines_K[which_N]].masked_fill(hidden_NV, -torch.inf).log_softmax(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        finite_NV = narrow_NV.masked_fill(hidden_NV, 0.0)
        entropy_N = -(narrow_NV.exp() * finite_NV).sum(-1)
    logp_N = narrow_NV.gather(1, targets_K[which_N, None]).squeeze(1)
    return (
        logp_K.index_put((which_N,), logp_N),
        entropy_K.index_put((which_N,), entropy_N),
    )
