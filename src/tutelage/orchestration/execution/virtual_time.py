"""An event loop whose clock jumps: hours of simulated work in the time that the code itself takes.

The executor and the simulated pools only ever ask the running loop for the time and wait with
`asyncio`, so on this loop a deadline, a backoff and a slow worker behave as on any other and nobody
waits. When nothing is ready the clock goes straight to the next timer. With a fixed order of tasks
and timers a run repeats exactly. Real servers need an ordinary loop.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """A selector that moves a clock on where it would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready; see `selectors.BaseSelector`."""
        if timeout is None:
            # No timer at all: only another thread can continue this.
            return super().select(None)
        ready = super().select(0)
        if not ready and timeout > 0:
            self.now += timeout
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on a clock of its own, which begins at 0."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop was made, as its timers count them."""
        return self._jumping.now


def run_virtual(main: Coroutine[Any, Any, T], *, jumps: bool = True) -> T:
    """`asyncio.run` on a clock that jumps, or on an ordinary one."""
    with asyncio.Runner(loop_factory=_VirtualLoop if jumps else None) as runner:
        return runner.run(main)
