"""Detect the loss of Ray's head node, and end the run with a checkpoint.

Ray kills every process of a cluster a minute after its head node is lost. So a thread checks the
head node: after some seconds without an answer it asks the run to end after its step, as SIGTERM
does, and later to end at once, since the run may be waiting for a worker that never answers.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from tutelage.distributed.waiting import run_in_thread
from tutelage.runs.signals import request_stop

_CHECK_SECONDS = 2.0
"""Seconds between two checks."""
_LOST_SECONDS = 10.0
"""Seconds without an answer after which the head node counts as lost."""
_END_SECONDS = 25.0
"""Seconds that the step then has to end, out of the minute that Ray allows."""


class HeadWatch:
    """A thread that checks Ray's head node at `address` until `close` is called."""

    def __init__(self, address: str, *, scale: float = 1.0) -> None:
        """Start the thread. `scale` multiplies all intervals, for tests."""
        self.address, self.gone = address, False
        self.reason = f"Ray's head node, {address}, no longer answers"
        self._scale = scale
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def is_reachable(self) -> bool:
        """Return True if the head node answers."""
        return not self.gone and self._can_connect()

    def call(self, function: Callable[[], object]) -> bool:
        """Call a function that needs the head node, and return False if the head node is lost."""
        if reachable := self.is_reachable():
            try:
                run_in_thread(function, lambda: not self.is_reachable())
            except ConnectionError:
                return False
        return reachable

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        seen = time.monotonic()
        while not self._closed.wait(_CHECK_SECONDS * self._scale):
            if self._can_connect():
                seen = time.monotonic()
            elif time.monotonic() - seen >= _LOST_SECONDS * self._scale:
                self.gone = True
                break
        if self.gone:
            request_stop(f"{self.reason}.")
            if not self._closed.wait(_END_SECONDS * self._scale):
                request_stop(f"{self.reason}.")

    def _can_connect(self) -> bool:
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CHECK_SECONDS).close()
        except OSError:
            return False
        return True
