"""Event loop with a virtual clock, to simulate hours of work without waiting.

The executor and the simulated pools read the time from the running loop and wait only with
`asyncio`, so deadlines, backoff and slow workers behave as on an ordinary loop, without delay. If
no callback is ready, the clock advances to the next timer. Runs are reproducible if the order of
tasks and timers is fixed. Real servers need an ordinary loop.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _VirtualLoop(asyncio.SelectorEventLoop):
    """Asyncio event loop with a virtual clock that starts at 0."""

    def __init__(self) -> None:
        selector = selectors.DefaultSelector()
        super().__init__(selector)
        self._now, self._wait = 0.0, selector.select
        selector.select = self._select

    def time(self) -> float:
        """Return the virtual time in seconds since the loop was created."""
        return self._now

    def _select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the ready events, and advance the clock instead of waiting for a timer."""
        if timeout is None:
            # Without timers, only another thread can wake the loop.
            return self._wait(None)
        ready = self._wait(0)
        if not ready and timeout > 0:
            self._now += timeout
        return ready


def run_virtual(main: Coroutine[Any, Any, T], *, virtual: bool = True) -> T:
    """Run a coroutine like `asyncio.run`, by default on a virtual clock."""
    with asyncio.Runner(loop_factory=_VirtualLoop if virtual else None) as runner:
        return runner.run(main)
