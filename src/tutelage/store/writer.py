"""A writer that keeps the training loop from waiting for the disk, and loses nothing silently.

One thread takes what was submitted in batches, each one transaction. What is submitted is stored
only when `flush` returns; so a checkpoint is written after a flush. When the disk fails, the thread
stops with what it holds, and every later `submit`, `flush` or `close` raises. The queue is bounded:
a loop that outruns the disk waits instead of filling the memory. `store.py` does the writing.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Sequence

from tutelage.errors import StoreError
from tutelage.store.store import Store
from tutelage.types import Rollout


class StoreWriter:
    """Puts rollouts from a background thread. A context manager that flushes and closes.

    `max_pending` rollouts may wait before `submit` blocks; `max_batch` go into one transaction.
    """

    def __init__(self, store: Store, *, max_pending: int = 1024, max_batch: int = 256) -> None:
        if max_pending < 1 or max_batch < 1:
            raise ValueError(f"sizes must be positive: {max_pending=!r}, {max_batch=!r}")
        self._store = store
        self._max_pending = max_pending
        self._max_batch = max_batch
        self._pending: deque[Rollout] = deque()
        self._submitted = 0
        self._committed = 0
        self._error: BaseException | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="store-writer", daemon=True)
        self._thread.start()
        # A daemon thread dies with the interpreter: a program that forgot to close still flushes.
        atexit.register(self.close)

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def submit(self, rollouts: Sequence[Rollout]) -> None:
        """Hand over rollouts, in order; waits while the queue is full.

        Raises `StoreError` when an earlier batch could not be stored, or after `close`.
        """
        with self._changed:
            for rollout in rollouts:
                self._changed.wait_for(
                    lambda: self._error or self._closing or len(self._pending) < self._max_pending
                )
                self._check()
                if self._closing:
                    raise StoreError("this writer is closed: open another StoreWriter")
                self._pending.append(rollout)
                self._submitted += 1
                self._changed.notify_all()

    def flush(self) -> None:
        """Return when all that was submitted before is on the disk; raises `StoreError` if not."""
        with self._changed:
            target = self._submitted
            self._changed.wait_for(lambda: self._error or self._committed >= target)
            self._check()

    def close(self) -> None:
        """Flush and end the thread; raises `StoreError` when something could not be stored.

        May be called twice. The store stays open: it is the caller's.
        """
        atexit.unregister(self.close)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        with self._changed:
            self._check()

    def _check(self) -> None:
        if self._error is not None:
            lost = self._submitted - self._committed
            raise StoreError(f"{lost} rollouts could not be stored: {self._error}") from self._error

    def _work(self) -> None:
        while batch := self._next_batch():
            try:
                self._store.put_rollouts(batch)
            except BaseException as error:  # handed to the caller's next submit, flush or close
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._committed += len(batch)
                self._changed.notify_all()

    def _next_batch(self) -> list[Rollout]:
        """What to write next, waiting for it; empty when the writer is closed and done."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closing)
            size = min(len(self._pending), self._max_batch)
            batch = [self._pending.popleft() for _ in range(size)]
            self._changed.notify_all()
            return batch
