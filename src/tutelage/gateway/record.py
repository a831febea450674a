"""Deliver recorded calls to listeners without blocking the gateway.

The record of a call is its `Call`, created by a client, or by `forward.py` for a forwarded call. A
`RecordedRequest` is one request with the calls of all its choices. It is delivered to its listener
through a bounded queue and one thread; requests that do not fit are dropped and counted, and so are
listener failures. `session.py` flushes the queue before an attempt is closed.
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
    """A completed or failed request with its calls. Times are in nanoseconds since 1970."""

    id: str
    """The id of the response that its client receives."""
    agent: str
    model_name: str
    """The name that the client uses."""
    api: str
    """The name of the dialect, such as `chat.completions`."""
    began_ns: int
    ended_ns: int = 0
    calls: tuple[Call, ...] = ()
    """One call per choice; empty until it has ended, and if it failed."""
    finish_reasons: tuple[str, ...] = ()
    error: str | None = None
    disconnected: bool = False
    """True if it was cancelled because no client waited any longer."""
    partial_replies: tuple[JSON, ...] = ()
    """The output of each choice before a failure, as messages of chat completions."""

    def describe_choice(self, index: int) -> JSON:
        """Return a choice's request fields and sampling parameters, for the record."""
        raise NotImplementedError


OnCall = Callable[[RecordedRequest], None]
"""Receives a finished `RecordedRequest`."""


class Recorder:
    """Background thread that delivers recorded requests to listeners."""

    def __init__(self, size: int = QUEUED_CALLS) -> None:
        self.dropped = 0
        """Number of requests dropped because the queue was full."""
        self.failed = 0
        """Number of requests whose listener raised."""
        self._room = threading.Semaphore(size)
        self._pool = ThreadPoolExecutor(1, "tutelage-calls")

    def put(self, listener: OnCall, request: RecordedRequest) -> None:
        """Queue a recorded request for delivery, without waiting."""
        if self._room.acquire(blocking=False):
            self._pool.submit(self._deliver, listener, request)
            return
        self.dropped += 1
        if self.dropped == 1:
            log.warning(
                "calls arrive faster than they can be recorded: some are dropped from the record; "
                "further drops are only counted"
            )

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until the queued requests are delivered; return False on a timeout."""
        return bool(wait([self._pool.submit(int)], timeout).done)

    def close(self) -> None:
        """Deliver the queued requests and stop the thread."""
        pool, self._pool = self._pool, ThreadPoolExecutor(1, "tutelage-calls")
        pool.shutdown()

    def _deliver(self, listener: OnCall, request: RecordedRequest) -> None:
        self._room.release()
        try:
            listener(request)
        except Exception as error:
            self.failed += 1
            if self.failed == 1:
                is_os_error = isinstance(error, OSError)  # a full disk is no bug
                log.warning(
                    "failed to record a call: %s; further failures are only counted",
                    (is_os_error and error.strerror) or f"{type(error).__name__}: {error}",
                    exc_info=not is_os_error,
                )
