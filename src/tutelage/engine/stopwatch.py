"""Measure an attempt's own time: wall time without its model calls.

A deadline is for agents that hang. How long a model takes to answer, and how long a request queues,
depends on the machine and on other requests, not on the agent, so it is not counted: the clock is
paused while any call of the attempt runs. All clocks are paused while an engine of this process
computes (`ENGINE_CLOCK`): it blocks the event loop, so a request that arrives meanwhile is not
read. Agents see their time as `rollout.remaining`; `rollouts/models.py` and `driver.py` pause the
clocks, `rollouts/runner.py` reads them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

_LEAST_PAUSE = 0.02
"""Minimum seconds between two checks of a paused clock just before its limit."""


class AgentStopwatch:
    """Measure an attempt's time outside model calls. Calls may overlap, and come from any
    thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the stopwatch with `clock`, which returns seconds."""
        self._lock, self._clock = threading.Lock(), clock
        self._calls = 0
        self._before, self._since = 0.0, clock()

    @contextmanager
    def pause(self) -> Generator[None]:
        """Pause the stopwatch during the block."""
        with self._lock:
            if not self._calls:
                self._before += self._clock() - self._since
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                if not self._calls:
                    self._since = self._clock()

    def elapsed(self) -> float:
        """Return the measured time so far in seconds."""
        with self._lock:
            running = 0.0 if self._calls else self._clock() - self._since
            return self._before + running

    async def wait_for(self, task: asyncio.Task[Any], limit: float) -> bool:
        """Wait for a task until `limit` seconds on the stopwatch; return True if the task is
        done."""
        while not task.done():
            left = limit - self.elapsed()
            if left <= 0:
                return False
            # The limit cannot be reached before `left` wall seconds from now.
            await asyncio.wait({task}, timeout=max(left, _LEAST_PAUSE))
        return True


ENGINE_CLOCK = AgentStopwatch()
"""Time during which no engine of this process computes."""
