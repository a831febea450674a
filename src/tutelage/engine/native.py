"""The native engine: continuous batching over slots, and rows of cached keys and values they share.

A slot is refilled the moment its request ends. A conversation keeps its slot across tool turns, so
a new turn prefills only its observation, and all new turns of a step are appended in one batch. New
weights may come between two steps: what runs goes on under them, once all that it has was computed
again. Each slot reads one row of the cache. Requests that begin with the same tokens at the same
moment, as a group's do, read the same row and go on sharing it, through prompt, answer and later
turns, for as long as they draw the same tokens: what they have in common is computed once. Who
differs gets a copy (`sharing.py`). `step()` is synchronous and deterministic: equal submissions in
equal order give equal results, bit for bit. `slots.py` says who gets a slot; `streams.py` draws;
`driver.py` makes it awaitable.

A prompt of more than `WHOLE_PROMPT` tokens is prefilled in chunks: `chunks` of them a step, those
of the prompt that came first, while other requests go on.

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
from tutelage.engine.streams import News, Streams
from tutelage.errors import EngineError, OutOfMemoryError
from tutelage.policy.decoder import WHOLE_PROMPT
from tutelage.policy.kernels import round_up
from tutelage.policy.machine import free_memory
from tutelage.policy.model import Policy
from tutelage.types import Sampled, StopReason

_REACH, _INVARIANT_REACH = 32, 64
"""Cache columns are read in multiples of this; a coarser one makes fewer shapes of chunks."""
_PAIR_BYTES = 16
"""What a chunk of a prompt takes for each pair of a new token and a column that it reads."""


@dataclass(slots=True)
class PrefillJob:
    """Prefill work: slots that have the same `cached` tokens in one row and get one prompt, whose
    first `shared` tokens are others' too."""

    slots: list[int]
    cached: int
    prompt: tuple[int, ...]
    shared: int

    @property
    def size(self) -> int:
        """New tokens."""
        return len(self.prompt) - self.cached


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
        version: int = 0,
        token_bytes: int = 0,
    ) -> None:
        """`backend(rows, width)` makes the cache; one row more than `slots` is scratch. A token's
        keys and values take `token_bytes`."""
        self.slots, self.max_length, self.invariant = slots, max_length, invariant
        self.chunks, self._token_bytes = 1, token_bytes
        self.version, self._clock, self._outdated = version, 0, False
        self.decoded_tokens = self.prefilled_tokens = self.computed_tokens = 0
        """Those computed by decode steps are positions: fewer than tokens where rows are shared."""
        self._backend = backend(slots + 1, max_length)
        self._decode = decode
        self._device = device = self._backend.device
        self._eos = torch.tensor(sorted(eos_ids), device=device)
        self._rows = CacheRows(slots)
        self._slots = Slots(slots, self._rows, invariant=invariant)
        self._pending: dict[int, Request] = {}
        """Requests that wait, by handle."""
        self._handles = itertools.count()
        self._jobs: list[PrefillJob] = []
        """Prompts that are prefilled in chunks and not complete."""
        self._most_held = 0
        """The most tokens that rows had at once: their memory is there."""
        self.prefilling: list[int] = []
        """Slots whose prompts are not complete, in the order in which they were admitted."""
        self._streams = Streams(slots, max_length, device, self._backend.shards)
        self.news: list[News] = []
        """What was drawn for requests that have an `on_token`; the driver takes it."""
        self.failures: list[tuple[int, EngineError]] = []
        """Requests that failed, each for reasons of its own; the driver takes them."""
        # By row, the last one scratch: the next token to compute, and its position.
        self._token, self._position = torch.zeros(2, slots + 1, dtype=torch.long, device=device)

    # ------------------------------------------------------------ interface

    @property
    def busy(self) -> bool:
        """Whether a `step` would do anything."""
        return bool(self._pending) or not self._slots.idle()

    @property
    def stuck(self) -> bool:
        """Whether requests wait while none runs: idle conversations keep every slot."""
        return bool(self._pending) and self._slots.idle()

    @property
    def deadlocked(self) -> bool:
        """Whether it is stuck for good: every attempt whose idle conversations keep the slots waits
        for another one itself."""
        # An attempt's name is how its conversations' begin.
        waiting = {(r.session or "").partition("/")[0] for r in self._pending.values()}
        kept = [s.request.session for s in self._slots.all if s.request is not None]
        held = len(kept) == self.slots and all((n or "").partition("/")[0] in waiting for n in kept)
        return self.stuck and held

    def submit(self, request: Request) -> int:
        """Queue a request and return its handle. Of requests of equal `order` those of a lower lane
        come first, then those that came first. Raises `ContextOverflowError` if it cannot fit into
        the context, `OutOfMemoryError` if not into the memory that is free."""
        request.room(self.max_length)
        if (size := len(request.prompt_ids)) > WHOLE_PROMPT:
            waiting = [len(other.prompt_ids) for other in self._pending.values()]
            # The rest of them wait until there is a slot.
            most = sorted([*self._held(request.session), *waiting, size])[-self.slots :]
            more = max(0, sum(most) - self._most_held)
            masks = _PAIR_BYTES * self._backend.prefill_chunk * size
            needed, free = self._token_bytes * more + masks, free_memory(self._device)
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
        """Stop a request; it never reports a result. Unknown handles are fine."""
        self._pending.pop(handle, None)
        for slot in self._slots.running():
            if self._slots[slot].handle == handle:
                self._clear(slot)

    def release(self, session: str) -> None:
        """Give back the slot of a conversation, at once or when what it asks has ended."""
        if (slot := self._slots.end(session)) is not None:
            self._clear(slot)
        for handle, request in self._pending.items():
            if request.session == session:
                self._pending[handle] = replace(request, session=None)

    def update_weights(self, source: Policy, version: int) -> None:
        """See `Engine`. Idle conversations lose their cache, which is stale."""
        self._backend.load(source)
        for slot, state in enumerate(self._slots.all):
            if state.handle is None:
                self._clear(slot)
            elif drawn := len(self._streams.tokens(slot)):
                state.spans.append((self.version, drawn))
        self.version, self._outdated = version, not self._slots.idle()

    def free(self) -> None:
        """See `Engine`. Nothing is freed while a request runs."""
        if not self.busy:
            self._backend.free()
            self.version = -1

    def step(self) -> list[tuple[int, Sampled]]:
        """Admit what fits, prefill it, decode one token a running slot; return what ended."""
        self._clock += 1
        ended = self._prefill(self._refill()) if self._outdated else []
        ended += self._prefill(self._admit() if self._pending else [])
        running = [slot for slot in self._slots.running() if slot not in self.prefilling]
        return ended + self._decode_step(running) if running else ended

    @property
    def streaming(self) -> bool:
        """Whether a running request wants its tokens as they come."""
        running = (state.request for state in self._slots.all if state.handle is not None)
        return any(request is not None and request.on_token is not None for request in running)

    # ------------------------------------------------------------ admission

    def _admit(self) -> list[PrefillJob]:
        """Bind the requests that get a slot, and begin their streams; the jobs that compute their
        new prompt tokens, one for slots that have all of it in common."""
        queue = sorted(
            self._pending.items(), key=lambda each: (each[1].order, each[1].lane, each[0])
        )
        admitted: dict[int, Request] = {}
        for handle, request in queue:
            slot = self._slots.place(request, handle, self._clock)
            if slot is not None:
                admitted[slot] = self._pending.pop(handle)
        if not admitted:
            return []
        self._streams.begin([*admitted], [*admitted.values()])
        alike: dict[tuple[int, int, tuple[int, ...]], PrefillJob] = {}
        for slot, request in admitted.items():
            cached, prompt = len(self._slots[slot].ids), request.prompt_ids
            new = PrefillJob([], cached, prompt, request.shared)
            alike.setdefault((self._rows.of[slot], cached, prompt), new).slots.append(slot)
            self._slots[slot].ids = prompt
        copies: list[tuple[int, int]] = []
        for (row, cached, _), job in alike.items():
            if row < 0:
                self._rows.open(job.slots)
                continue
            # They may append in place when every other reader is idle and has no more than they.
            others = [self._slots[s] for s in self._rows.readers[row] if s not in job.slots]
            if any(other.handle is not None or len(other.ids) > cached for other in others):
                copies.append((row, self._rows.open(job.slots)))
        self._copy(copies)
        self.prefilling += admitted
        return [*alike.values()]

    def _prefill(self, jobs: list[PrefillJob]) -> list[tuple[int, Sampled]]:
        """Compute the new tokens of jobs, of long prompts as many chunks as a step has, and draw a
        token for the slots whose prompt is complete and that have none."""
        left, ready, jobs, self._jobs = self.chunks, list[PrefillJob](), self._jobs + jobs, []
        for job in jobs:
            while (more := self._chunk(job, left > 0)) and left:
                left -= 1
            (self._jobs if more else ready).append(job)
        if not ready:
            return []
        # One by one in invariant mode: who else is prefilled must not matter.
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
        logits = torch.cat([self._append(batch)[: len(batch)] for batch in batches])
        lines = enumerate(job for batch in batches for job in batch)
        line_of = {slot: line for line, job in lines for slot in job.slots}
        new = {s: line_of[s] for s in self.prefilling if s in line_of and not self._slots[s].spans}
        self.prefilling = [slot for slot in self.prefilling if slot not in line_of]
        self._most_held = max(self._most_held, 0 if self._jobs else sum(self._held()))
        return self._accept(logits, self._tensor([*new.values()]), [*new]) if new else []

    def _chunk(self, job: PrefillJob, compute: bool) -> bool:
        """Whether more is left of a job than is computed at once; compute the next chunk of it, or
        of the prefix that it shares, where it may."""
        if not job.cached:
            row = self._rows.of[job.slots[0]]
            held = self._backend.begin(row, job.prompt[: job.shared], compute)
            if held is None:
                return True
            job.cached = held
        end = job.cached + self._backend.prefill_chunk
        more = WHOLE_PROMPT < len(job.prompt) > end
        if more and compute:
            self._append([replace(job, prompt=job.prompt[:end])], 1)
            job.cached = end
        return more

    def _refill(self) -> list[PrefillJob]:
        """The jobs that compute what running requests have so far under the weights of now, as a
        trainer does."""
        by_row: dict[int, PrefillJob] = {}
        for slot in self._slots.running():
            request, drawn = self._slots[slot].request, self._streams.tokens(slot)[:-1]
            assert request is not None
            job = PrefillJob([], 0, (*request.prompt_ids, *drawn), request.shared)
            by_row.setdefault(self._rows.of[slot], job).slots.append(slot)
        self._outdated, self._jobs, self.prefilling = False, [], self._slots.running()
        return [*by_row.values()]

    def _append(self, batch: list[PrefillJob], multiple: int = 4) -> Tensor:
        """Run the backend over the new tokens of `batch`; logits [len(batch) or more, V]."""
        width = round_up(max(job.size for job in batch), _REACH if self.invariant else 8)
        # Batches are padded with the scratch row so that few kernel shapes occur, unless it costs.
        longest = max(len(job.prompt) for job in batch)
        alone = self.invariant or self._backend.exact_shapes or longest > WHOLE_PROMPT
        extra = 0 if alone else round_up(len(batch), multiple) - len(batch)
        new = [[*job.prompt[job.cached :], *[0] * (width - job.size)] for job in batch]
        rows = self._tensor([self._rows.of[job.slots[0]] for job in batch] + [self.slots] * extra)
        self._position[rows] = self._tensor([len(job.prompt) for job in batch] + [0] * extra)
        self.prefilled_tokens += sum(job.size for job in batch)
        return self._backend.extend(
            self._tensor(new + [[0] * width] * extra),
            self._tensor([job.cached for job in batch] + [0] * extra),
            self._tensor([job.size for job in batch] + [1] * extra),
            rows,
            self._reach(longest),
        )

    # ------------------------------------------------------------ decoding

    def _decode_step(self, running: list[int]) -> list[tuple[int, Sampled]]:
        """Compute the next position of every row that a running slot reads, and draw from it."""
        of, chunk = self._rows.of, self._backend.chunk
        used = list(dict.fromkeys(of[slot] for slot in running))
        self.computed_tokens += len(used)
        if self.invariant:
            # In calls whose shape depends on a row's length alone.
            by_reach: dict[int, list[int]] = {}
            for row, position in zip(used, self._position[used].tolist(), strict=True):
                by_reach.setdefault(self._reach(position + 1), []).append(row)
            parts: list[Tensor] = []
            line_of: dict[int, int] = {}
            for reach, alike in by_reach.items():
                for at in range(0, len(alike), chunk):
                    some = alike[at : at + chunk]
                    line_of |= {row: chunk * len(parts) + i for i, row in enumerate(some)}
                    padded = self._tensor(some + [self.slots] * (chunk - len(some)))
                    parts.append(self._compute(padded, reach))
            logits, line = torch.cat(parts), self._tensor([line_of[of[slot]] for slot in running])
        else:
            # Rows in use are brought to the front, where reading them needs no gather. Others
            # among them are computed and ignored: their next column is not in use.
            exact = self._backend.exact_shapes
            count = len(used) if exact else min(self.slots, round_up(len(used), 8))
            pairs = self._rows.gather(used, count)
            kept = [(hole, mover) for hole, mover in pairs if self._rows.readers[mover]]
            self._copy([(mover, hole) for hole, mover in pairs] + kept)
            line = self._tensor([of[slot] for slot in running])
            logits = self._compute(count, int(self._position[line].max()) + 1)
        rows = self._tensor(list(dict.fromkeys(of[slot] for slot in running)))
        self._position[rows] += 1
        return self._accept(logits, line, running)

    def _compute(self, rows: Tensor | int, length: int) -> Tensor:
        """One position of some rows, or of the first `count`; logits [rows, V]."""
        at = slice(rows) if isinstance(rows, int) else rows
        token, position = self._token[at], self._position[at]
        ones = torch.ones_like(token)
        return self._backend.extend(token[:, None], position, ones, rows, self._reach(length))

    def _accept(self, logits: Tensor, line: Tensor, slots: list[int]) -> list[tuple[int, Sampled]]:
        """Draw a token for each of `slots` from its line of the logits, record it, finish the
        requests that it ends, and part the others where they differ."""
        token, full = self._streams.draw(slots, logits, line)
        self.decoded_tokens += len(slots)
        stopped = (token[:, None] == self._eos).any(1).tolist()
        results: list[tuple[int, Sampled]] = []
        going: dict[int, int] = {}
        for i, (slot, drawn) in enumerate(zip(slots, token.tolist(), strict=True)):
            state = self._slots[slot]
            handle, request = state.handle, state.request
            assert handle is not None, "a slot without a request cannot draw"
            assert request is not None
            if request.on_token is not None:
                self.news.append((handle, drawn, self._streams.latest(slot)))
            if slot in self._streams.failed:  # its grammar failed
                self.failures.append((handle, self._streams.failed.pop(slot)))
                self._clear(slot)
                continue
            stops, reason = request.sampling.stop, StopReason.STOP
            text = self._decode(self._streams.tokens(slot)) if stops else ""
            if not (stopped[i] or any(stop in text for stop in stops)):
                if not full[i]:
                    going[slot] = i
                    continue
                reason = StopReason.LENGTH
            result = self._streams.take(slot, reason, self.version, state.spans)
            results.append((handle, result))
            # The last token was drawn but never computed, so it is not in the cache.
            state.ids = request.prompt_ids + result.token_ids[:-1]
            state.handle, state.used = None, self._clock
            if state.session is None:
                self._clear(slot)
        if going:
            # Slots of one row that drew different tokens read different rows from here on.
            token = token[self._tensor(list(going.values()))] if len(going) < len(slots) else token
            self._copy(self._rows.part(list(going), token.tolist()))
            self._token[self._tensor([self._rows.of[slot] for slot in going])] = token
        return results

    # ------------------------------------------------------------ small things

    def _copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copy rows, all at once: (source, target)."""
        if not pairs:
            return
        source, target = self._tensor([s for s, _ in pairs]), self._tensor([t for _, t in pairs])
        position = self._position[source]
        self._backend.copy(source, target, int(position.max()))
        self._position[target] = position
        self._token[target] = self._token[source]

    def _held(self, but: str | None = None) -> list[int]:
        """Tokens of each row, or when its prompt is complete; without the row of a session."""
        slots = zip(self._rows.of, self._slots.all, strict=True)
        held = {row: len(s.ids) for row, s in slots if but is None or s.session != but}
        return [*held.values()]

    def _tensor(self, numbers: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self._device)

    def _reach(self, length: int) -> int:
        """How many cache columns to read for sequences of `length`."""
        step = _INVARIANT_REACH if self.invariant else _REACH
        return min(self.max_length, round_up(length, step))

    def _clear(self, slot: int) -> None:
        """Forget what a slot holds."""
        if slot in self.prefilling:
            self.prefilling.remove(slot)
            for job in self._jobs:
                job.slots = [other for other in job.slots if other != slot]
            self._jobs = [job for job in self._jobs if job.slots]
        self._slots.clear(slot)
