"""A background writer, so that the training loop does not wait for the disk.

One thread writes submitted records in batches, each in one transaction. Records are stored for
certain only when `flush` returns, so a checkpoint is written after a flush. If the disk fails, the
thread stops, and every later `submit`, `flush` or `close` raises. The queue is bounded: a loop that
is faster than the disk waits instead of filling the memory. `store.py` writes the records.
"""

from __future__ import annotations

import atexit
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from tutelage.errors import StoreError, pluralize
from tutelage.store.records import TrainingRow
from tutelage.store.store import Store
from tutelage.tracing.records import SpanRecord
from tutelage.types import Rollout

Listener = Callable[[Sequence[Rollout] | Sequence[SpanRecord]], None]
"""Callback that receives the submitted rollouts and spans; it must return quickly."""


_Records = tuple[str, Sequence[SpanRecord] | Sequence[TrainingRow]]
"""A run id with its spans or its training rows of one step."""


class StoreWriter:
    """Background writer of rollouts, spans and training rows.

    A context manager that flushes and closes. At most `max_pending` items (rollouts, or groups of
    spans or training rows) may wait before `submit` blocks; at most `max_batch` are written in one
    transaction. `listener` receives the submitted rollouts and spans, for example to export traces.
    """

    def __init__(
        self,
        store: Store,
        *,
        max_pending: int = 1024,
        max_batch: int = 256,
        listener: Listener | None = None,
    ) -> None:
        self._store, self._also = store, listener
        self._max_pending = max_pending
        self._max_batch = max_batch
        self._pending: deque[Rollout | _Records] = deque()
        self._submitted = 0
        self._committed = 0
        self._error: BaseException | None = None
        self._waiting: list[tuple[int, Future[None]]] = []
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()
        # The daemon thread dies with the interpreter, so close at exit to flush.
        atexit.register(self.close)

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def submit(self, rollouts: Sequence[Rollout]) -> None:
        """Queue rollouts for writing, in order, blocking while the queue is full.

        Raises `StoreError` if an earlier batch could not be stored, or after `close`.
        """
        self._submit(rollouts)
        if self._also is not None:
            self._also(rollouts)

    def submit_spans(self, run_id: str, spans: Sequence[SpanRecord]) -> None:
        """Queue spans for writing, like `submit`. Spans may be submitted before their rollouts."""
        if spans:
            self._submit([(run_id, tuple(spans))])
            if self._also is not None:
                self._also(spans)

    def submit_training(self, run_id: str, rows: Sequence[TrainingRow]) -> None:
        """Queue the training rows of a step for writing, like `submit`."""
        if rows:
            self._submit([(run_id, tuple(rows))])

    def _submit(self, items: Sequence[Rollout | _Records]) -> None:
        with self._changed:
            for item in items:
                self._changed.wait_for(
                    lambda: self._error or self._closing or len(self._pending) < self._max_pending
                )
                if self._error is not None:
                    raise self._storage_error()
                if self._closing:
                    raise StoreError("this writer is closed: create a new StoreWriter")
                self._pending.append(item)
                self._submitted += 1
                self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all submitted records are on the disk. Raises `StoreError` on a failure."""
        self.flush_async().result()

    def flush_async(self) -> Future[None]:
        """Return a future that completes when all submitted records are on the disk."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()  # it cannot be cancelled
        with self._changed:
            self._waiting.append((self._submitted, future))
            self._resolve_futures()
        return future

    def _resolve_futures(self) -> None:
        """Complete the futures of stored or failed records. The lock must be held."""
        waiting, self._waiting = self._waiting, []
        for target, future in waiting:
            if self._committed >= target:
                future.set_result(None)
            elif self._error is not None:
                future.set_exception(self._storage_error())
            else:
                self._waiting.append((target, future))
        self._changed.notify_all()

    def close(self) -> None:
        """Flush the queue and stop the thread. Raises `StoreError` if a record was not stored.

        May be called twice. The store stays open, because the caller owns it.
        """
        atexit.unregister(self.close)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        if self._error is not None:
            raise self._storage_error()

    def _storage_error(self) -> StoreError:
        count = pluralize(self._submitted - self._committed, "rollout")
        error = StoreError(f"{count} could not be stored: {self._error}")
        error.__cause__ = self._error
        return error

    def _run(self) -> None:
        """Write submitted records in batches until the writer is closed or fails."""
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
            training_rows: defaultdict[str, list[TrainingRow]] = defaultdict(list)
            for run_id, records in (item for item in batch if not isinstance(item, Rollout)):
                for record in records:
                    if isinstance(record, SpanRecord):
                        spans[run_id].append(record)
                    else:
                        training_rows[run_id].append(record)
            error = None
            try:
                self._store.put_rollouts(rollouts, spans, training_rows)
            except BaseException as exc:  # raised by the next submit, flush or close
                error = exc
            with self._changed:
                self._error = error
                self._committed += len(batch) if error is None else 0
                self._resolve_futures()
