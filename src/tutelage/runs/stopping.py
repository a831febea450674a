"""The clock of a run over all its processes, and the signals that ask it to stop after its step.

`signals.py` has the signals themselves; a kind of run says with `finishes_step` whether it wants to
be asked.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from tutelage.runs.signals import ENDING, Stopped, hear


class Clock:
    """Seconds that a run has worked, over all its processes."""

    def __init__(self, before: float = 0.0) -> None:
        self._before, self._start = before, time.perf_counter()

    def elapsed(self) -> float:
        """Seconds until now."""
        return self._before + time.perf_counter() - self._start


class StopSignal:
    """The first Ctrl-C, SIGTERM or SIGHUP asks the job to stop after its step; the second one
    insists. One that was not entered is never asked."""

    def __init__(self, on_ask: Callable[[], None]) -> None:
        self.asked = False
        self._on_ask = on_ask
        self._number = int(signal.SIGINT)
        self._old: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        for number in (signal.SIGINT, *ENDING):
            old = hear(number, self._handle)
            if old is not None:
                self._old[number] = old
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def stopped(self) -> Stopped:
        """The interruption that was asked for."""
        return Stopped(self._number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._number = number
        if self.asked:
            raise self.stopped()
        self.asked = True
        with suppress(OSError):  # nobody may be there any more to be told
            self._on_ask()
