"""Where the native engine's logits come from: the fused decoder, or any Hugging Face model.

A backend has numbered slots of cached keys and values and can append tokens to some of them, copy a
slot's beginning, and move a slot. `native.py` decides what goes where.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol

import torch
from torch import Tensor

from tutelage.policy import decoder
from tutelage.policy.hf_model import HFNetwork
from tutelage.policy.model import Policy
from tutelage.policy.network import FusedNetwork
from tutelage.policy.weights import Weights


class Backend(Protocol):
    """Slots of cached sequences and the model that extends them."""

    device: torch.device

    def extend(
        self, ids_BT: Tensor, starts_B: Tensor, lengths_B: Tensor, rows: Tensor | int, reach: int
    ) -> Tensor:
        """Append tokens and return logits [B, V]; see `policy.decoder.extend`."""
        ...

    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        """Copy the first `length` cached tokens of slots `source` to slots `target`."""
        ...

    def refresh(self) -> None:
        """Take over the policy's current weights."""
        ...


class FusedBackend:
    """The fused decoder. In float32 it samples from the master weights themselves."""

    def __init__(self, network: FusedNetwork, slots: int, width: int, dtype: torch.dtype) -> None:
        self.device = network.device
        self._master = network.weights
        self._shared = dtype == torch.float32
        self._weights: Weights = (
            network.weights if self._shared else network.weights.to(self.device, dtype)
        )
        with torch.no_grad():
            self._cache = decoder.Cache.allocate(self._weights, slots, width)

    def extend(
        self, ids_BT: Tensor, starts_B: Tensor, lengths_B: Tensor, rows: Tensor | int, reach: int
    ) -> Tensor:
        """Append tokens to cached rows."""
        return decoder.extend(self._weights, self._cache, ids_BT, starts_B, lengths_B, rows, reach)

    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        """Copy the beginning of some slots."""
        self._cache.copy(source, target, length)

    def refresh(self) -> None:
        """Cast the master weights again; nothing to do when they are shared."""
        if not self._shared:
            self._weights.copy_(self._master)


class HFBackend:
    """Any transformers model: one cache object a slot, one forward a row. Right, not fast."""

    def __init__(self, network: HFNetwork, slots: int, width: int) -> None:
        del width
        self.device = network.device
        self._model: Any = network.model
        self._caches: list[Any] = [None] * slots

    @torch.no_grad()
    def extend(
        self, ids_BT: Tensor, starts_B: Tensor, lengths_B: Tensor, rows: Tensor | int, reach: int
    ) -> Tensor:
        """Append tokens to cached rows, one by one."""
        from transformers import DynamicCache

        slots = list(range(rows)) if isinstance(rows, int) else rows.tolist()
        out: list[Tensor] = []
        for b, slot in enumerate(slots):
            start, length = int(starts_B[b]), int(lengths_B[b])
            cache = self._caches[slot]
            if cache is None or start == 0:
                # Without the config every layer keeps all keys, windowed ones too (their masks
                # still apply), so that any cache can be cut back.
                cache = DynamicCache()
            _crop(cache, start)
            result = self._model(
                input_ids=ids_BT[b : b + 1, :length], past_key_values=cache, use_cache=True
            )
            self._caches[slot] = result.past_key_values
            out.append(result.logits[0, -1].float())
        return torch.stack(out)

    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        """Copy whole caches and cut them to `length`."""
        for s, t in zip(source.tolist(), target.tolist(), strict=True):
            self._caches[t] = copy.deepcopy(self._caches[s])
            if self._caches[t] is not None:
                _crop(self._caches[t], length)

    def refresh(self) -> None:
        """The model's own parameters are the master weights: nothing to do."""


def _crop(cache: Any, length: int) -> None:
    """Cut a cache back to its first `length` tokens; a shorter one stays as it is."""
    beyond = int(cache.get_seq_length()) - length
    if beyond > 0:
        cache.crop(-beyond)


def make_backend(policy: Policy, slots: int, width: int, dtype: torch.dtype) -> Backend:
    """The backend for a policy's network."""
    network = policy.network
    if isinstance(network, FusedNetwork):
        return FusedBackend(network, slots, width, dtype)
    if isinstance(network, HFNetwork):
        return HFBackend(network, slots, width)
    raise TypeError(f"no engine backend for {type(network).__name__}")
