"""The own time of an attempt: wall time less the time that its calls to models take.

A deadline is there for agents that hang. How long a model takes to answer, and how long a request
waits for its turn, depends on the machine and on other requests, so it says nothing about the agent
and is not counted: while any call of an attempt is running its clock stands still. So do all
clocks while an engine of this process computes (`ENGINE_CLOCK`): it has its event loop, in which a
request that has come meanwhile waits unread. Agents see their time as `rollout.remaining`;
`rollouts/models.py` and `driver.py` stop the clocks, `rollouts/runner.py` reads them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

_LEAST_PAUSE = 0.02
"""Seconds between two looks at a clock that stands still just before its limit."""


class AgentStopwatch:
    """A stopwatch that stands still during calls. Calls may overlap, and come from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is what it measures with, in seconds."""
        self._lock, self._clock = threading.Lock(), clock
        self._calls = 0
        self._before, self._since = 0.0, clock()

    @contextmanager
    def standing_still(self) -> Generator[None]:
        """Around a call."""
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
        """Seconds so far."""
        with self._lock:
            running = 0.0 if self._calls else self._clock() - self._since
            return self._before + running

    async def done_within(self, task: asyncio.Task[Any], limit: float) -> bool:
        """Wait for a task, at most until this time reaches the limit; whether it is done."""
        while not task.done():
            left = limit - self.elapsed()
            if left <= 0:
                return False
            # The limit cannot be reached before `left` wall seconds from now.
            await asyncio.wait({task}, timeout=max(left, _LEAST_PAUSE))
        return True


ENGINE_CLOCK = AgentStopwatch()
"""Time in which no engine of this process computes."""
