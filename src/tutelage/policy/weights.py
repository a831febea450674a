"""The weights of a decoder, fused for speed: one matrix for q, k, v and one for gate and up.

These tensors are the master copy while training: the optimizer updates them, the engine samples
from them, and `to_hf` cuts them back into the names that `AutoModelForCausalLM` and vLLM expect.
Layouts understood: Llama, Qwen2 and Qwen3 (grouped-query attention, RMS norm, SwiGLU, rotary
positions). `decoder.py` computes with them; `model.py` decides whether a given model is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tutelage.errors import ModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder; every one of them read from the Hugging Face config."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    eps: float
    max_positions: int
    tied: bool

    @staticmethod
    def of(config: PretrainedConfig) -> Shape:
        """Read the sizes from a config of the Llama, Qwen2 or Qwen3 layout."""
        c: Any = config
        return Shape(
            layers=c.num_hidden_layers,
            hidden=c.hidden_size,
            heads=c.num_attention_heads,
            kv_heads=c.num_key_value_heads,
            head_dim=getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
            ffn=c.intermediate_size,
            vocab=c.vocab_size,
            eps=c.rms_norm_eps,
            max_positions=c.max_position_embeddings,
            tied=bool(c.tie_word_embeddings),
        )


@dataclass(slots=True)
class Layer:
    """One block. `qkv` is [(heads + 2 kv_heads) * head_dim, hidden], `gate_up` [2 ffn, hidden]."""

    norm1: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    norm2: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(slots=True)
class Weights:
    """All tensors of a decoder and its rotary frequencies. `head` is `embed` when tied."""

    shape: Shape
    embed: Tensor
    layers: list[Layer]
    norm: Tensor
    head: Tensor
    inv_freq: Tensor
    rope_scale: float

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """Every trainable tensor once, in a fixed order."""
        yield "embed", self.embed
        for i, layer in enumerate(self.layers):
            for name in Layer.__slots__:
                tensor = getattr(layer, name)
                if tensor is not None:
                    yield f"layers.{i}.{name}", tensor
        yield "norm", self.norm
        if not self.shape.tied:
            yield "head", self.head

    def parameters(self) -> list[Tensor]:
        """The tensors of `named`."""
        return [tensor for _, tensor in self.named()]

    def count(self) -> int:
        """Number of parameters."""
        return sum(t.numel() for t in self.parameters())

    def to(self, device: torch.device, dtype: torch.dtype) -> Weights:
        """A copy on `device` in `dtype`, without gradients; the rotary tables stay in float32."""

        def move(t: Tensor | None) -> Any:
            return None if t is None else t.detach().to(device=device, dtype=dtype, copy=True)

        embed = move(self.embed)
        return Weights(
            shape=self.shape,
            embed=embed,
            layers=[
                Layer(**{n: move(getattr(layer, n)) for n in Layer.__slots__})
                for layer in self.layers
            ],
            norm=move(self.norm),
            head=embed if self.shape.tied else move(self.head),
            inv_freq=self.inv_freq.to(device),
            rope_scale=self.rope_scale,
        )

    @torch.no_grad()
    def copy_(self, other: Weights) -> None:
        """Overwrite these tensors with those of `other`, casting as needed."""
        for mine, theirs in zip(self.parameters(), other.parameters(), strict=True):
            mine.copy_(theirs)


def from_hf(
    state: Mapping[str, Tensor], shape: Shape, inv_freq: Tensor, rope_scale: float
) -> Weights:
    """Fuse a Hugging Face state dict. Raises `ModelError` on a tensor that it does not know."""
    left = {k: v.detach().to(torch.float32) for k, v in state.items()}

    def take(name: str) -> Tensor | None:
        return left.pop(name, None)

    def need(name: str) -> Tensor:
        found = take(name)
        if found is None:
            raise ModelError(f"the model has no tensor {name!r}: not a Llama or Qwen layout")
        return found.clone()

    layers: list[Layer] = []
    for i in range(shape.layers):
        p = f"model.layers.{i}."
        biases = [b for x in "qkv" if (b := take(f"{p}self_attn.{x}_proj.bias")) is not None]
        layers.append(
            Layer(
                norm1=need(p + "input_layernorm.weight"),
                qkv=torch.cat([need(f"{p}self_attn.{x}_proj.weight") for x in "qkv"]),
                qkv_bias=torch.cat(biases) if biases else None,
                q_norm=take(p + "self_attn.q_norm.weight"),
                k_norm=take(p + "self_attn.k_norm.weight"),
                out=need(p + "self_attn.o_proj.weight"),
                norm2=need(p + "post_attention_layernorm.weight"),
                gate_up=torch.cat([need(f"{p}mlp.{x}_proj.weight") for x in ("gate", "up")]),
                down=need(p + "mlp.down_proj.weight"),
            )
        )
    embed, norm = need("model.embed_tokens.weight"), need("model.norm.weight")
    head = take("lm_head.weight")
    if shape.tied or head is None:
        head = embed
    if left:
        raise ModelError(f"unknown tensors {sorted(left)[:3]!r}: not a plain Llama or Qwen layout")
    return Weights(shape, embed, layers, norm, head, inv_freq.float(), rope_scale)


def to_hf(weights: Weights) -> dict[str, Tensor]:
    """Cut the fused tensors back into the Hugging Face names (contiguous float32 copies)."""
    s = weights.shape
    sizes = [s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim]
    out = {"model.embed_tokens.weight": weights.embed, "model.norm.weight": weights.norm}
    for i, layer in enumerate(weights.layers):
        p = f"model.layers.{i}."
        out[p + "input_layernorm.weight"] = layer.norm1
        out[p + "post_attention_layernorm.weight"] = layer.norm2
        for x, part in zip("qkv", layer.qkv.split(sizes), strict=True):
            out[f"{p}self_attn.{x}_proj.weight"] = part
        if layer.qkv_bias is not None:
            for x, part in zip("qkv", layer.qkv_bias.split(sizes), strict=True):
                out[f"{p}self_attn.{x}_proj.bias"] = part
        if layer.q_norm is not None and layer.k_norm is not None:
            out[p + "self_attn.q_norm.weight"] = layer.q_norm
            out[p + "self_attn.k_norm.weight"] = layer.k_norm
        out[p + "self_attn.o_proj.weight"] = layer.out
        for x, part in zip(("gate", "up"), layer.gate_up.chunk(2), strict=True):
            out[f"{p}mlp.{x}_proj.weight"] = part
        out[p + "mlp.down_proj.weight"] = layer.down
    if not s.tied:
        out["lm_head.weight"] = weights.head
    return {k: v.detach().to("cpu", torch.float32).clone().contiguous() for k, v in out.items()}
