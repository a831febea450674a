"""Places for conversations: which slot a request gets, what a slot holds, and which one is evicted.

A conversation keeps its slot, and with it its cache, while it is idle; when slots run out, the one
that was idle longest is cleared. In invariant mode none is evicted, because what was cached would
then depend on the neighbours. `native.py` computes; `sharing.py` has the rows that slots read.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tutelage.engine.protocol import Request
from tutelage.engine.sharing import CacheRows
from tutelage.errors import ContextOverflowError


@dataclass(slots=True)
class _Slot:
    """A place for one conversation: what of it is cached, and the request that runs, if any."""

    ids: tuple[int, ...] = ()
    """Tokens whose keys and values are cached; while a request runs, those of its prompt."""
    session: str | None = None
    handle: int | None = None
    request: Request | None = None
    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Versions before the present one that sampled tokens of its running request, each with the
    number of the token before which it ended."""
    used: int = 0
    """When it was last used, for eviction."""

    @property
    def prompt(self) -> tuple[int, ...]:
        """The prompt of its request."""
        return () if self.request is None else self.request.prompt_ids

    @property
    def shared(self) -> int:
        """Leading tokens of it that other conversations share."""
        return 0 if self.request is None else self.request.shared


class Slots:
    """Slots 0..count-1 over as many rows."""

    def __init__(self, count: int, rows: CacheRows, *, invariant: bool) -> None:
        self.all = [_Slot() for _ in range(count)]
        self._free = list(range(count))
        self._rows, self._invariant = rows, invariant
        self._by_session: dict[str, int] = {}

    def __getitem__(self, slot: int) -> _Slot:
        return self.all[slot]

    def running(self) -> list[int]:
        """Slots in which a request runs."""
        return [slot for slot, state in enumerate(self.all) if state.handle is not None]

    def idle(self) -> bool:
        """Whether no request runs."""
        return all(state.handle is None for state in self.all)

    def end(self, session: str) -> int | None:
        """Keep a conversation no longer; its slot, where no request runs in it."""
        slot = self._by_session.pop(session, None)
        if slot is None:
            return None
        self.all[slot].session = None
        return slot if self.all[slot].handle is None else None

    def place(self, request: Request) -> int | None:
        """The slot for a request: its conversation's, else a free one, else an idle one.

        None while there is none, and while the conversation's previous turn still runs.
        """
        session = self._kept(request)
        if session is not None and session in self._by_session:
            slot = self._by_session[session]
            if self.all[slot].handle is not None:
                return None
            kept = self.all[slot].ids
            if len(kept) < len(request.prompt_ids) and kept == request.prompt_ids[: len(kept)]:
                return slot
            self.clear(slot)
        if self._free:
            return heapq.heappop(self._free)
        idle = [(s.used, slot) for slot, s in enumerate(self.all) if s.handle is None]
        if self._invariant or not idle:
            return None  # evicting would make samples depend on the neighbours
        self.clear(min(idle)[1])
        return heapq.heappop(self._free)

    def start(self, slot: int, handle: int, request: Request, *, now: int) -> None:
        """Bind a request to a slot."""
        state = self.all[slot]
        state.handle, state.request, state.used = handle, request, now
        state.session, state.spans = self._kept(request), []
        if state.session is not None:
            self._by_session[state.session] = slot

    def clear(self, slot: int) -> None:
        """Forget what a slot holds."""
        state = self.all[slot]
        if not state.ids and state.request is None:
            return
        heapq.heappush(self._free, slot)
        if state.session is not None:
            self._by_session.pop(state.session, None)
        state.ids, state.session, state.handle, state.request = (), None, None, None
        self._rows.close(slot)

    def kept_by(self, requests: Iterable[Request]) -> bool:
        """Whether every slot is kept by a conversation of an attempt that has one of these requests
        too. An attempt's name is how its conversations' begin."""
        waiting = {_attempt_of(request) for request in requests}
        return all(s.request is not None and _attempt_of(s.request) in waiting for s in self.all)

    def _kept(self, request: Request) -> str | None:
        """The session whose cache is kept after a request. In invariant mode nothing is evicted, so
        what a rollout asks beside its main line may not keep a slot."""
        return None if self._invariant and request.lane else request.session


def unkept(request: Request, session: str) -> Request:
    """A request that keeps no slot, where it is one of that conversation."""
    return replace(request, session=None) if request.session == session else request


def check_room(request: Request, max_length: int) -> None:
    """Raise `ContextOverflowError` for a prompt after which nothing can be sampled."""
    if len(request.prompt_ids) >= max_length:
        raise ContextOverflowError(
            f"the prompt has {len(request.prompt_ids)} tokens; the context length is {max_length}"
            "; shorten the input or, where the model's own context is longer, raise "
            "`rollout.max_len` (`--max-length` of tutelage serve)"
        )
    if not request.prompt_ids:
        raise ContextOverflowError("the prompt is empty: there is no text to continue")


def _attempt_of(request: Request) -> str:
    return (request.session or "").partition("/")[0]
