"""Interruptions: Ctrl-C, SIGTERM and SIGHUP, at which a process saves its state and ends.

Each signal is raised as a `KeyboardInterrupt`, so that code that saves at Ctrl-C saves at the
others too; `StopRequested` has the signal and the exit code that shells report: 130, 143, 129. An
ignored SIGHUP (`nohup`) stays ignored. `StopSignal` lets a job finish its step first;
`cli/failures.py` converts the exception into a message and an exit code. `end_processes` ends
processes that agents left running.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

HANGUP: int | None = getattr(signal, "SIGHUP", None)
"""Signal of a closed terminal; None on a system without it."""
ENDING: tuple[int, ...] = (signal.SIGTERM,) if HANGUP is None else (signal.SIGTERM, HANGUP)
"""Signals that end the process besides Ctrl-C, which Python handles itself."""

_reason: dict[int, str] = {}
"""Reason why this process sent itself a signal, by its number."""


class StopRequested(KeyboardInterrupt):
    """Exception raised when a signal interrupts this process."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(number)
        self.number = int(number)
        self.reason = _reason.pop(self.number, "")
        """Sentence on why this process interrupted itself; empty if it did not."""

    def __str__(self) -> str:
        stopped = f"stopped by {signal.Signals(self.number).name}"
        return f"{stopped}: {self.reason}" if self.reason else stopped


def exit_code(error: BaseException) -> int:
    """Return the exit code for an interruption, following the convention of shells."""
    return 128 + (error.number if isinstance(error, StopRequested) else signal.SIGINT)


def request_stop(reason: str) -> None:
    """Interrupt the main thread like SIGTERM, with a reason for the message. This can be called
    from any thread and does nothing if no SIGTERM handler is installed."""
    if callable(signal.getsignal(signal.SIGTERM)):
        _reason[signal.SIGTERM] = reason
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _set_handler(number: int, handler: Handler) -> Any:
    """Install `handler` for a signal. Returns the previous handler, or None if none was installed.

    It is not installed outside of the main thread, where Python allows no change, nor for an
    ignored SIGHUP.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    if number == HANGUP and signal.getsignal(number) is signal.SIG_IGN:
        return None

    process = os.getpid()

    def wrapper(number: int, frame: FrameType | None) -> Any:
        if os.getpid() != process:  # a fork, as multiprocessing makes them, has this handler too
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if number == HANGUP:
            _redirect_output()
        return handler(number, frame)

    return signal.signal(number, wrapper)


@contextlib.contextmanager
def _install_handler(numbers: Collection[int], handler: Handler) -> Generator[Collection[int]]:
    """Context manager that installs a signal handler and yields the signals for which it was
    installed."""
    before = {number: _set_handler(number, handler) for number in numbers}
    heard = {number: old for number, old in before.items() if old is not None}
    try:
        yield heard
    finally:
        for number, old in heard.items():
            signal.signal(number, old)


def handle_signals() -> None:
    """Install handlers that raise `StopRequested` on SIGTERM and SIGHUP."""
    for number in ENDING:
        _set_handler(number, _raise_stop)


def end_processes(roots: Collection[int], number: int) -> None:
    """Send a signal to processes and all their descendants in `/proc`, except this process."""
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
    """Context manager that raises `StopRequested` on SIGTERM and SIGHUP, to allow the block to save
    its state.

    For code that others call: signals that the program handles itself are left alone.
    """
    numbers = [n for n in ENDING if signal.getsignal(n) is signal.SIG_DFL]
    heard: Collection[int] = ()
    try:
        with _install_handler(numbers, _raise_stop) as heard:
            yield
    except StopRequested as stopped:
        if stopped.number in heard:
            os.kill(os.getpid(), stopped.number)
        raise


@contextlib.contextmanager
def defer_signals() -> Generator[None]:
    """Context manager that delays interruptions until its end.

    For short work that must not be interrupted, such as opening and closing a database.
    """
    asked: list[int] = []
    with _install_handler((signal.SIGINT, *ENDING), lambda number, _: asked.append(number)):
        yield
    if asked:
        signal.raise_signal(asked[0])


def _redirect_output() -> None:
    """Redirect the output of a closed terminal to the null device, so that later writes do not
    fail."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for fd in (1, 2):
            # A terminal that hung up is a character device that no longer calls itself one.
            if stat.S_ISCHR(os.fstat(fd).st_mode) and not os.isatty(fd):
                os.dup2(nowhere, fd)
        os.close(nowhere)


def _raise_stop(number: int, frame: FrameType | None) -> None:
    raise StopRequested(number)


class StopSignal:
    """Context manager in which a first Ctrl-C, SIGTERM or SIGHUP requests a stop after the current
    step, and a second one interrupts the job."""

    def __init__(self, on_request: Callable[[], None]) -> None:
        self.asked = False
        self._on_ask = on_request
        self._number = int(signal.SIGINT)
        self._handled = _install_handler((signal.SIGINT, *ENDING), self._handle)

    def __enter__(self) -> StopSignal:
        self._handled.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._handled.__exit__(None, None, None)

    def to_exception(self) -> StopRequested:
        """Create the exception for the interruption."""
        return StopRequested(self._number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._number = number
        if self.asked:
            raise self.to_exception()
        self.asked = True
        with suppress(OSError):  # nobody may be there any more to be told
            self._on_ask()
