"""Run a blocking call in a thread that can be abandoned if the call never returns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

Out = TypeVar("Out")


def run_in_thread(
    function: Callable[[], Out], is_lost: Callable[[], bool] = lambda: False, reason: str = ""
) -> Out:
    """Return the result of `function`, run in a thread so that this thread handles signals.

    Raises `ConnectionError` with `reason` if `is_lost` returns True; the thread is then abandoned.
    """
    future = Future[Out]()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="waiting", daemon=True).start()
    while not wait([future], 0.2).done:
        if is_lost():
            raise ConnectionError(reason)
    return future.result()
