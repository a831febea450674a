"""Being asked to end: Ctrl-C, SIGTERM and SIGHUP, which all save what there is and then end.

Each becomes a `KeyboardInterrupt`, so that whatever saves at Ctrl-C saves at the others too;
`StopRequested` is the one that knows its signal, and with it the exit code that shells report: 130,
143,
129. A SIGHUP that is ignored (`nohup`) stays ignored. `StopSignal` lets a job finish its
step first; `cli/failures.py` turns the exception into words and the code. `end_processes` ends what
agents left running.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

HANGUP: int | None = getattr(signal, "SIGHUP", None)
"""When a terminal goes away; None on a system that has no such signal."""
ENDING: tuple[int, ...] = (signal.SIGTERM,) if HANGUP is None else (signal.SIGTERM, HANGUP)
"""The signals that ask to end beside Ctrl-C, which Python handles by itself."""

_reason: dict[int, str] = {}
"""Why this process sent itself a signal, by its number."""


class StopRequested(KeyboardInterrupt):
    """A signal asked this process to end."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(number)
        self.number = int(number)
        self.reason = _reason.pop(self.number, "")
        """A sentence on why this process asked itself; empty where it did not."""

    def __str__(self) -> str:
        stopped = f"stopped by {signal.Signals(self.number).name}"
        return f"{stopped}: {self.reason}" if self.reason else stopped


def exit_code(error: BaseException) -> int:
    """The exit code after an interruption, as shells report it."""
    return 128 + (error.number if isinstance(error, StopRequested) else signal.SIGINT)


def ask_to_end(reason: str) -> None:
    """Have the main thread end as at SIGTERM, for a reason that the interruption then tells. Any
    thread may ask. Nothing happens where the program has no handler for it, which would kill."""
    if callable(signal.getsignal(signal.SIGTERM)):
        _reason[signal.SIGTERM] = reason
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _hear(number: int, handler: Handler) -> Any:
    """Give a signal to `handler`; returns what had it before, None where it stays as it is.

    That is so outside of the main thread, where Python allows no change, and for a SIGHUP that is
    ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    if number == HANGUP and signal.getsignal(number) is signal.SIG_IGN:
        return None

    process = os.getpid()

    def heard(number: int, frame: FrameType | None) -> Any:
        if os.getpid() != process:  # a fork, as multiprocessing makes them, has this handler too
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if number == HANGUP:
            _leave_lost_terminal()
        return handler(number, frame)

    return signal.signal(number, heard)


@contextlib.contextmanager
def _handled(numbers: Collection[int], handler: Handler) -> Generator[Collection[int]]:
    """Give these signals to `handler` as far as `_hear` can, and back at the end; yields which."""
    before = {number: _hear(number, handler) for number in numbers}
    heard = {number: old for number, old in before.items() if old is not None}
    try:
        yield heard
    finally:
        for number, old in heard.items():
            signal.signal(number, old)


def handle_signals() -> None:
    """For the rest of this process, SIGTERM and SIGHUP raise `StopRequested` as Ctrl-C does."""
    for number in ENDING:
        _hear(number, _stop)


def end_processes(roots: Collection[int], number: int) -> None:
    """Send a signal to processes and to all their descendants that `/proc` lists, but never to this
    process itself."""
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            parents[int(file.parent.name)] = int(file.read_bytes().rpartition(b")")[2].split()[1])
    family = {*roots}
    while found := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= found
    for pid in family - {os.getpid()}:
        with suppress(OSError):
            os.kill(pid, number)


@contextlib.contextmanager
def graceful_exit() -> Generator[None]:
    """Let what runs inside save before SIGTERM or SIGHUP end this process as they would have.

    For code that others call: a signal that the program handles itself stays the program's.
    """
    numbers = [n for n in ENDING if signal.getsignal(n) is signal.SIG_DFL]
    heard: Collection[int] = ()
    try:
        with _handled(numbers, _stop) as heard:
            yield
    except StopRequested as stopped:
        if stopped.number in heard:
            os.kill(os.getpid(), stopped.number)
        raise


@contextlib.contextmanager
def deferred_signals() -> Generator[None]:
    """Let what runs inside end before a signal that asks to end is handled.

    For short work that must not be cut in its middle, such as the opening and closing of a
    database. Where it raises, that ends the process anyhow.
    """
    asked: list[int] = []
    with _handled((signal.SIGINT, *ENDING), lambda number, _: asked.append(number)):
        yield
    if asked:
        signal.raise_signal(asked[0])


def _leave_lost_terminal() -> None:
    """Send what is still said nowhere once the terminal is gone: writing to it would fail, in the
    middle of saving."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for fd in (1, 2):
            # A terminal that hung up is a character device that no longer calls itself one.
            if stat.S_ISCHR(os.fstat(fd).st_mode) and not os.isatty(fd):
                os.dup2(nowhere, fd)
        os.close(nowhere)


def _stop(number: int, frame: FrameType | None) -> None:
    raise StopRequested(number)


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
        self._handled = _handled((signal.SIGINT, *ENDING), self._handle)

    def __enter__(self) -> StopSignal:
        self._handled.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._handled.__exit__(None, None, None)

    def stopped(self) -> StopRequested:
        """The interruption that was asked for."""
        return StopRequested(self._number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._number = number
        if self.asked:
            raise self.stopped()
        self.asked = True
        with suppress(OSError):  # nobody may be there any more to be told
            self._on_ask()
