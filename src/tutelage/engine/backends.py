"""Where the native engine's logits come from: the fused decoder, or any Hugging Face model.

A backend has numbered rows of cached keys and values and can append tokens to some of them and copy
a row's beginning. `native.py` decides what goes where.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from tutelage.policy import decoder
from tutelage.policy.hf_model import HFNetwork
from tutelage.policy.machine import SMALL_MODEL
from tutelage.policy.model import Policy
from tutelage.policy.network import FusedNetwork
from tutelage.policy.packed_decoder import PackedDecoder
from tutelage.policy.weights import DecoderWeights

_FIRST_WIDTH = 1024
"""Tokens of a row at first; the cache of longer sequences doubles when one comes, since wide rows
of short sequences take more memory: each of their channels begins on another page."""


class _PaddedBackend:
    """What small models and models of transformers have in common; see `PackedDecoder`."""

    exact_shapes = False
    prefill_tokens = 8192

    def begin(self, row: int, ids: tuple[int, ...]) -> int:
        """No prefix is kept."""
        return 0


class _FusedBackend(_PaddedBackend):
    """The fused decoder. In float32 it samples from the policy's own tensors, else from a copy."""

    chunk = 32
    """Rows of a call in which no row depends on what the others hold."""

    def __init__(self, network: FusedNetwork, rows: int, width: int, dtype: torch.dtype) -> None:
        self.device = network.device
        network.merge()
        self._shared = dtype == torch.float32
        self._weights: DecoderWeights = (
            network.weights if self._shared else network.weights.to(self.device, dtype)
        )
        self._width = width
        self._held = torch.zeros(rows, dtype=torch.long, device=self.device)
        """Columns that each row may have something in."""
        with torch.no_grad():
            self._cache = decoder.Cache.allocate(self._weights, rows, min(width, _FIRST_WIDTH))

    def extend(
        self, ids_BT: Tensor, starts_B: Tensor, lengths_B: Tensor, rows: Tensor | int, reach: int
    ) -> Tensor:
        """Append tokens and return logits [B, V]; see `policy.decoder.extend`."""
        if reach > self._cache.width:
            width = min(self._width, 2 * reach)
            self._cache = self._cache.wider(self._weights, width, self._held.tolist())
        at = slice(rows) if isinstance(rows, int) else rows
        self._held[at] = self._held[at].clamp(min=reach)
        return decoder.extend(self._weights, self._cache, ids_BT, starts_B, lengths_B, rows, reach)

    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        """Copy the first `length` cached tokens of rows `source` to rows `target`, as if all at
        once: a row may be both."""
        self._held[target] = self._held[target].clamp(min=length)
        self._cache.copy(source, target, length)

    def load(self, source: Policy) -> None:
        """Share the policy's tensors, adapters merged, or cast them again."""
        network = source.network
        if not isinstance(network, FusedNetwork):
            raise TypeError(f"a fused engine has no use for a {type(network).__name__}")
        network.merge()
        if self._shared:
            self._weights = network.weights
        else:
            self._weights.copy_(network.weights)


class _HFBackend(_PaddedBackend):
    """Any transformers model: one cache object and one forward a row. Right, not fast."""

    chunk = 1

    def __init__(self, network: HFNetwork, rows: int) -> None:
        self.device = network.device
        self._model: Any = network.model
        self._caches: list[Any] = [None] * rows

    @torch.no_grad()
    def extend(
        self, ids_BT: Tensor, starts_B: Tensor, lengths_B: Tensor, rows: Tensor | int, reach: int
    ) -> Tensor:
        """Append tokens to cached rows, one by one."""
        from transformers import DynamicCache

        numbers = list(range(rows)) if isinstance(rows, int) else rows.tolist()
        out: list[Tensor] = []
        for b, row in enumerate(numbers):
            start, length = int(starts_B[b]), int(lengths_B[b])
            cache = self._caches[row]
            if cache is None or start == 0:
                # Without the config every layer keeps all keys, windowed ones too (their masks
                # still apply), so that any cache can be cut back.
                cache = DynamicCache()
            _crop(cache, start)
            result = self._model(
                input_ids=ids_BT[b : b + 1, :length], past_key_values=cache, use_cache=True
            )
            self._caches[row] = result.past_key_values
            out.append(result.logits[0, -1].float())
        return torch.stack(out)

    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        """Copy whole caches and cut them to `length`."""
        copies = [copy.deepcopy(self._caches[s]) for s in source.tolist()]
        for t, cache in zip(target.tolist(), copies, strict=True):
            self._caches[t] = cache
            if cache is not None:
                _crop(cache, length)

    def load(self, source: Policy) -> None:
        """Share the model itself."""
        network = source.network
        if isinstance(network, FusedNetwork):
            raise TypeError(f"this engine has no use for a {type(network).__name__}")
        self._model = network.model


def _crop(cache: Any, length: int) -> None:
    """Cut a cache back to its first `length` tokens; a shorter one stays as it is."""
    beyond = int(cache.get_seq_length()) - length
    if beyond > 0:
        cache.crop(-beyond)


Backend = _FusedBackend | _HFBackend | PackedDecoder
"""Rows of cached sequences and the model that extends them."""


def make_backend(policy: Policy, rows: int, width: int, dtype: torch.dtype) -> Backend:
    """The backend for a policy's network."""
    network = policy.network
    if not isinstance(network, FusedNetwork):
        return _HFBackend(network, rows)
    large = policy.count() >= SMALL_MODEL and network.device.type == "cpu"
    return (PackedDecoder if large else _FusedBackend)(network, rows, width, dtype)
