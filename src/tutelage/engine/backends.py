"""Backends that compute logits for the native engine: the fused decoder, or any Hugging Face model.

A backend has numbered rows of cached keys and values. It appends tokens to rows and copies the
beginning of a row. `native.py` decides which tokens go to which row.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from tutelage.policy import decoder
from tutelage.policy.decoder import WHOLE_PROMPT, lazy_zeros
from tutelage.policy.hf_model import HFNetwork
from tutelage.policy.kernels import round_up
from tutelage.policy.machine import SMALL_MODEL
from tutelage.policy.model import Policy
from tutelage.policy.network import FusedNetwork
from tutelage.policy.packed_decoder import PackedDecoder
from tutelage.policy.weights import DecoderWeights

_FIRST_WIDTH = 1024
"""Initial number of tokens per row. The cache doubles when a longer sequence arrives; wide rows of
short sequences take more memory, since each of their channels begins on another page."""


class _PaddedBackend:
    """Base class of inference backends that pad their batches."""

    exact_shapes = False
    prefill_tokens = 8192
    shards = 1
    device: torch.device

    @property
    def prefill_chunk(self) -> int:
        """Return the prefill chunk size for long prompts, in tokens."""
        return 256 if self.device.type == "cpu" else 1024

    def attach_prefix(self, row: int, ids: tuple[int, ...], compute: bool) -> int | None:
        """Return 0, the number of cached prefix tokens: this backend does not cache prefixes."""
        return 0

    def free(self) -> None:
        """Do nothing: the KV cache is small, and the weights may be shared with the policy."""


class _FusedBackend(_PaddedBackend):
    """Compute logits with the fused decoder.

    In float32 it uses the policy's own tensors, otherwise a copy in the requested type.
    """

    chunk = 32
    """Rows per call where no row may depend on the others."""

    def __init__(self, network: FusedNetwork, rows: int, width: int, dtype: torch.dtype) -> None:
        self.device = network.device
        network.merge()
        self._shared = dtype == torch.float32
        self._weights: DecoderWeights = (
            network.weights if self._shared else network.weights.to(self.device, dtype)
        )
        self._width = width
        self._used_columns = torch.zeros(rows, dtype=torch.long, device=self.device)
        """Number of columns in use in each row."""
        with torch.no_grad():
            self._cache = decoder.Cache.allocate(self._weights, rows, min(width, _FIRST_WIDTH))

    def extend(
        self, ids_BT: Tensor, starts_B: Tensor, lengths_B: Tensor, rows: Tensor | int, width: int
    ) -> Tensor:
        """Append tokens to KV cache rows and return the logits [B, V] after each row's last new
        token."""
        if width > self._cache.width:
            wide = min(self._width, 2 * width)
            self._cache = self._cache.widen(self._weights, wide, self._used_columns.tolist())
        at = slice(rows) if isinstance(rows, int) else rows
        self._used_columns[at] = self._used_columns[at].clamp(min=width)
        return decoder.extend(self._weights, self._cache, ids_BT, starts_B, lengths_B, rows, width)

    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        """Copy the first `length` cached tokens from KV cache rows `source` to rows `target`.

        All rows are read before any is written, so a row may be both a source and a target.
        """
        self._used_columns[target] = self._used_columns[target].clamp(min=length)
        self._cache.copy(source, target, length)

    def load(self, policy: Policy) -> None:
        """Load the policy's current weights with merged adapters. In float32 they are shared,
        otherwise copied."""
        network = policy.network
        if not isinstance(network, FusedNetwork):
            raise TypeError(f"a fused backend does not support {type(network).__name__}")
        network.merge()
        if self._shared:
            self._weights = network.weights
        else:
            self._weights.copy_(network.weights)


_WINDOWS = re.compile(r'"\w*(?:window|chunk)\w*": [\[1-9]')
"""Matches the config fields of attention windows and chunks."""


class _Layer(DynamicLayer):
    """KV cache of one transformers layer, [rows, columns, heads, D].

    Columns before the first token of a row hold arbitrary values, which the mask hides.
    """

    def __init__(self, backend: _HFBackend) -> None:
        super().__init__()
        self.backend, self.tensors = backend, list[Tensor]()

    def get_seq_length(self) -> int:
        """Return the number of cache columns before the new tokens."""
        return self.backend.past

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store new keys and values, and return the cached ones that attention reads."""
        call = self.backend
        new = key_states.transpose(1, 2), value_states.transpose(1, 2)
        self.tensors = self.tensors or [
            lazy_zeros(t, call.count, call.columns, *t.shape[2:]) for t in new
        ]
        if (missing := call.columns - self.tensors[0].shape[1]) > 0:
            self.tensors = [F.pad(t, (0, 0, 0, 0, 0, missing)) for t in self.tensors]
        flat = [tensor.flatten(0, 1) for tensor in self.tensors]
        for tensor, states in zip(flat, new, strict=True):
            tensor.index_copy_(0, call.new_BT.flatten(), states.flatten(0, 1))
        if call.at_BW is None:
            keys, values = (t[: len(call.new_BT), : call.past + 1] for t in self.tensors)
        else:
            at, shape = call.at_BW.view(-1), call.at_BW.shape
            keys, values = (t.index_select(0, at).view(*shape, *t.shape[1:]) for t in flat)
        return keys.transpose(1, 2), values.transpose(1, 2)


class _HFBackend(_PaddedBackend):
    """Compute logits in padded batches with a Hugging Face model and its KV cache.

    The columns of a call are padded on the left up to the new tokens, which begin in the same
    column in all rows, and on the right after them. Distances within a row are therefore those of
    its tokens, and masks, including attention windows, are the model's own. Without windows, one
    new token per row is computed in place: row b of the call is row b of the cache, and nothing is
    gathered.
    """

    chunk = 16

    def __init__(self, network: HFNetwork, rows: int, width: int) -> None:
        self.device, self.count, self.past = network.device, rows, 0
        # Where unused memory costs nothing: room for a row and the padding of a call.
        self.columns = round_up(width + WHOLE_PROMPT, 128) if self.device.type == "cpu" else 0
        self.new_BT = torch.zeros(0, 0, dtype=torch.long)
        """Cache positions of the new tokens, as row * columns + column."""
        self.at_BW: Tensor | None = None
        """Cache positions that each column of the call reads; None if it reads in place."""
        self._model: Any = network.model
        self._width = width
        config = self._model.config.get_text_config(decoder=True)
        self._windows = re.search(_WINDOWS, config.to_json_string(use_diff=False)) is not None
        self._layers = [_Layer(self) for _ in range(config.num_hidden_layers)]
        base = getattr(self._model, "get_base_model", lambda: self._model)()
        self._parameters = inspect.signature(base.forward).parameters
        # The old argument name is removed in transformers 5.40.
        self._cache = "cache" if "cache" in self._parameters else "past_key_values"

    @torch.inference_mode()
    def extend(
        self, ids_BT: Tensor, starts_B: Tensor, lengths_B: Tensor, rows: Tensor | int, width: int
    ) -> Tensor:
        """Append tokens to KV cache rows and return the logits [B, V] after each row's last new
        token."""
        batch, count = ids_BT.shape
        indices = torch.arange(max(batch, width + count), device=self.device)
        first_B1 = starts_B[:, None]
        self.columns = max(self.columns, round_up(int(starts_B.max()) + count, 128))
        offset_B1 = self.columns * (indices[:rows] if isinstance(rows, int) else rows)[:, None]
        self.new_BT = offset_B1 + first_B1 + indices[:count]
        self.past = width - 1 if count == 1 else int(starts_B.max())
        columns = indices[: self.past + count]
        if count == 1 and isinstance(rows, int) and not self._windows:
            self.at_BW, mask_BW = None, columns <= first_B1
        else:
            positions_BW = first_B1 - self.past + columns
            self.at_BW, mask_BW = offset_B1 + positions_BW.clamp(min=0), positions_BW >= 0
        last_N, line_B = (lengths_B - 1).unique(return_inverse=True)
        options = {
            "position_ids": (first_B1 + indices[:count]).clamp(max=self._width - 1),
            "logits_to_keep": last_N,
        }
        logits = self._model(
            input_ids=ids_BT,
            attention_mask=mask_BW.long(),
            use_cache=True,
            **{self._cache: Cache(layers=list(self._layers))},
            **{name: value for name, value in options.items() if name in self._parameters},
        ).logits
        kept = logits if "logits_to_keep" in self._parameters else logits[:, last_N]
        return kept[indices[:batch], line_B].float()

    @torch.inference_mode()
    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        """Copy the first `length` cached tokens from KV cache rows `source` to rows `target`."""
        for tensor in (tensor for layer in self._layers for tensor in layer.tensors):
            tensor[target, :length] = tensor[source, :length]

    def load(self, policy: Policy) -> None:
        """Use the model of the given policy from now on."""
        network = policy.network
        if isinstance(network, FusedNetwork):
            raise TypeError(f"this backend does not support {type(network).__name__}")
        self._model = network.model


Backend = _FusedBackend | _HFBackend | PackedDecoder
"""Rows of cached sequences and the model that extends them."""


def make_backend(
    policy: Policy, rows: int, width: int, dtype: torch.dtype, shards: int = 1
) -> Backend:
    """Create the inference backend for a policy's network.

    A large model on a CPU computes each batch in `shards` parts.
    """
    network = policy.network
    if not isinstance(network, FusedNetwork):
        return _HFBackend(network, rows, width)
    large = policy.count() >= SMALL_MODEL and network.device.type == "cpu"
    if large:
        return PackedDecoder(network, rows, width, dtype, shards)
    return _FusedBackend(network, rows, width, dtype)
