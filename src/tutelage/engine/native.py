"""The native engine: continuous batching over slots that share KV cache rows.

A slot is refilled as soon as its request ends. A conversation keeps its slot across tool turns, so
a new turn prefills only its observation, and all new turns of a step are appended in one batch. New
weights may arrive between two steps: running requests continue under them, once all their tokens
are computed again. Each slot reads one row of the cache. Requests that begin with the same tokens
at the same time, such as those of a group, read the same row through prompt, answer and later turns
for as long as they draw the same tokens, so common tokens are computed once. A slot that draws
another token gets a copy (`sharing.py`). `step()` is synchronous and deterministic: equal
submissions in equal order give equal results, bit for bit. `slots.py` assigns slots; `streams.py`
draws; `driver.py` makes it awaitable.

A prompt of more than `WHOLE_PROMPT` tokens is prefilled in chunks, `chunks` of them per step in
order of arrival, while other requests continue.

`invariant=True` makes a request's samples independent of its neighbours bit for bit: rows are
computed in chunks whose shape depends on the request alone. It costs some speed; evaluation and
prompt search use it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tutelage.engine.backends import Backend
from tutelage.engine.protocol import Request
from tutelage.engine.sharing import CacheRows
from tutelage.engine.slots import Slots
from tutelage.engine.streams import Streams
from tutelage.errors import EngineError, OutOfMemoryError
from tutelage.policy.decoder import WHOLE_PROMPT
from tutelage.policy.kernels import round_up
from tutelage.policy.machine import free_memory
from tutelage.policy.model import Policy
from tutelage.types import Sampled, StopReason

_REACH, _INVARIANT_REACH = 32, 64
"""The number of cache columns to read is a multiple of this; a coarser one makes fewer shapes."""
_PAIR_BYTES = 16
"""Bytes that a prompt chunk needs per pair of a new token and a column that it reads."""


@dataclass(slots=True)
class PrefillJob:
    """Prefill of prompt tokens for the slots that share a cache row.

    The first `cached` tokens of the prompt are already in the row; the first `shared` are a prefix
    that other prompts have too.
    """

    slots: list[int]
    cached: int
    prompt: tuple[int, ...]
    shared: int

    @property
    def size(self) -> int:
        """Return the number of tokens to prefill."""
        return len(self.prompt) - self.cached


class NativeEngine:
    """Sample from a policy by continuous batching, one synchronous `step` at a time."""

    def __init__(
        self,
        backend: Callable[[int, int], Backend],
        *,
        slots: int,
        max_length: int,
        eos_ids: Sequence[int],
        decode: Callable[[Sequence[int]], str],
        invariant: bool = False,
        version: int = 0,
        token_bytes: int = 0,
    ) -> None:
        """Create the engine with a KV cache from `backend(rows, width)`: a row per slot and a
        scratch row.

        `decode` turns ids into text, to find stop strings. The keys and values of one token take
        `token_bytes`.
        """
        self.slots, self.max_length, self.invariant = slots, max_length, invariant
        self.chunks, self._token_bytes = 1, token_bytes
        self.version, self._clock, self._outdated = version, 0, False
        self.decoded_tokens = self.prefilled_tokens = self.computed_tokens = 0
        """`computed_tokens` counts positions of decode steps: fewer if rows are shared."""
        self._backend = backend(slots + 1, max_length)
        self._decode = decode
        self._device = device = self._backend.device
        self._eos = torch.tensor(sorted(eos_ids), device=device)
        self._rows = CacheRows(slots)
        self._slots = Slots(slots, self._rows, invariant=invariant)
        self._pending: dict[int, Request] = {}
        """Waiting requests, by handle."""
        self._handles = itertools.count()
        self._jobs: list[PrefillJob] = []
        """Incomplete prompts that are prefilled in chunks."""
        self._peak_tokens = 0
        """Largest number of tokens in the rows so far: their memory is allocated."""
        self.prefilling: list[int] = []
        """Slots with incomplete prompts, in the order of admission."""
        self._streams = Streams(slots, max_length, device, self._backend.shards)
        self.new_tokens: list[tuple[int, int]] = []
        """Handles and tokens drawn for requests with an `on_token`; the driver collects them."""
        self.failures: list[tuple[int, EngineError]] = []
        """Requests that failed on their own, with their errors; the driver collects them."""
        # By row, the last one scratch: the next token to compute, and its position.
        self._token, self._position = torch.zeros(2, slots + 1, dtype=torch.long, device=device)

    # ------------------------------------------------------------ interface

    @property
    def is_busy(self) -> bool:
        """Return True if `step` has work to do."""
        return bool(self._pending) or not self._slots.is_idle()

    @property
    def is_stuck(self) -> bool:
        """Return True if requests are queued but none is running, because idle conversations hold
        all slots."""
        return bool(self._pending) and self._slots.is_idle()

    @property
    def is_deadlocked(self) -> bool:
        """Return True if the engine is stuck permanently: all attempts whose idle conversations
        hold slots are waiting for another slot."""
        # The name of a conversation begins with that of its attempt.
        waiting = {(r.session or "").partition("/")[0] for r in self._pending.values()}
        kept = [s.request.session for s in self._slots.all if s.request is not None]
        full = len(kept) == self.slots and all((n or "").partition("/")[0] in waiting for n in kept)
        return self.is_stuck and full

    def submit(self, request: Request) -> int:
        """Queue a request and return its handle.

        Requests of equal `order` are ranked by lane, then by arrival. Raises `ContextOverflowError`
        if the request does not fit into the context, and `OutOfMemoryError` if it does not fit into
        the free memory.
        """
        request.max_new_tokens(self.max_length)
        if (size := len(request.prompt_ids)) > WHOLE_PROMPT:
            waiting = [len(other.prompt_ids) for other in self._pending.values()]
            # The others wait for a slot.
            largest = sorted([*self._row_lengths(request.session), *waiting, size])[-self.slots :]
            added = max(0, sum(largest) - self._peak_tokens)
            masks = _PAIR_BYTES * self._backend.prefill_chunk * size
            needed, free = self._token_bytes * added + masks, free_memory(self._device)
            if needed > free:
                raise OutOfMemoryError(
                    f"the prompt has {size} tokens and needs about {needed / 1e9:.2f} GB for its "
                    f"KV cache and workspace, but {free / 1e9:.2f} GB are free; "
                    "shorten the input, free memory, or send fewer long prompts at a time"
                )
        handle = next(self._handles)
        self._pending[handle] = request
        return handle

    def cancel(self, handle: int) -> None:
        """Cancel a request without reporting a result. Unknown handles are ignored."""
        self._pending.pop(handle, None)
        for slot in self._slots.running_slots():
            if self._slots[slot].handle == handle:
                self._clear(slot)

    def release(self, session: str) -> None:
        """Free a conversation's slot, at once or when its running request ends."""
        if (slot := self._slots.remove(session)) is not None:
            self._clear(slot)
        for handle, request in self._pending.items():
            if request.session == session:
                self._pending[handle] = replace(request, session=None)

    def update_weights(self, source: Policy, version: int) -> None:
        """Load the policy's current weights as `version`, and drop the stale caches of idle
        conversations."""
        self._backend.load(source)
        for slot, state in enumerate(self._slots.all):
            if state.handle is None:
                self._clear(slot)
            elif drawn := len(self._streams.tokens(slot)):
                state.spans.append((self.version, drawn))
        self.version, self._outdated = version, not self._slots.is_idle()

    def free(self) -> None:
        """Free memory until the next `update_weights`, unless a request is running."""
        if not self.is_busy:
            self._backend.free()
            self.version = -1

    def step(self) -> list[tuple[int, Sampled]]:
        """Admit and prefill the requests that fit, decode one token per running slot, and return
        the finished requests."""
        self._clock += 1
        ended = self._prefill(self._refill_jobs()) if self._outdated else []
        ended += self._prefill(self._admit() if self._pending else [])
        running = [slot for slot in self._slots.running_slots() if slot not in self.prefilling]
        return ended + self._decode_step(running) if running else ended

    @property
    def is_streaming(self) -> bool:
        """Return True if a running request streams its tokens to an `on_token` callback."""
        running = (state.request for state in self._slots.all if state.handle is not None)
        return any(request is not None and request.on_token is not None for request in running)

    # ------------------------------------------------------------ admission

    def _admit(self) -> list[PrefillJob]:
        """Assign queued requests to slots, start their token streams, and return the prefill jobs.

        Slots that need exactly the same tokens computed share one job.
        """
        queue = sorted(
            self._pending.items(), key=lambda item: (item[1].order, item[1].lane, item[0])
        )
        admitted: dict[int, Request] = {}
        for handle, request in queue:
            slot = self._slots.assign(request, handle, self._clock)
            if slot is not None:
                admitted[slot] = self._pending.pop(handle)
        if not admitted:
            return []
        self._streams.begin([*admitted], [*admitted.values()])
        jobs: dict[tuple[int, int, tuple[int, ...]], PrefillJob] = {}
        for slot, request in admitted.items():
            cached, prompt = len(self._slots[slot].ids), request.prompt_ids
            new = PrefillJob([], cached, prompt, request.shared)
            jobs.setdefault((self._rows.row[slot], cached, prompt), new).slots.append(slot)
            self._slots[slot].ids = prompt
        copies: list[tuple[int, int]] = []
        for (row, cached, _), job in jobs.items():
            if row < 0:
                self._rows.open(job.slots)
                continue
            # They may append in place if every other reader is idle and has no more tokens.
            others = [self._slots[s] for s in self._rows.readers[row] if s not in job.slots]
            if any(other.handle is not None or len(other.ids) > cached for other in others):
                copies.append((row, self._rows.open(job.slots)))
        self._copy(copies)
        self.prefilling += admitted
        return [*jobs.values()]

    def _prefill(self, jobs: list[PrefillJob]) -> list[tuple[int, Sampled]]:
        """Run prefill jobs, and draw a token for each slot whose prompt is now complete.

        At most `chunks` chunks of long prompts are computed. Slots that were refilled have a token
        already.
        """
        chunks, ready, jobs, self._jobs = self.chunks, list[PrefillJob](), self._jobs + jobs, []
        for job in jobs:
            while (incomplete := self._prefill_chunk(job, chunks > 0)) and chunks:
                chunks -= 1
            (self._jobs if incomplete else ready).append(job)
        if not ready:
            return []
        # One by one in invariant mode: other prefills must not matter.
        limit = 0 if self.invariant else self._backend.prefill_tokens
        batches: list[list[PrefillJob]] = []
        for job in sorted(ready, key=lambda job: (job.size, job.slots)):
            width = round_up(job.size, 8)
            fits = batches and (len(batches[-1]) + 1) * width <= limit
            # Padding a short observation to a long prompt would waste more than a call costs.
            if fits and width <= 2 * round_up(batches[-1][0].size, 8):
                batches[-1].append(job)
            else:
                batches.append([job])
        logits = torch.cat([self._prefill_batch(batch)[: len(batch)] for batch in batches])
        lines = enumerate(job for batch in batches for job in batch)
        line_of = {slot: line for line, job in lines for slot in job.slots}
        new = {s: line_of[s] for s in self.prefilling if s in line_of and not self._slots[s].spans}
        self.prefilling = [slot for slot in self.prefilling if slot not in line_of]
        self._peak_tokens = max(self._peak_tokens, 0 if self._jobs else sum(self._row_lengths()))
        return self._sample(logits, self._tensor([*new.values()]), [*new]) if new else []

    def _prefill_chunk(self, job: PrefillJob, compute: bool) -> bool:
        """Compute the next chunk of a prefill job if `compute` is True, unless it is the last one.

        Returns True if more than one chunk was left. The chunk may be a part of the prefix that the
        job shares with others.
        """
        if not job.cached:
            row = self._rows.row[job.slots[0]]
            cached = self._backend.attach_prefix(row, job.prompt[: job.shared], compute)
            if cached is None:
                return True
            job.cached = cached
        end = job.cached + self._backend.prefill_chunk
        incomplete = WHOLE_PROMPT < len(job.prompt) > end
        if incomplete and compute:
            self._prefill_batch([replace(job, prompt=job.prompt[:end])], 1)
            job.cached = end
        return incomplete

    def _refill_jobs(self) -> list[PrefillJob]:
        """Return the prefill jobs that recompute the KV cache of running requests with the current
        weights."""
        by_row: dict[int, PrefillJob] = {}
        for slot in self._slots.running_slots():
            request, drawn = self._slots[slot].request, self._streams.tokens(slot)[:-1]
            assert request is not None
            job = PrefillJob([], 0, (*request.prompt_ids, *drawn), request.shared)
            by_row.setdefault(self._rows.row[slot], job).slots.append(slot)
        self._outdated, self._jobs, self.prefilling = False, [], self._slots.running_slots()
        return [*by_row.values()]

    def _prefill_batch(self, batch: list[PrefillJob], multiple: int = 4) -> Tensor:
        """Prefill a batch of jobs; return one row of logits per job, followed by padding rows."""
        width = round_up(max(job.size for job in batch), _REACH if self.invariant else 8)
        # Pad batches with the scratch row so that few kernel shapes occur, unless it costs time.
        longest = max(len(job.prompt) for job in batch)
        alone = self.invariant or self._backend.exact_shapes or longest > WHOLE_PROMPT
        extra = 0 if alone else round_up(len(batch), multiple) - len(batch)
        new = [[*job.prompt[job.cached :], *[0] * (width - job.size)] for job in batch]
        rows = self._tensor([self._rows.row[job.slots[0]] for job in batch] + [self.slots] * extra)
        self._position[rows] = self._tensor([len(job.prompt) for job in batch] + [0] * extra)
        self.prefilled_tokens += sum(job.size for job in batch)
        return self._backend.extend(
            self._tensor(new + [[0] * width] * extra),
            self._tensor([job.cached for job in batch] + [0] * extra),
            self._tensor([job.size for job in batch] + [1] * extra),
            rows,
            self._round_up(longest),
        )

    # ------------------------------------------------------------ decoding

    def _decode_step(self, running: list[int]) -> list[tuple[int, Sampled]]:
        """Run a decoding step for the cache rows of the running slots, and draw each slot's next
        token."""
        row_of, chunk = self._rows.row, self._backend.chunk
        used = list(dict.fromkeys(row_of[slot] for slot in running))
        self.computed_tokens += len(used)
        if self.invariant:
            # Use calls whose shape depends on a row's length alone.
            by_width: dict[int, list[int]] = {}
            for row, position in zip(used, self._position[used].tolist(), strict=True):
                by_width.setdefault(self._round_up(position + 1), []).append(row)
            parts: list[Tensor] = []
            lines: dict[int, int] = {}
            for width, rows in by_width.items():
                for at in range(0, len(rows), chunk):
                    batch = rows[at : at + chunk]
                    lines |= {row: chunk * len(parts) + i for i, row in enumerate(batch)}
                    padded = self._tensor(batch + [self.slots] * (chunk - len(batch)))
                    parts.append(self._compute_positions(padded, width))
            logits, line = torch.cat(parts), self._tensor([lines[row_of[slot]] for slot in running])
        else:
            # Move rows in use to the front, where reading them needs no gather. Unused rows among
            # them are computed and ignored: their next column is not in use.
            exact = self._backend.exact_shapes
            count = len(used) if exact else min(self.slots, round_up(len(used), 8))
            pairs = self._rows.gather(used, count)
            kept = [(hole, mover) for hole, mover in pairs if self._rows.readers[mover]]
            self._copy([(mover, hole) for hole, mover in pairs] + kept)
            line = self._tensor([row_of[slot] for slot in running])
            logits = self._compute_positions(count, int(self._position[line].max()) + 1)
        used_rows = self._tensor(list(dict.fromkeys(row_of[slot] for slot in running)))
        self._position[used_rows] += 1
        return self._sample(logits, line, running)

    def _compute_positions(self, rows: Tensor | int, length: int) -> Tensor:
        """Compute the next position of the given cache rows, or of the first `rows`; return logits
        [rows, V]."""
        at = slice(rows) if isinstance(rows, int) else rows
        token, position = self._token[at], self._position[at]
        ones = torch.ones_like(token)
        return self._backend.extend(token[:, None], position, ones, rows, self._round_up(length))

    def _sample(self, logits: Tensor, line: Tensor, slots: list[int]) -> list[tuple[int, Sampled]]:
        """Draw and record the next token of each slot from its row of the logits.

        Requests that end with it are finished, and slots of one row that drew different tokens get
        rows of their own.
        """
        token, full = self._streams.draw(slots, logits, line)
        self.decoded_tokens += len(slots)
        stopped = (token[:, None] == self._eos).any(1).tolist()
        results: list[tuple[int, Sampled]] = []
        alive: dict[int, int] = {}
        for i, (slot, drawn) in enumerate(zip(slots, token.tolist(), strict=True)):
            state = self._slots[slot]
            handle, request = state.handle, state.request
            assert handle is not None, "a slot without a request cannot draw"
            assert request is not None
            if request.on_token is not None:
                self.new_tokens.append((handle, drawn))
            if slot in self._streams.failed:  # its grammar failed
                self.failures.append((handle, self._streams.failed.pop(slot)))
                self._clear(slot)
                continue
            stops, reason = request.sampling.stop, StopReason.STOP
            text = self._decode(self._streams.tokens(slot)) if stops else ""
            if not (stopped[i] or any(stop in text for stop in stops)):
                if not full[i]:
                    alive[slot] = i
                    continue
                reason = StopReason.LENGTH
            result = self._streams.finish(slot, reason, self.version, state.spans)
            results.append((handle, result))
            # The last token was drawn but never computed, so it is not in the cache.
            state.ids = request.prompt_ids + result.token_ids[:-1]
            state.handle, state.used = None, self._clock
            if state.session is None:
                self._clear(slot)
        if alive:
            # Slots of one row that drew different tokens read different rows from here on.
            token = token[self._tensor(list(alive.values()))] if len(alive) < len(slots) else token
            self._copy(self._rows.separate(list(alive), token.tolist()))
            self._token[self._tensor([self._rows.row[slot] for slot in alive])] = token
        return results

    # ------------------------------------------------------------ helpers

    def _copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copy KV cache rows, given as (source, target) pairs. All sources are read before any
        target is written."""
        if not pairs:
            return
        source, target = self._tensor([s for s, _ in pairs]), self._tensor([t for _, t in pairs])
        position = self._position[source]
        self._backend.copy(source, target, int(position.max()))
        self._position[target] = position
        self._token[target] = self._token[source]

    def _row_lengths(self, excluded: str | None = None) -> list[int]:
        """Return the length in tokens of each cache row in use, including complete prompts.

        The row of the session `excluded` is left out.
        """
        slots = zip(self._rows.row, self._slots.all, strict=True)
        kept = ((row, s) for row, s in slots if excluded is None or s.session != excluded)
        return [*{row: len(s.ids) for row, s in kept}.values()]

    def _tensor(self, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)

    def _round_up(self, length: int) -> int:
        """Return the number of cache columns to read for sequences of `length` tokens."""
        step = _INVARIANT_REACH if self.invariant else _REACH
        return min(self.max_length, round_up(length, step))

    def _clear(self, slot: int) -> None:
        """Drop a slot's request and cache."""
        if slot in self.prefilling:
            self.prefilling.remove(slot)
            for job in self._jobs:
                job.slots = [other for other in job.slots if other != slot]
            self._jobs = [job for job in self._jobs if job.slots]
        self._slots.clear(slot)
