"""The weights of a decoder, fused for speed: one matrix for q, k, v and one for gate and up.

These tensors are the master copy during training: the optimizer updates them, the engine samples
from them, and `DecoderWeights.hf_tensors` splits them into the tensors that `AutoModelForCausalLM`
and vLLM expect. Supported layouts are Llama, Qwen2 and Qwen3 (grouped-query attention, RMS norm,
SwiGLU, rotary positions). `decoder.py` computes with them; `model.py` decides whether a model is
supported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tutelage.errors import ModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Dimensions of a decoder, read from the Hugging Face config."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    eps: float
    tied: bool

    @staticmethod
    def from_config(config: PretrainedConfig) -> DecoderShape:
        """Read a decoder's dimensions from a config of the Llama, Qwen2 or Qwen3 layout."""
        c: Any = config
        return DecoderShape(
            layers=c.num_hidden_layers,
            hidden=c.hidden_size,
            heads=c.num_attention_heads,
            kv_heads=c.num_key_value_heads,
            head_dim=getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
            ffn=c.intermediate_size,
            vocab=c.vocab_size,
            eps=c.rms_norm_eps,
            tied=bool(c.tie_word_embeddings),
        )

    def sizes(self, field: str) -> list[int]:
        """Return the row counts of the Hugging Face tensors that are fused into a field of
        `Layer`."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        sizes = {"qkv": [q, kv, kv], "gate_up": [self.ffn, self.ffn]}
        sizes |= {"qkv_bias": [q, kv, kv], "q_norm": [self.head_dim], "k_norm": [self.head_dim]}
        return sizes.get(field, [self.hidden])


PARTS: Mapping[str, tuple[str, ...]] = {
    "norm1": ("input_layernorm.weight",),
    "norm2": ("post_attention_layernorm.weight",),
    "qkv": tuple(f"self_attn.{x}_proj.weight" for x in "qkv"),
    "qkv_bias": tuple(f"self_attn.{x}_proj.bias" for x in "qkv"),
    "q_norm": ("self_attn.q_norm.weight",),
    "k_norm": ("self_attn.k_norm.weight",),
    "out": ("self_attn.o_proj.weight",),
    "gate_up": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down": ("mlp.down_proj.weight",),
}
"""The Hugging Face names, within a block, of the tensors fused into each field of `Layer`."""
OPTIONAL = ("qkv_bias", "q_norm", "k_norm")


@dataclass(slots=True)
class Layer:
    """The fused tensors of one decoder block.

    `qkv` is [(heads + 2 kv_heads) * head_dim, hidden], `gate_up` [2 ffn, hidden].
    """

    norm1: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    norm2: Tensor
    gate_up: Tensor
    down: Tensor

    def items(self) -> tuple[Tensor | None, ...]:
        """Return the block's tensors in order."""
        return tuple(getattr(self, name) for name in Layer.__slots__)

    def head_norms(self, s: DecoderShape) -> Tensor | None:
        """Return the query and key norm weights of all heads [heads + kv_heads, D], or None."""
        if self.q_norm is None or self.k_norm is None:
            return None
        return torch.cat([self.q_norm.expand(s.heads, -1), self.k_norm.expand(s.kv_heads, -1)])


@dataclass(slots=True)
class DecoderWeights:
    """Tensors and rotary frequencies of a decoder. `head` is `embed` if they are tied."""

    shape: DecoderShape
    embed: Tensor
    layers: list[Layer]
    norm: Tensor
    head: Tensor
    inv_freq: Tensor
    rope_scale: float

    @staticmethod
    def from_hf(
        state: dict[str, Tensor], shape: DecoderShape, inv_freq: Tensor, rope_scale: float
    ) -> DecoderWeights:
        """Fuse the tensors of a Hugging Face state dict, removing each from `state` to save memory.

        Raises `ModelError` for another layout, before any tensor is removed."""
        first = "model.layers.0."
        fields = {f: n for f, n in PARTS.items() if f not in OPTIONAL or first + n[0] in state}
        parts = [name for names in fields.values() for name in names]
        expected = {f"model.layers.{i}.{name}" for i in range(shape.layers) for name in parts}
        expected |= {"model.embed_tokens.weight", "model.norm.weight"}
        if wrong := expected ^ (state.keys() - {"lm_head.weight"}):
            raise ModelError(
                f"missing or unexpected tensors {sorted(wrong)[:3]!r}: not a plain Llama or Qwen "
                "layout"
            )

        def take(name: str) -> Tensor:
            return state.pop(name).detach().to(torch.float32)

        layers: list[Layer] = []
        for i in range(shape.layers):
            layer: dict[str, Any] = dict.fromkeys(OPTIONAL)
            for field, names in fields.items():
                layer[field] = torch.cat([take(f"model.layers.{i}.{name}") for name in names])
            layers.append(Layer(**layer))
        embed, norm = take("model.embed_tokens.weight"), take("model.norm.weight")
        head = state.pop("lm_head.weight", embed)
        head = embed if shape.tied else head.detach().to(torch.float32)
        return DecoderWeights(shape, embed, layers, norm, head, inv_freq.float(), rope_scale)

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors by their Hugging Face names, as views."""
        yield "model.embed_tokens.weight", self.embed.detach()
        yield "model.norm.weight", self.norm.detach()
        for i, layer in enumerate(self.layers):
            for field, names in PARTS.items():
                tensor: Tensor | None = getattr(layer, field)
                if tensor is not None:
                    parts = tensor.detach().split(self.shape.sizes(field))
                    named = zip(names, parts, strict=True)
                    yield from ((f"model.layers.{i}.{name}", part) for name, part in named)
        if not self.shape.tied:
            yield "lm_head.weight", self.head.detach()

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each trainable tensor once with its name, in a fixed order."""
        yield "embed", self.embed
        for i, layer in enumerate(self.layers):
            for name, tensor in zip(Layer.__slots__, layer.items(), strict=True):
                if tensor is not None:
                    yield f"layers.{i}.{name}", tensor
        yield "norm", self.norm
        if not self.shape.tied:
            yield "head", self.head

    def parameters(self) -> list[Tensor]:
        """Return the trainable tensors in the order of `named_tensors`."""
        return [tensor for _, tensor in self.named_tensors()]

    def count(self) -> int:
        """Return the number of parameters."""
        return sum(t.numel() for t in self.parameters())

    def to(self, device: torch.device, dtype: torch.dtype) -> DecoderWeights:
        """Return a copy on `device` in `dtype`, without gradients and with rotary tables in
        float32."""

        def move(t: Tensor | None) -> Any:
            return None if t is None else t.detach().to(device=device, dtype=dtype, copy=True)

        embed = move(self.embed)
        return replace(
            self,
            embed=embed,
            layers=[Layer(*map(move, layer.items())) for layer in self.layers],
            norm=move(self.norm),
            head=embed if self.shape.tied else move(self.head),
            inv_freq=self.inv_freq.to(device),
        )

    @torch.no_grad()
    def copy_(self, other: DecoderWeights) -> None:
        """Copy the tensors of another decoder in place, casting as needed."""
        for target, source in zip(self.parameters(), other.parameters(), strict=True):
            target.copy_(source)
