"""A network that runs the forward pass of transformers, for layouts without a fused decoder.

It is slower, but works with any dense causal language model that transformers can run. It has the
same methods as the fused network in `network.py`; `engine/backends.py` samples from it.
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
"""Types of layers that cache keys and values."""
_EXPERTS = re.compile(r'"(?:moe_)?(?:n|num)_(?:routed_|local_)?experts": (?:[2-9]\d*|1\d+)')
"""Matches a number of experts above 1 in a config."""


class HFNetwork:
    """Wrapper of a `transformers` causal language model."""

    large = False
    """False for any size: rows are padded and share no computation."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self.model: Any = model.to(device=device, dtype=torch.float32)
        self.model.eval()
        self.device = device

    @staticmethod
    def check_layout(path: str, config: Any) -> None:
        """Raise `ModelError` for an unsupported model architecture."""
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        decoder = config.get_text_config(decoder=True)
        others = ", ".join(sorted({*(getattr(decoder, "layer_types", None) or ())} - _ATTENTION))
        if experts := re.search(_EXPERTS, config.to_json_string(use_diff=False)):
            reason = f"is a mixture of experts (its config has {experts[0]})"
        elif config.is_encoder_decoder:
            reason = "has an encoder"
        elif others or not hasattr(decoder, "num_attention_heads"):
            reason = f"has layers{others and f' ({others})'} without keys and values"
        elif config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            vision = hasattr(config, "vision_config")
            reason = "needs vision, which is not supported" if vision else "does not generate text"
        else:
            return
        raise ModelError(
            f"{path!r} has the architecture {config.model_type!r}, which {reason}; use a dense "
            "decoder with attention in every layer: Llama, Qwen2 and Qwen3 are the fastest, and "
            "others, such as GPT-2, Gemma, Mistral and Phi, work too"
        )

    def named_tensors(self) -> Iterable[tuple[str, Tensor]]:
        """Return the trainable tensors by name, in the model's own order."""
        module: nn.Module = self.model
        return ((n, p) for n, p in module.named_parameters() if p.requires_grad)

    def body(self) -> Any:
        """Return the model without its output head."""
        return self.model.base_model

    def without_head(self) -> HFNetwork:
        """Return a network for a value model, with the same tensors but without the output head."""
        network = HFNetwork.__new__(HFNetwork)
        network.model, network.device = self.body(), self.device
        return network

    def enable_checkpointing(self) -> None:
        """Enable activation checkpointing, which trades compute for memory."""
        self.model.gradient_checkpointing_enable({"use_reentrant": False})
        for module in self.model.modules():
            if getattr(module, "gradient_checkpointing", False):
                module.training = True  # only this module: its children, such as dropout, stay off

    def copy(self) -> Self:
        """Return a copy of the network that shares no tensors."""
        return copy.deepcopy(self)

    def to(self, device: torch.device) -> Self:
        """Move the network to another device and return it."""
        self.model, self.device = self.model.to(device), device
        return self

    def count(self) -> int:
        """Return the number of parameters, including frozen ones."""
        return sum(p.numel() for p in self.model.parameters())

    def trunk(self) -> Iterable[tuple[str, Tensor]]:
        """Return the trainable tensors by name, except the output head."""
        module: nn.Module = self.body()
        return ((n, p) for n, p in module.named_parameters() if p.requires_grad)

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights by their Hugging Face names, each tied tensor only once."""
        seen: set[int] = set()
        for name, tensor in self.model.state_dict().items():
            if tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                yield name, tensor.detach()

    def state(self) -> dict[str, Tensor]:
        """Return copies of the weights in main memory, by their Hugging Face names."""
        return {name: t.to("cpu").clone().contiguous() for name, t in self.hf_tensors()}

    def score(self, rows: Sequence[Row], opts: Scoring) -> TokenScores:
        """Compute the scores of trained tokens, without logits for other tokens."""
        z, targets_K, rows_K, columns_K = self._logits(rows, opts.temperature, opts.dtype)
        lines_K = torch.arange(len(z), device=self.device)
        logp, entropy = pick(z, lines_K, targets_K, opts.entropy_gradient, opts.allowed)
        kl = None if opts.reference_KV is None else exact_kl(z, opts.reference_KV)
        return TokenScores(logp, entropy, rows_K, columns_K, kl)

    def hidden_states(self, rows: Sequence[Row], dtype: torch.dtype) -> TokenTensors:
        """Return the final hidden states [K, hidden] that predict the trained tokens."""
        ids_BT, mask_BT, rows_K, columns_K = self._pad_rows(rows)
        with torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
            hidden_BTH = self.body()(
                input_ids=ids_BT, attention_mask=mask_BT, use_cache=False
            ).last_hidden_state
        return TokenTensors(hidden_BTH[rows_K, columns_K - 1].float(), rows_K, columns_K)

    @torch.no_grad()
    def distribution(self, rows: Sequence[Row], temperature: float, dtype: torch.dtype) -> Tensor:
        """Return log-probabilities [K, V] over the vocabulary at each trained token."""
        return torch.log_softmax(self._logits(rows, temperature, dtype)[0], -1)

    def _pad_rows(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return padded ids, the attention mask, and row and column of each trained token."""

        def pad(sequences: list[Sequence[int]]) -> Tensor:
            parts = [torch.tensor(sequence) for sequence in sequences]
            return pad_sequence(parts, batch_first=True).to(self.device)

        ids_BT, mask_BT = pad([r.ids for r in rows]), pad([[1] * len(r.ids) for r in rows])
        rows_K, columns_K = pad([(0, *r.mask[1:]) for r in rows]).nonzero(as_tuple=True)
        return ids_BT, mask_BT, rows_K, columns_K

    def _logits(
        self, rows: Sequence[Row], temperature: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return temperature-scaled logits [K, V], and the trained tokens' ids, rows, columns."""
        ids_BT, mask_BT, rows_K, columns_K = self._pad_rows(rows)
        with torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
            logits_BTV = self.model(
                input_ids=ids_BT, attention_mask=mask_BT, use_cache=False
            ).logits
        z = logits_BTV[rows_K, columns_K - 1].float()
        z = z if temperature == 1.0 else z / temperature
        return z, ids_BT[rows_K, columns_K], rows_K, columns_K


Network = FusedNetwork | HFNetwork
"""The network of a policy. Methods return the K trained tokens ordered by row, then column. Do not
use a network after its `to` was called, only the returned one."""
