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


class _Jumping(selectors.DefaultSelector):
    """Selector that advances a virtual clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the ready events; see `selectors.BaseSelector`."""
        if timeout is None:
            # Without timers, only another thread can wake the loop.
            return super().select(None)
        ready = super().select(0)
        if not ready and timeout > 0:
            self.now += timeout
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    """Asyncio event loop with a virtual clock that starts at 0."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the virtual time in seconds since the loop was created."""
        return self._jumping.now


def run_virtual(main: Coroutine[Any, Any, T], *, jumps: bool = True) -> T:
    """Run a coroutine like `asyncio.run`, on a virtual clock if `jumps` is true."""
    with asyncio.Runner(loop_factory=_VirtualLoop if jumps else None) as runner:
        return runner.run(main)
