"""What each slot draws: its stream of random numbers, its sampling parameters, its record so far.

All of it lies in tensors by slot, so that a step over many slots is a handful of operations. The
distribution itself is `sampler.py`'s; `native.py` decides which slots draw from which logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tutelage.engine.protocol import Request
from tutelage.engine.sampler import draw, uniforms

Record = tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]
"""Tokens, their log-probabilities at the sampling temperature, and at temperature 1."""


class Streams:
    """One stream of draws a slot, of up to `length` tokens."""

    def __init__(self, slots: int, length: int, device: torch.device) -> None:
        self._device, self._length = device, length

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self._count, self._limit, self._top_k = (zeros(slots, dtype=torch.long) for _ in range(3))
        self._temperature, self._top_p = zeros(slots), zeros(slots)
        self._plain = zeros(slots, dtype=torch.bool)
        """Whether a slot samples at temperature 1 from the whole vocabulary."""
        self._uniform = zeros(slots, length)
        self._tokens = zeros(slots, length, dtype=torch.long)
        self._logp, self._raw = zeros(slots, length), zeros(slots, length)

    def begin(self, slots: Sequence[int], requests: Sequence[Request]) -> None:
        """Start a stream in each slot, for its request."""
        wanted = [r.sampling for r in requests]
        rooms = [self._length - len(r.prompt_ids) for r in requests]
        limits = [max(1, min(w.max_tokens, r)) for w, r in zip(wanted, rooms, strict=True)]
        numbers = np.zeros((len(slots), self._length), dtype=np.float32)
        for line, request, limit in zip(numbers, requests, limits, strict=True):
            line[:limit] = uniforms(request.seed, limit)
        at = self._tensor(slots)
        self._count[at] = 0
        self._limit[at] = self._tensor(limits)
        self._top_k[at] = self._tensor([w.top_k for w in wanted])
        self._temperature[at] = self._tensor([w.temperature for w in wanted], torch.float32)
        self._top_p[at] = self._tensor([w.top_p for w in wanted], torch.float32)
        plain = [(w.temperature, w.top_p, w.top_k) == (1, 1, 0) for w in wanted]
        self._plain[at] = self._tensor(plain, torch.bool)
        self._uniform[at] = torch.from_numpy(numbers).to(self._device)

    def draw(
        self, slots: Sequence[int], logits_LV: Tensor, line_B: Tensor
    ) -> tuple[Tensor, list[bool]]:
        """Draw and record a token for each slot from its line of the logits.

        Returns the tokens, and whether each is the last that its request allows.
        """
        at = self._tensor(slots)
        count = self._count[at]
        plain = bool(self._plain[at].all())
        token, logp, raw = draw(
            logits_LV,
            self._uniform[at, count],
            None if plain else self._temperature[at],
            None if plain else self._top_p[at],
            None if plain else self._top_k[at],
            line_B=line_B,
        )
        self._tokens[at, count] = token
        self._logp[at, count] = logp
        self._raw[at, count] = raw
        self._count[at] = count + 1
        return token, (count + 1 >= self._limit[at]).tolist()

    def tokens(self, slot: int) -> list[int]:
        """What a slot has drawn."""
        return self._tokens[slot, : int(self._count[slot])].tolist()

    def records(self, slots: Sequence[int]) -> list[Record]:
        """What each slot has drawn, with its log-probabilities."""
        at = self._tensor(slots)
        counts: list[int] = self._count[at].tolist()
        longest = max(counts)
        tokens, logp, raw = (
            t[at, :longest].tolist() for t in (self._tokens, self._logp, self._raw)
        )
        return [
            (tuple(tokens[i][:n]), tuple(logp[i][:n]), tuple(raw[i][:n]))
            for i, n in enumerate(counts)
        ]

    def _tensor(self, values: Sequence[float], dtype: torch.dtype = torch.long) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)
