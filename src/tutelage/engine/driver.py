"""The native engine behind `await`, on a schedule that is a function of the seed.

Rollouts run as coroutines in one event loop. With the `deterministic` schedule the engine takes a
step only when every rollout in it waits for the engine: tool results that came back in any order
have then all been handed in, requests are admitted by their `order`, and the whole run repeats bit
for bit. With `free` it steps whenever it has work, so a slow tool delays nobody, and only the
invariant mode of `native.py` makes results repeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal

from tutelage.engine.native import NativeEngine
from tutelage.engine.protocol import Request
from tutelage.errors import EngineError
from tutelage.types import Sampled

Schedule = Literal["deterministic", "free"]


class EngineDriver:
    """One event loop's door to a `NativeEngine`; see the module's docstring."""

    def __init__(self, engine: NativeEngine, schedule: Schedule = "deterministic") -> None:
        self.engine = engine
        self.schedule: Schedule = schedule
        self._futures: dict[int, asyncio.Future[Sampled]] = {}
        self._thinking = 0
        """Rollouts inside `participant()` that do not wait for the engine just now."""
        self._scheduled = False

    @property
    def max_length(self) -> int:
        """The engine's context length."""
        return self.engine.max_length

    @asynccontextmanager
    async def participant(self) -> AsyncGenerator[None]:
        """Around a rollout: the deterministic schedule waits for it while it is not sampling."""
        self._thinking += 1
        try:
            yield
        finally:
            self._thinking -= 1
            self._wake()

    async def sample(self, request: Request) -> Sampled:
        """Run one request; see `AsyncEngine.sample`."""
        handle = self.engine.submit(request)
        future = asyncio.get_running_loop().create_future()
        self._futures[handle] = future
        self._thinking -= 1
        self._wake()
        try:
            return await future
        except asyncio.CancelledError:
            self.engine.cancel(handle)
            if self._futures.pop(handle, None) is not None:
                self._thinking += 1
            raise

    def release(self, session: str) -> None:
        """Forget a conversation's cache."""
        self.engine.release(session)

    def _wake(self) -> None:
        """Plan a step unless one is planned."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if not self._futures or not self.engine.busy:
            return
        if self.schedule == "deterministic" and self._thinking > 0:
            return  # whoever is thinking wakes us when it samples or ends
        try:
            ended = self.engine.step()
            while not ended and self.engine.busy and self.schedule == "deterministic":
                if self.engine.stuck:
                    raise EngineError(
                        f"idle conversations keep all {self.engine.slots} slots, and everybody "
                        "waits for one; give the engine more slots"
                    )
                ended = self.engine.step()
        except Exception as error:
            self._fail(error)
            return
        for handle, result in ended:
            future = self._futures.pop(handle, None)
            if future is not None:
                self._thinking += 1
                if not future.done():
                    future.set_result(result)
        self._wake()

    def _fail(self, error: Exception) -> None:
        """Hand an engine failure to every waiting rollout, as an infrastructure failure."""
        futures, self._futures = self._futures, {}
        for handle, future in futures.items():
            self.engine.cancel(handle)
            self._thinking += 1
            if not future.done():
                failure = EngineError(f"the engine failed: {type(error).__name__}: {error}")
                failure.__cause__ = error
                future.set_exception(failure)
