"""Assign conversations to engine slots, and evict idle conversations when slots run out.

A conversation keeps its slot, and with it its cache, while it is idle; when slots run out, the one
that was idle longest is cleared. In invariant mode none is evicted, because the cached tokens would
then depend on the neighbours. `native.py` computes; `sharing.py` has the rows that slots read.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from tutelage.engine.protocol import Request
from tutelage.engine.sharing import CacheRows


@dataclass(slots=True)
class _Slot:
    """Cached tokens of a conversation, and its running request if any."""

    ids: tuple[int, ...] = ()
    """Tokens whose keys and values are cached; while a request runs, those of its prompt."""
    session: str | None = None
    handle: int | None = None
    request: Request | None = None
    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Earlier versions that sampled tokens of the running request, each with the number of the
    token before which it ended."""
    used: int = 0
    """Step of its last use, for eviction."""


class Slots:
    """Assign conversations to engine slots 0..count-1, each of which reads a KV cache row."""

    def __init__(self, count: int, rows: CacheRows, *, invariant: bool) -> None:
        self.all = [_Slot() for _ in range(count)]
        self._free = list(range(count))
        self._rows, self._invariant = rows, invariant
        self._by_session: dict[str, int] = {}

    def __getitem__(self, slot: int) -> _Slot:
        return self.all[slot]

    def running_slots(self) -> list[int]:
        """Return the numbers of the slots with a running request."""
        return [slot for slot, state in enumerate(self.all) if state.handle is not None]

    def is_idle(self) -> bool:
        """Return True if no request is running."""
        return all(state.handle is None for state in self.all)

    def remove(self, session: str) -> int | None:
        """Remove a conversation and return its slot, or None if it has no slot or a running
        request."""
        slot = self._by_session.pop(session, None)
        if slot is None:
            return None
        self.all[slot].session = None
        return slot if self.all[slot].handle is None else None

    def assign(self, request: Request, handle: int, step: int) -> int | None:
        """Return the slot for a request: its conversation's slot, a free slot or an idle slot.

        Returns None while no slot is available, or while the previous turn of the conversation
        runs.
        """
        # In invariant mode nothing is evicted, so requests outside of the main lane of a rollout
        # may not keep a slot.
        session = None if self._invariant and request.lane else request.session
        slot = None if session is None else self._by_session.get(session)
        if slot is not None:
            if self.all[slot].handle is not None:
                return None
            ids = self.all[slot].ids
            if not (len(ids) < len(request.prompt_ids) and ids == request.prompt_ids[: len(ids)]):
                self.clear(slot)
                slot = None
        if slot is None and not self._free:
            idle = [(s.used, slot) for slot, s in enumerate(self.all) if s.handle is None]
            if self._invariant or not idle:
                return None  # evicting would make samples depend on the neighbours
            self.clear(min(idle)[1])
        slot = heapq.heappop(self._free) if slot is None else slot
        state = self.all[slot]
        state.handle, state.request, state.used = handle, request, step
        state.session, state.spans = session, []
        if session is not None:
            self._by_session[session] = slot
        return slot

    def clear(self, slot: int) -> None:
        """Drop a slot's request and cache."""
        state = self.all[slot]
        if not state.ids and state.request is None:
            return
        heapq.heappush(self._free, slot)
        if state.session is not None:
            self._by_session.pop(state.session, None)
        state.ids, state.session, state.handle, state.request = (), None, None, None
        self._rows.close(slot)
