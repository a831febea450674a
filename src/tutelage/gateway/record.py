"""What the gateway tells others about a call, without ever waiting for them.

The record of tokens is the client's (`ChatSession.calls`). A `CallSpan` is the same call as seen
from the wire: times, response id, finish reasons, errors; tracing makes a `chat` span of it. Spans
go through one bounded queue and one thread; what does not fit is counted and dropped, and a
listener that fails is counted too. `session.py` flushes the queue before an attempt is closed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from tutelage.gateway.request import ChatRequest
from tutelage.types import JSON, Call

log = logging.getLogger(__name__)
QUEUED_SPANS = 10_000


@dataclass(frozen=True, slots=True)
class CallSpan:
    """One request that was answered, or failed. Times are nanoseconds since 1970."""

    agent: str
    model: str
    response_id: str
    api: str
    """The dialect's name, such as `chat.completions`."""
    calls: tuple[Call, ...]
    """One for each choice; empty when it failed."""
    began_ns: int
    ended_ns: int = 0
    finish_reasons: tuple[str, ...] = ()
    counts: tuple[tuple[int | None, int | None], ...] = ()
    """Prompt and completion tokens of each call."""
    error: str | None = None
    sent: JSON | None = None
    """What another server was sent as it came, None where the request was read here."""
    answered: JSON | None = None
    """What that server said beside its choices."""
    unused: JSON = field(default_factory=lambda: {})
    """What the request said that changes nothing here, such as its `metadata` and `user`."""
    request: ChatRequest | None = None
    """What was asked."""
    partial: tuple[JSON, ...] = ()
    """What had come of each choice before that, as messages of chat completions."""
    left: bool = False
    """Whether it ended since nobody waited for it any more."""


OnSpan = Callable[[CallSpan], None]


class Recorder:
    """Hands spans to their listeners in a thread of its own."""

    def __init__(self, size: int = QUEUED_SPANS) -> None:
        self.dropped = 0
        """Spans for which the queue had no room."""
        self.failed = 0
        """Spans of which their listener failed."""
        self._room = threading.Semaphore(size)
        self._pool = ThreadPoolExecutor(1, "tutelage-spans")

    def put(self, listener: OnSpan, span: CallSpan) -> None:
        """Queue a span; never waits."""
        if self._room.acquire(blocking=False):
            self._pool.submit(self._tell, listener, span)
            return
        self.dropped += 1
        if self.dropped == 1:
            log.warning(
                "calls arrive faster than they can be recorded: some are dropped from the record; "
                "further drops are only counted"
            )

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until what was queued so far has been delivered; False when that took too long."""
        return bool(wait([self._pool.submit(int)], timeout).done)

    def close(self) -> None:
        """Hand on what is queued and end the thread."""
        pool, self._pool = self._pool, ThreadPoolExecutor(1, "tutelage-spans")
        pool.shutdown()

    def _tell(self, listener: OnSpan, span: CallSpan) -> None:
        self._room.release()
        try:
            listener(span)
        except Exception as error:
            self.failed += 1
            if self.failed == 1:
                full = isinstance(error, OSError)  # a full disk is no bug
                log.warning(
                    "failed to record a call: %s; further failures are only counted",
                    (full and error.strerror) or f"{type(error).__name__}: {error}",
                    exc_info=not full,
                )
