"""Draw the tokens of each slot, with its random numbers, sampling parameters and record so far.

All state lies in tensors by slot, so that a step over many slots is a handful of operations. The
distribution itself is in `sampler.py`; `native.py` decides which slots draw from which logits.
Slots whose request has a grammar draw separately, from the tokens it allows; the others are not
affected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tutelage.engine.protocol import Request
from tutelage.engine.sampler import draw, draw_uniforms
from tutelage.engine.versions import merge_spans
from tutelage.errors import EngineError
from tutelage.policy.constrained import unpack_bits
from tutelage.policy.grammar import Grammar
from tutelage.types import Sampled, StopReason

Alternatives = tuple[tuple[int, float], ...]
"""Tokens with their log-probabilities at temperature 1, the most probable first."""


class Streams:
    """Draw and record up to `length` tokens for each engine slot."""

    def __init__(self, slots: int, length: int, device: torch.device, threads: int) -> None:
        self._device, self._length, self._threads = device, length, threads

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self._count, self._limit, self._top_k = (zeros(slots, dtype=torch.long) for _ in range(3))
        self._temperature, self._top_p = zeros(slots), zeros(slots)
        self._plain = zeros(slots, dtype=torch.bool)
        """True for slots that sample at temperature 1 from the whole vocabulary."""
        self._uniform = zeros(slots, length)
        self._tokens = zeros(slots, length, dtype=torch.long)
        self._logp, self._raw = zeros(slots, length), zeros(slots, length)
        self._matchers: dict[int, Grammar] = {}
        """Grammar state of each slot with a grammar."""
        self._allowed: dict[int, list[int]] = {}
        """Number of tokens that the grammar allowed at each draw so far, for slots with a
        grammar."""
        self._top: dict[int, tuple[int, list[Alternatives]]] = {}
        """For slots that report the most probable tokens: how many, and those of each draw so
        far."""
        self.failed: dict[int, EngineError] = {}
        """Errors of slots whose grammar failed."""

    def begin(self, slots: Sequence[int], requests: Sequence[Request]) -> None:
        """Start the token stream of each slot's request."""
        params = [r.sampling for r in requests]
        rooms = [self._length - len(r.prompt_ids) for r in requests]
        limits = [max(1, min(p.max_tokens, r)) for p, r in zip(params, rooms, strict=True)]
        numbers = np.zeros((len(slots), self._length), dtype=np.float32)
        for line, request, limit in zip(numbers, requests, limits, strict=True):
            line[:limit] = draw_uniforms(request.seed, limit)
        at = self._to_tensor(slots)
        self._count[at] = 0
        self._limit[at] = self._to_tensor(limits)
        self._top_k[at] = self._to_tensor([p.top_k for p in params])
        self._temperature[at] = self._to_tensor([p.temperature for p in params], torch.float32)
        self._top_p[at] = self._to_tensor([p.top_p for p in params], torch.float32)
        plain = [(p.temperature, p.top_p, p.top_k) == (1, 1, 0) for p in params]
        self._plain[at] = self._to_tensor(plain, torch.bool)
        self._uniform[at] = torch.from_numpy(numbers).to(self._device)
        for slot, request in zip(slots, requests, strict=True):
            for states in (self._matchers, self.failed, self._top):
                states.pop(slot, None)
            if request.top_logprobs:
                self._top[slot] = request.top_logprobs, []
            if request.grammar is not None:
                self._matchers[slot], self._allowed[slot] = request.grammar.start(), []

    def draw(
        self, slots: Sequence[int], logits_LV: Tensor, line_B: Tensor
    ) -> tuple[Tensor, list[bool]]:
        """Draw and record the next token of each slot from its row of the logits.

        Returns the tokens, and for each token True if its request does not allow another one.
        """
        bound = [i for i, s in enumerate(slots) if s in self._matchers] if self._matchers else []
        if not bound:
            return self._draw(slots, logits_LV, line_B)
        free = [i for i, slot in enumerate(slots) if slot not in self._matchers]
        token = torch.zeros_like(line_B)
        full = [False] * len(slots)
        for group, method in ((free, self._draw), (bound, self._draw_constrained)):
            if group:
                where = self._to_tensor(group)
                token[where], last = method([slots[i] for i in group], logits_LV, line_B[where])
                for i, is_last in zip(group, last, strict=True):
                    full[i] = is_last
        return token, full

    def _draw_constrained(
        self, slots: Sequence[int], logits_LV: Tensor, line_B: Tensor
    ) -> tuple[Tensor, list[bool]]:
        """Draw a grammar-constrained token for each slot.

        Errors of a grammar are put into `failed` by slot.
        """
        vocab = logits_LV.shape[1]
        words = np.zeros((len(slots), -(-vocab // 32)), np.int32)
        for line, slot in zip(words, slots, strict=True):
            try:
                self._matchers[slot].fill_bitmask(line)
            except EngineError as error:
                self.failed[slot] = error
                line[:] = -1  # so that a token can be drawn and discarded
        allowed_BV = unpack_bits(torch.from_numpy(words).to(self._device), vocab)
        logits_BV = logits_LV.index_select(0, line_B).masked_fill(~allowed_BV, -torch.inf)
        indices = torch.arange(len(slots), device=self._device)
        token, full = self._draw(slots, logits_BV, indices)
        counts, tokens = allowed_BV.sum(1).tolist(), token.tolist()
        for slot, count, drawn in zip(slots, counts, tokens, strict=True):
            self._allowed[slot].append(count)
            if slot in self.failed:
                continue
            try:
                self._matchers[slot].accept(drawn)
            except EngineError as error:
                self.failed[slot] = error
        return token, full

    def _draw(
        self, slots: Sequence[int], logits_LV: Tensor, line_B: Tensor
    ) -> tuple[Tensor, list[bool]]:
        """Draw a token for each slot. Either all slots have a grammar or none has."""
        at = self._to_tensor(slots)
        count = self._count[at]
        plain = bool(self._plain[at].all())
        token, logp, raw = draw(
            logits_LV,
            self._uniform[at, count],
            None if plain else self._temperature[at],
            None if plain else self._top_p[at],
            None if plain else self._top_k[at],
            line_B=line_B,
            threads=self._threads,
        )
        for slot, line in zip(slots, line_B.tolist(), strict=True) if self._top else ():
            if slot in self._top:
                number, draws = self._top[slot]
                values, ids = logits_LV[line].float().log_softmax(-1).topk(number)
                pairs = zip(ids.tolist(), values.tolist(), strict=True)
                draws.append(tuple((i, x) for i, x in pairs if x > -math.inf))
        self._tokens[at, count] = token
        self._logp[at, count] = logp
        self._raw[at, count] = raw
        self._count[at] = count + 1
        return token, (count + 1 >= self._limit[at]).tolist()

    def tokens(self, slot: int) -> list[int]:
        """Return the tokens drawn so far for a slot."""
        return self._tokens[slot, : int(self._count[slot])].tolist()

    def finish(
        self, slot: int, reason: StopReason, version: int, spans: Sequence[tuple[int, int]]
    ) -> Sampled:
        """Return a slot's finished sample. `spans` are the spans of earlier policy versions."""
        count = int(self._count[slot])
        tensors = (self._tokens, self._logp, self._raw)
        tokens, logp, raw = (tuple(t[slot, :count].tolist()) for t in tensors)
        bound = self._matchers.pop(slot, None) is not None
        allowed = tuple(self._allowed.pop(slot)) if bound else ()
        top = tuple(self._top.pop(slot, (0, []))[1])
        all_spans = [*spans, (version, count)]
        first = all_spans[0][0]
        return Sampled(tokens, logp, raw, reason, first, allowed, top, merge_spans(all_spans))

    def _to_tensor(self, values: Sequence[float], dtype: torch.dtype = torch.long) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)
