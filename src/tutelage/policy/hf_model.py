"""The fallback for architectures that the fused decoder does not know: their own forward.

Slower, but any dense causal language model that transformers can run trains and samples through it.
Same methods as the fused network in `network.py`; the engine's side is in `engine/backends.py`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tutelage.errors import ModelError
from tutelage.policy.network import FusedNetwork, Scoring, TokenScores, TokenTensors, exact_kl, pick
from tutelage.policy.row import Row

_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}
"""Kinds of layers that keep keys and values."""
_EXPERTS = re.compile(r'"(?:moe_)?(?:n|num)_(?:routed_|local_)?experts": (?:[2-9]\d*|1\d+)')
"""A config's number of experts, above 1."""


class HFNetwork:
    """A `transformers` causal language model as a network."""

    large = False
    """Rows are padded and share nothing, whatever its size."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self.model: Any = model.to(device=device, dtype=torch.float32)
        self.model.eval()
        self.device = device

    @staticmethod
    def check_layout(path: str, config: Any) -> None:
        """Raise `ModelError` for a layout that is neither trained nor sampled here."""
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        decoder = config.get_text_config(decoder=True)
        others = ", ".join(sorted({*(getattr(decoder, "layer_types", None) or ())} - _ATTENTION))
        if experts := re.search(_EXPERTS, config.to_json_string(use_diff=False)):
            why = f"is a mixture of experts (its config has {experts[0]})"
        elif config.is_encoder_decoder:
            why = "has an encoder"
        elif others or not hasattr(decoder, "num_attention_heads"):
            why = f"has layers{others and f' ({others})'} without keys and values"
        elif config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            sees = hasattr(config, "vision_config")
            why = "needs vision, which is not supported" if sees else "does not generate text"
        else:
            return
        raise ModelError(
            f"{path!r} has the layout {config.model_type!r}, which {why}; use a dense decoder "
            "with attention in every layer: Llama, Qwen2 and Qwen3 layouts are the fastest, and "
            "others, such as GPT-2, Gemma, Mistral and Phi, work too"
        )

    def named(self) -> Iterable[tuple[str, Tensor]]:
        """Trainable tensors, in the model's own order."""
        module: nn.Module = self.model
        return ((n, p) for n, p in module.named_parameters() if p.requires_grad)

    def body(self) -> Any:
        """The model without its output head."""
        return self.model.base_model

    def headless(self) -> HFNetwork:
        """The same tensors without the output head: what a value model computes with."""
        made = HFNetwork.__new__(HFNetwork)
        made.model, made.device = self.body(), self.device
        return made

    def recompute(self) -> None:
        """Compute the activations again in the backward pass: less memory, more time."""
        self.model.gradient_checkpointing_enable({"use_reentrant": False})
        for module in self.model.modules():
            if getattr(module, "gradient_checkpointing", False):
                module.training = True  # the module alone: what is in it, dropout too, stays off

    def copy(self) -> Self:
        """The same network with tensors of its own."""
        return copy.deepcopy(self)

    def to(self, device: torch.device) -> Self:
        """Move it to another device."""
        self.model, self.device = self.model.to(device), device
        return self

    def count(self) -> int:
        """Number of parameters, frozen ones too."""
        return sum(p.numel() for p in self.model.parameters())

    def trunk(self) -> Iterable[tuple[str, Tensor]]:
        """The tensors of the model without its output head."""
        module: nn.Module = self.body()
        return ((n, p) for n, p in module.named_parameters() if p.requires_grad)

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The weights under their Hugging Face names, one after the other, tied tensors once."""
        seen: set[int] = set()
        for name, tensor in self.model.state_dict().items():
            if tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                yield name, tensor.detach()

    def state(self) -> dict[str, Tensor]:
        """The weights under their Hugging Face names, as copies in main memory."""
        return {name: t.to("cpu").clone().contiguous() for name, t in self.hf_tensors()}

    def score(self, rows: Sequence[Row], how: Scoring) -> TokenScores:
        """Log-probabilities of the trained tokens, right-padded, logits only where trained."""
        z, targets_K, rows_K, columns_K = self._logits(rows, how.temperature, how.dtype)
        lines_K = torch.arange(len(z), device=self.device)
        logp, entropy = pick(z, lines_K, targets_K, how.entropy_gradient, how.allowed)
        kl = None if how.reference_KV is None else exact_kl(z, how.reference_KV)
        return TokenScores(logp, entropy, rows_K, columns_K, kl)

    def states(self, rows: Sequence[Row], dtype: torch.dtype) -> TokenTensors:
        """Hidden states at the trained tokens, from the model without its output head."""
        ids_BT, seen_BT, rows_K, columns_K = self._lay_out(rows)
        with torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
            hidden_BTH = self.body()(
                input_ids=ids_BT, attention_mask=seen_BT, use_cache=False
            ).last_hidden_state
        return TokenTensors(hidden_BTH[rows_K, columns_K - 1].float(), rows_K, columns_K)

    @torch.no_grad()
    def distribution(self, rows: Sequence[Row], temperature: float, dtype: torch.dtype) -> Tensor:
        """Log-probabilities [K, V] over the vocabulary at each trained token."""
        return torch.log_softmax(self._logits(rows, temperature, dtype)[0], -1)

    def _lay_out(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Padded ids and attention mask, and the place of each trained token."""

        def padded(numbers: list[Sequence[int]]) -> Tensor:
            parts = [torch.tensor(some) for some in numbers]
            return pad_sequence(parts, batch_first=True).to(self.device)

        ids_BT, seen_BT = padded([r.ids for r in rows]), padded([[1] * len(r.ids) for r in rows])
        rows_K, columns_K = padded([(0, *r.mask[1:]) for r in rows]).nonzero(as_tuple=True)
        return ids_BT, seen_BT, rows_K, columns_K

    def _logits(
        self, rows: Sequence[Row], temperature: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Tempered scores [K, V] of the trained tokens, the tokens, and their places."""
        ids_BT, seen_BT, rows_K, columns_K = self._lay_out(rows)
        with torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
            logits_BTV = self.model(
                input_ids=ids_BT, attention_mask=seen_BT, use_cache=False
            ).logits
        z = logits_BTV[rows_K, columns_K - 1].float()
        z = z if temperature == 1.0 else z / temperature
        return z, ids_BT[rows_K, columns_K], rows_K, columns_K


Network = FusedNetwork | HFNetwork
"""What computes for a policy. The K trained tokens of a method come in the order of rows, then of
columns, in both. After `to` the one it was should not be used any more."""
