"""Waiting for what another process does, and may never do: in a thread that can be left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

Out = TypeVar("Out")


def in_thread(
    work: Callable[[], Out], lost: Callable[[], bool] = lambda: False, reason: str = ""
) -> Out:
    """Return what `work` gives in a thread, so that signals are handled meanwhile. Raises
    `ConnectionError` with the reason as soon as `lost` is true, and leaves the thread behind."""
    future = Future[Out]()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="waiting", daemon=True).start()
    while not wait([future], 0.2).done:
        if lost():
            raise ConnectionError(reason)
    return future.result()
