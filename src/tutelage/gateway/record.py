"""What the gateway tells others about a call, without ever waiting for them.

A call's record is its `Call`, which a client makes, or `forward.py` of what went on as it came. A
`RecordedRequest` is what was asked for with one request, whose choices these calls are: it goes to
its listener through one bounded queue and one thread; what does not fit is counted and dropped, and
a listener that fails is counted too. `session.py` flushes the queue before an attempt is closed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

from tutelage.types import JSON, Call

log = logging.getLogger(__name__)
QUEUED_CALLS = 10_000


class RecordedRequest:
    """A request that was answered, or failed. Times are nanoseconds since 1970."""

    id: str
    """The response's, as its client sees it."""
    agent: str
    model_name: str
    """As the client names it."""
    api: str
    """The dialect's name, such as `chat.completions`."""
    began_ns: int
    ended_ns: int = 0
    calls: tuple[Call, ...] = ()
    """One for each choice; empty until it has ended, and when it failed."""
    finish_reasons: tuple[str, ...] = ()
    error: str | None = None
    left: bool = False
    """Whether it ended since nobody waited for it any more."""
    said: tuple[JSON, ...] = ()
    """What had come of each choice before it failed, as messages of chat completions."""

    def asked(self, index: int) -> JSON:
        """Return what a choice was asked, and how it was sampled, as the record has it."""
        raise NotImplementedError


OnCall = Callable[[RecordedRequest], None]
"""Takes a `RecordedRequest` that has ended."""


class Recorder:
    """Hands requests to their listeners in a thread of its own."""

    def __init__(self, size: int = QUEUED_CALLS) -> None:
        self.dropped = 0
        """Requests for which the queue had no room."""
        self.failed = 0
        """Requests of which their listener failed."""
        self._room = threading.Semaphore(size)
        self._pool = ThreadPoolExecutor(1, "tutelage-calls")

    def put(self, listener: OnCall, request: RecordedRequest) -> None:
        """Queue a request; never waits."""
        if self._room.acquire(blocking=False):
            self._pool.submit(self._tell, listener, request)
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
        pool, self._pool = self._pool, ThreadPoolExecutor(1, "tutelage-calls")
        pool.shutdown()

    def _tell(self, listener: OnCall, request: RecordedRequest) -> None:
        self._room.release()
        try:
            listener(request)
        except Exception as error:
            self.failed += 1
            if self.failed == 1:
                full = isinstance(error, OSError)  # a full disk is no bug
                log.warning(
                    "failed to record a call: %s; further failures are only counted",
                    (full and error.strerror) or f"{type(error).__name__}: {error}",
                    exc_info=not full,
                )
