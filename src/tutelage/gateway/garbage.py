"""Garbage of other threads, which the collector may happen to end in the gateway's.

An HTTP client that is dropped without being closed asks for the running loop when it is collected,
and has that loop close its connections; the OpenAI SDK's does so. Collected in the gateway's
thread it would be closed by the gateway's loop: with file numbers that are free by then, and that a
new connection of the agents' loop may already have. That connection would be read no more, and its
rollout would wait until its deadline. So while garbage is collected the gateway's loop does not
show: such a client then leaves its connections to their own finalizers. `server.py` uses it.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def loop_hidden_while_collecting() -> Generator[None]:
    """Around a loop's life in this thread: finalizers that the collector runs here see no loop."""
    here = threading.get_ident()
    hidden: list[asyncio.AbstractEventLoop] = []

    def watch(phase: str, info: Mapping[str, Any]) -> None:
        if threading.get_ident() != here:
            return
        if phase == "start":
            loop = asyncio._get_running_loop()  # pyright: ignore[reportPrivateUsage]
            if loop is not None:
                hidden.append(loop)
                asyncio._set_running_loop(None)  # pyright: ignore[reportPrivateUsage]
        elif hidden:
            asyncio._set_running_loop(hidden.pop())  # pyright: ignore[reportPrivateUsage]

    gc.callbacks.append(watch)
    try:
        yield
    finally:
        gc.callbacks.remove(watch)
