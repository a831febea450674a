"""The native engine: continuous batching over slots of cached keys and values.

A slot is refilled the moment its request ends. A conversation keeps its slot across tool turns, so
a new turn prefills only its observation; equal prompts (a group's) are prefilled once and copied;
all new turns of a step are appended in one batch. Running slots are kept at the front, so a decode
step never gathers and never computes more than it needs. `step()` is synchronous and deterministic:
equal submissions in equal order give equal results, bit for bit. `driver.py` makes it awaitable.

`invariant=True` makes a request's samples independent of its neighbours bit for bit: every decode
step runs all slots over the whole cache width, and prompts are prefilled one at a time in shapes
that depend on the request alone. It costs some speed; evaluation and prompt search use it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tutelage.engine.backends import Backend
from tutelage.engine.protocol import Request
from tutelage.engine.sampler import draw, uniforms
from tutelage.errors import ContextOverflowError
from tutelage.policy.kernels import rounded
from tutelage.types import Sampled, StopReason

_REACH = 32
"""Cache columns are read in multiples of this."""

_PREFILL_TOKENS = 8192
"""Padded tokens of one prefill batch, a bound on memory."""


@dataclass(slots=True)
class _Slot:
    """One row of the cache: what it holds, and the request that runs in it, if any."""

    ids: tuple[int, ...] = ()
    """Tokens whose keys and values are cached; while a request runs, those of its prompt."""
    session: str | None = None
    handle: int | None = None
    request: Request | None = None
    version: int = 0
    """Of the weights with which its running request began."""
    used: int = 0
    """When it was last used, for eviction."""

    @property
    def free(self) -> bool:
        return self.handle is None and self.session is None


class NativeEngine:
    """See the module's docstring. `decode` turns ids into text, for stop strings."""

    def __init__(
        self,
        backend: Callable[[int, int], Backend],
        *,
        slots: int,
        max_length: int,
        eos_ids: Sequence[int],
        decode: Callable[[Sequence[int]], str],
        invariant: bool = False,
    ) -> None:
        """`backend(slots, width)` makes the cache; one slot more than `slots` is scratch."""
        self.slots, self.max_length, self.invariant = slots, max_length, invariant
        self.version = 0
        self.decoded_tokens = 0
        self.prefilled_tokens = 0
        self._backend = backend(slots + 1, max_length)
        self._decode = decode
        device = self._backend.device
        self._eos = torch.tensor(sorted(eos_ids), device=device)
        self._rows = [_Slot() for _ in range(slots)]
        self._by_session: dict[str, int] = {}
        self._pending: list[tuple[int, Request]] = []
        self._handles = itertools.count()
        self._clock = 0

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        real = torch.float32
        self._all = torch.arange(slots, device=device)
        self._ones = torch.ones(slots, dtype=torch.long, device=device)
        self._token, self._position = zeros(slots), zeros(slots)
        self._count, self._limit = zeros(slots), zeros(slots)
        self._temperature = torch.ones(slots, dtype=real, device=device)
        self._top_p = torch.ones(slots, dtype=real, device=device)
        self._top_k = zeros(slots)
        self._uniform = zeros(slots, max_length, dtype=torch.float64)
        self._tokens = zeros(slots, max_length)
        self._logp = zeros(slots, max_length, dtype=real)
        self._raw = zeros(slots, max_length, dtype=real)

    # ------------------------------------------------------------ interface

    @property
    def busy(self) -> bool:
        """Whether a `step` would do anything."""
        return bool(self._pending) or any(s.handle is not None for s in self._rows)

    @property
    def stuck(self) -> bool:
        """Whether requests wait while none runs: idle conversations keep every slot."""
        return bool(self._pending) and all(s.handle is None for s in self._rows)

    def submit(self, request: Request) -> int:
        """Queue a request and return its handle. Raises `ContextOverflowError` if it cannot fit."""
        if len(request.prompt_ids) >= self.max_length:
            raise ContextOverflowError(
                f"the prompt has {len(request.prompt_ids)} tokens and the context {self.max_length}"
                "; shorten the input or raise `rollout.max_len`"
            )
        if not request.prompt_ids:
            raise ContextOverflowError("the prompt is empty: there is nothing to continue")
        handle = next(self._handles)
        self._pending.append((handle, request))
        return handle

    def cancel(self, handle: int) -> None:
        """Stop a request; it never reports a result. Unknown handles are fine."""
        self._pending = [(h, r) for h, r in self._pending if h != handle]
        for slot in self._rows:
            if slot.handle == handle:
                self._clear(slot)

    def release(self, session: str) -> None:
        """Give back the slot of a conversation."""
        row = self._by_session.get(session)
        if row is not None and self._rows[row].handle is None:
            self._clear(self._rows[row])

    def set_version(self, version: int) -> None:
        """Take over the policy's weights. Idle conversations lose their cache, which is stale."""
        self._backend.refresh()
        self.version = version
        for slot in self._rows:
            if slot.handle is None:
                self._clear(slot)

    def step(self) -> list[tuple[int, Sampled]]:
        """Admit what fits, prefill it, decode one token a running slot; return what ended."""
        self._clock += 1
        ended = self._admit()
        running = self._compact()
        if running:
            ended += self._decode_step(running)
        return ended

    # ------------------------------------------------------------ admission

    def _admit(self) -> list[tuple[int, Sampled]]:
        self._pending.sort(key=lambda hr: (hr[1].order, hr[0]))
        waiting: list[tuple[int, Request]] = []
        admitted: list[tuple[int, int]] = []
        for handle, request in self._pending:
            row = self._place(request)
            if row is None:
                waiting.append((handle, request))
                continue
            admitted.append((row, self._start(row, handle, request)))
        self._pending = waiting
        return self._prefill(admitted) if admitted else []

    def _place(self, request: Request) -> int | None:
        """The slot for a request: its conversation's, else a free one, else an idle one."""
        if request.session is not None and request.session in self._by_session:
            row = self._by_session[request.session]
            slot = self._rows[row]
            if slot.handle is not None:
                return None  # the conversation's previous turn still runs
            kept = slot.ids
            if (
                len(kept) < len(request.prompt_ids)
                and tuple(kept) == request.prompt_ids[: len(kept)]
            ):
                return row
            self._clear(slot)
        for row, slot in enumerate(self._rows):
            if slot.free:
                return row
        idle = [(s.used, row) for row, s in enumerate(self._rows) if s.handle is None]
        if self.invariant or not idle:
            return None  # evicting would make samples depend on the neighbours
        row = min(idle)[1]
        self._clear(self._rows[row])
        return row

    def _start(self, row: int, handle: int, request: Request) -> int:
        """Bind a request to a slot; return how many of its prompt tokens are cached already."""
        slot, sampling = self._rows[row], request.sampling
        cached = len(slot.ids)
        slot.handle, slot.request, slot.used = handle, request, self._clock
        slot.session, slot.version = request.session, self.version
        if request.session is not None:
            self._by_session[request.session] = row
        room = self.max_length - len(request.prompt_ids)
        limit = max(1, min(sampling.max_tokens, room))
        self._limit[row], self._count[row] = limit, 0
        self._temperature[row] = sampling.temperature
        self._top_p[row], self._top_k[row] = sampling.top_p, sampling.top_k
        numbers: np.ndarray = uniforms(request.seed, limit)
        self._uniform[row, :limit] = torch.from_numpy(numbers)
        return cached

    def _prefill(self, admitted: list[tuple[int, int]]) -> list[tuple[int, Sampled]]:
        """Append the new prompt tokens of the admitted slots and draw their first token."""
        leaders: dict[tuple[int, ...], int] = {}
        copies: list[tuple[int, int]] = []
        jobs: list[tuple[int, int]] = []
        for row, cached in admitted:
            prompt = self._prompt(row)
            if cached == 0 and prompt in leaders:
                copies.append((leaders[prompt], row))
            else:
                jobs.append((row, cached))
                if cached == 0:
                    leaders[prompt] = row
        logits: dict[int, Tensor] = {}
        for batch in self._prefill_batches(jobs):
            for (row, _), line in zip(batch, self._append(batch), strict=False):
                logits[row] = line
        if copies:
            source = torch.tensor([s for s, _ in copies], device=self._eos.device)
            target = torch.tensor([t for _, t in copies], device=self._eos.device)
            self._backend.copy(source, target, max(len(self._prompt(s)) for s, _ in copies))
            for s, t in copies:
                logits[t] = logits[s]
        for row, _ in admitted:
            self._rows[row].ids = self._prompt(row)
            self._position[row] = len(self._prompt(row))
        rows = torch.tensor([row for row, _ in admitted], device=self._eos.device)
        return self._accept(torch.stack([logits[row] for row, _ in admitted]), rows)

    def _prefill_batches(self, jobs: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        """Cut prefill work into batches of similar length; one by one in invariant mode."""
        if self.invariant:
            return [[job] for job in jobs]

        def size(job: tuple[int, int]) -> int:
            return len(self._prompt(job[0])) - job[1]

        batches: list[list[tuple[int, int]]] = []
        for job in sorted(jobs, key=lambda j: (size(j), j)):
            width = rounded(size(job), 8)
            fits = batches and (len(batches[-1]) + 1) * width <= _PREFILL_TOKENS
            # Padding a short observation to a long prompt would waste more than a call costs.
            if fits and width <= 2 * rounded(size(batches[-1][0]), 8):
                batches[-1].append(job)
            else:
                batches.append([job])
        return batches

    def _append(self, batch: list[tuple[int, int]]) -> Tensor:
        """Run the backend over the new tokens of `batch`; logits [len(batch) or more, V]."""
        news = [self._prompt(row)[cached:] for row, cached in batch]
        width = rounded(max(len(n) for n in news), _REACH if self.invariant else 8)
        # Batches are padded with the scratch slot so that few kernel shapes occur.
        count = 1 if self.invariant else rounded(len(batch), 4)
        ids = torch.zeros(count, width, dtype=torch.long)
        for b, new in enumerate(news):
            ids[b, : len(new)] = torch.tensor(new)
        extra = count - len(batch)
        starts = torch.tensor([cached for _, cached in batch] + [0] * extra)
        lengths = torch.tensor([len(n) for n in news] + [1] * extra)
        rows = torch.tensor([row for row, _ in batch] + [self.slots] * extra)
        longest = max(len(self._prompt(row)) for row, _ in batch)
        self.prefilled_tokens += sum(len(n) for n in news)
        device = self._eos.device
        return self._backend.extend(
            ids.to(device),
            starts.to(device),
            lengths.to(device),
            rows.to(device),
            self._reach(longest),
        )

    # ------------------------------------------------------------ decoding

    def _compact(self) -> int:
        """Move running slots to the front; return how many there are."""
        running = [row for row, s in enumerate(self._rows) if s.handle is not None]
        if self.invariant:
            return len(running)
        count = len(running)
        holes = [row for row in range(count) if self._rows[row].handle is None]
        movers = [row for row in running if row >= count]
        for hole, mover in zip(holes, movers, strict=True):
            self._swap(hole, mover)
        return count

    def _swap(self, a: int, b: int) -> None:
        """Exchange two slots; a free one is overwritten, an idle one goes through scratch."""
        first, second = self._rows[a], self._rows[b]
        device = self._eos.device
        at, bt = torch.tensor([a], device=device), torch.tensor([b], device=device)
        scratch = torch.tensor([self.slots], device=device)
        if first.ids:
            self._backend.copy(at, scratch, len(first.ids))
        self._backend.copy(bt, at, int(self._position[b]))
        if first.ids:
            self._backend.copy(scratch, bt, len(first.ids))
        pair = torch.tensor([a, b], device=device)
        for state in (
            self._token, self._position, self._count, self._limit, self._temperature, self._top_p,
            self._top_k, self._uniform, self._tokens, self._logp, self._raw,
        ):  # fmt: skip
            state[pair] = state[pair.flip(0)]
        self._rows[a], self._rows[b] = second, first
        for row in (a, b):
            session = self._rows[row].session
            if session is not None:
                self._by_session[session] = row

    def _decode_step(self, running: int) -> list[tuple[int, Sampled]]:
        if self.invariant:
            live = [row for row, s in enumerate(self._rows) if s.handle is not None]
            rows, count = torch.tensor(live, device=self._eos.device), self.slots
        else:
            rows, count = self._all[:running], min(self.slots, rounded(running, 8))
        # Slots beyond the running ones are computed and ignored: their next column is not in use.
        logits = self._backend.extend(
            self._token[:count, None],
            self._position[:count],
            self._ones[:count],
            count,
            self._reach(int(self._position[rows].max()) + 1),
        )
        self._position[rows] += 1
        return self._accept(logits[rows], rows)

    def _accept(self, logits: Tensor, rows: Tensor) -> list[tuple[int, Sampled]]:
        """Draw one token for `rows`, record it, and finish the requests that it ends."""
        temperature = self._temperature[rows]
        top_p, top_k = self._top_p[rows], self._top_k[rows]
        count = self._count[rows]
        truncated = bool(((top_p < 1) | (top_k > 0)).any())
        token, logp, raw = draw(
            logits,
            self._uniform[rows, count],
            None if bool((temperature == 1).all()) else temperature,
            top_p if truncated else None,
            top_k if truncated else None,
        )
        self._token[rows] = token
        self._tokens[rows, count] = token
        self._logp[rows, count] = logp
        self._raw[rows, count] = raw
        self._count[rows] = count + 1
        self.decoded_tokens += rows.shape[0]
        stopped = (token[:, None] == self._eos).any(1)
        ended = dict.fromkeys(rows[count + 1 >= self._limit[rows]].tolist(), StopReason.LENGTH)
        stops = set(rows[stopped].tolist()) | {
            r for r in self._stoppers(rows) if self._hits_stop(r)
        }
        ended |= dict.fromkeys(stops, StopReason.STOP)
        return [self._finish(row, ended[row]) for row in sorted(ended)]

    def _stoppers(self, rows: Tensor) -> list[int]:
        """Rows whose request has stop strings."""
        if not any(s.request is not None and s.request.sampling.stop for s in self._rows):
            return []
        found: list[int] = []
        for row in rows.tolist():
            request = self._rows[row].request
            if request is not None and request.sampling.stop:
                found.append(row)
        return found

    def _hits_stop(self, row: int) -> bool:
        request = self._rows[row].request
        text = self._decode(self._tokens[row, : int(self._count[row])].tolist())
        return request is not None and any(stop in text for stop in request.sampling.stop)

    def _finish(self, row: int, reason: StopReason) -> tuple[int, Sampled]:
        slot = self._rows[row]
        handle, count = slot.handle, int(self._count[row])
        if handle is None:
            raise AssertionError("a slot without a request cannot finish")
        result = Sampled(
            token_ids=tuple(self._tokens[row, :count].tolist()),
            logprobs=tuple(self._logp[row, :count].tolist()),
            raw_logprobs=tuple(self._raw[row, :count].tolist()),
            stop_reason=reason,
            policy_version=slot.version,
        )
        # The last token was drawn but never fed, so it is not in the cache.
        slot.ids = self._prompt(row) + result.token_ids[:-1]
        slot.handle, slot.used = None, self._clock
        if slot.session is None or slot.version != self.version:
            self._clear(slot)
        return handle, result

    # ------------------------------------------------------------ small things

    def _prompt(self, row: int) -> tuple[int, ...]:
        request = self._rows[row].request
        return () if request is None else request.prompt_ids

    def _reach(self, length: int) -> int:
        """How many cache columns to read for sequences of `length`."""
        if self.invariant:
            return self.max_length
        return min(self.max_length, rounded(length, _REACH))

    def _clear(self, slot: _Slot) -> None:
        if slot.session is not None:
            self._by_session.pop(slot.session, None)
        slot.ids, slot.session, slot.handle, slot.request = (), None, None, None
