"""A writer that keeps the training loop from waiting for the disk, and loses nothing silently.

One thread takes what was submitted in batches, each one transaction. What is submitted is stored
only when `flush` returns; so a checkpoint is written after a flush. When the disk fails, the thread
stops with what it holds, and every later `submit`, `flush` or `close` raises. The queue is bounded:
a loop that outruns the disk waits instead of filling the memory. `store.py` does the writing.
"""

from __future__ import annotations

import atexit
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from tutelage.errors import StoreError, counted
from tutelage.store.records import TrainingRow
from tutelage.store.store import Store
from tutelage.tracing.records import SpanRecord
from tutelage.types import Rollout

Listener = Callable[[Sequence[Rollout] | Sequence[SpanRecord]], None]
"""Receives everything that is submitted, and must return at once."""


_Lot = tuple[str, Sequence[SpanRecord] | Sequence[TrainingRow]]
"""Spans of a run, or what one step of it made of its rollouts."""


class StoreWriter:
    """Puts rollouts, spans and training rows from a background thread.

    A context manager that flushes and closes. `max_pending` rollouts (or lots of the others) may
    wait before `submit` blocks; `max_batch` go into one transaction. `also` is told what rollouts
    and spans are submitted, such as an exporter of traces.
    """

    def __init__(
        self,
        store: Store,
        *,
        max_pending: int = 1024,
        max_batch: int = 256,
        also: Listener | None = None,
    ) -> None:
        if max_pending < 1 or max_batch < 1:
            raise ValueError(f"sizes must be positive: {max_pending=!r}, {max_batch=!r}")
        self._store, self._also = store, also
        self._max_pending = max_pending
        self._max_batch = max_batch
        self._pending: deque[Rollout | _Lot] = deque()
        self._submitted = 0
        self._committed = 0
        self._error: BaseException | None = None
        self._waiting: list[tuple[int, Future[None]]] = []
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
        """Submit rollouts, in order; waits while the queue is full.

        Raises `StoreError` when an earlier batch could not be stored, or after `close`.
        """
        self._submit(rollouts)
        if self._also is not None:
            self._also(rollouts)

    def submit_spans(self, run_id: str, spans: Sequence[SpanRecord]) -> None:
        """Submit spans of a run's rollouts, as `submit` does; their rollouts may come later."""
        if spans:
            self._submit([(run_id, tuple(spans))])
            if self._also is not None:
                self._also(spans)

    def submit_training(self, run_id: str, rows: Sequence[TrainingRow]) -> None:
        """Submit what a training step made of rollouts, as `submit` does."""
        if rows:
            self._submit([(run_id, tuple(rows))])

    def _submit(self, items: Sequence[Rollout | _Lot]) -> None:
        with self._changed:
            for item in items:
                self._changed.wait_for(
                    lambda: self._error or self._closing or len(self._pending) < self._max_pending
                )
                if self._error is not None:
                    raise self._lost()
                if self._closing:
                    raise StoreError("this writer is closed: open another StoreWriter")
                self._pending.append(item)
                self._submitted += 1
                self._changed.notify_all()

    def flush(self) -> None:
        """Return when all that was submitted before is on the disk; raises `StoreError` if not."""
        self.flushed().result()

    def flushed(self) -> Future[None]:
        """`flush` for code in an event loop: done when all that was submitted is on the disk."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()  # who no longer waits cannot take it back
        with self._changed:
            self._waiting.append((self._submitted, future))
            self._answer()
        return future

    def _answer(self) -> None:
        """Wake those who wait for what is committed by now, or for what cannot be; the lock is
        held."""
        waiting, self._waiting = self._waiting, []
        for target, future in waiting:
            if self._committed >= target:
                future.set_result(None)
            elif self._error is not None:
                future.set_exception(self._lost())
            else:
                self._waiting.append((target, future))
        self._changed.notify_all()

    def close(self) -> None:
        """Flush and end the thread; raises `StoreError` when something could not be stored.

        May be called twice. The store stays open: it is the caller's.
        """
        atexit.unregister(self.close)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        if self._error is not None:
            raise self._lost()

    def _lost(self) -> StoreError:
        lost = counted(self._submitted - self._committed, "rollout")
        error = StoreError(f"{lost} could not be stored: {self._error}")
        error.__cause__ = self._error
        return error

    def _work(self) -> None:
        """Write what is submitted, a batch at a time, until the writer is closed or fails."""
        while self._error is None:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closing)
                size = min(len(self._pending), self._max_batch)
                batch = [self._pending.popleft() for _ in range(size)]
                self._changed.notify_all()
            if not batch:
                return
            rollouts = [item for item in batch if isinstance(item, Rollout)]
            spans: defaultdict[str, list[SpanRecord]] = defaultdict(list)
            trained: defaultdict[str, list[TrainingRow]] = defaultdict(list)
            for run_id, records in (item for item in batch if not isinstance(item, Rollout)):
                for record in records:
                    if isinstance(record, SpanRecord):
                        spans[run_id].append(record)
                    else:
                        trained[run_id].append(record)
            error = None
            try:
                self._store.put_rollouts(rollouts, spans, trained)
            except BaseException as raised:  # handed to the caller's next submit, flush or close
                error = raised
            with self._changed:
                self._error = error
                self._committed += len(batch) if error is None else 0
                self._answer()
