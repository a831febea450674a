"""Notices that Ray's head node is gone, and has the run end while it still can.

Ray ends every process of a cluster a minute after its head is lost, without a word of the run. So
a thread looks for it: once it has not answered for some seconds the run is asked to end after its
step, as by SIGTERM, and soon after that to end at once, since what it waits for may never come.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from tutelage.distributed.waiting import in_thread
from tutelage.runs.signals import ask_to_end

_LOOK_SECONDS = 2.0
"""Between two looks."""
_GONE_SECONDS = 10.0
"""Without an answer: then the head counts as lost."""
_INSIST_SECONDS = 25.0
"""How long the step may take to its end then; Ray leaves a minute in all."""


class HeadWatch:
    """Looks for the head node at `address` until it is closed."""

    def __init__(self, address: str, *, scale: float = 1.0) -> None:
        """`scale` makes all times shorter or longer, for tests."""
        self.address, self.gone = address, False
        self.reason = f"Ray's head node, {address}, no longer answers"
        self._scale = scale
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def reachable(self) -> bool:
        """Whether the head node answers now."""
        return not self.gone and self._answers()

    def ask(self, question: Callable[[], object]) -> bool:
        """Ask Ray something, which may never return without the head node. Returns False if that
        does not answer any more."""
        if reachable := self.reachable():
            try:
                in_thread(question, lambda: not self.reachable())
            except ConnectionError:
                return False
        return reachable

    def close(self) -> None:
        """End looking."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        seen = time.monotonic()
        while not self._over.wait(_LOOK_SECONDS * self._scale):
            if self._answers():
                seen = time.monotonic()
            elif time.monotonic() - seen >= _GONE_SECONDS * self._scale:
                self.gone = True
                break
        if self.gone:
            ask_to_end(f"{self.reason}.")
            if not self._over.wait(_INSIST_SECONDS * self._scale):
                ask_to_end(f"{self.reason}.")

    def _answers(self) -> bool:
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _LOOK_SECONDS).close()
        except OSError:
            return False
        return True
