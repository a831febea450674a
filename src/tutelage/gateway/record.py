"""What the gateway tells others about a call, without ever waiting for them.

The record of tokens is the client's (`ChatSession.calls`). A `CallSpan` is the same call as seen
from the wire: times, response id, finish reasons, errors; tracing makes a `chat` span of it. Spans
go through one bounded queue and one thread; what does not fit is counted and dropped, and a
listener that fails is counted too. `door.py` flushes the queue before an attempt is closed.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from tutelage.types import Call

log = logging.getLogger(__name__)
QUEUED_SPANS = 10_000


@dataclass(frozen=True, slots=True)
class CallSpan:
    """One request that was answered, or failed. Times are nanoseconds since 1970."""

    rollout_id: str
    attempt_id: str
    agent: str
    model: str
    response_id: str
    api: str
    """`chat.completions` or `responses`."""
    calls: tuple[Call, ...]
    """One for each choice; empty when it failed."""
    began_ns: int
    ended_ns: int
    finish_reasons: tuple[str, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    stream: bool = False
    error: str | None = None


OnSpan = Callable[[CallSpan], None]


class Recorder:
    """Hands spans to their listeners in a thread of its own."""

    def __init__(self, size: int = QUEUED_SPANS) -> None:
        self.dropped = 0
        self.failed = 0
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(size)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def put(self, listener: OnSpan, span: CallSpan) -> None:
        """Queue a span; never waits."""
        try:
            self._queue.put_nowait(lambda: listener(span))
        except queue.Full:
            self.dropped += 1
            return
        self._run()

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until what was queued so far has been handed on; False when that took too long."""
        done = threading.Event()
        try:
            self._queue.put(done.set, timeout=timeout)
        except queue.Full:
            return False
        self._run()
        return done.wait(timeout)

    def close(self) -> None:
        """Hand on what is queued and end the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()

    def _run(self) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._work, name="tutelage-spans", daemon=True
                    )
                    self._thread.start()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                job()
            except Exception:
                self.failed += 1
                if self.failed == 1:
                    log.exception("a listener of calls failed; later failures are only counted")
