"""Asynchronous driver of the native engine, with a deterministic or a free schedule.

Rollouts run as coroutines in one event loop. With the `deterministic` schedule the engine takes a
step only when every rollout waits for it (`call_barrier.py`): all tool results have then led to
requests, whatever the order in which they returned, requests are admitted by their `order` and
`lane`, and the whole run repeats bit for bit. With `free` it steps whenever it has work, so a slow
tool delays no other rollout, and only the invariant mode of `native.py` makes results repeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal

from tutelage.engine.call_barrier import CallBarrier
from tutelage.engine.native import NativeEngine
from tutelage.engine.protocol import Request
from tutelage.engine.stopwatch import ENGINE_CLOCK
from tutelage.errors import EngineError
from tutelage.policy.model import Policy
from tutelage.types import Sampled

Schedule = Literal["deterministic", "free"]
_PAUSE, _CHUNKS = 0.01, 8
"""With the free schedule, seconds between steps while chunks of a prompt are left, so that the
event loop can serve others; with the deterministic one, where others wait anyway, chunks per
step."""


class EngineDriver:
    """Run a `NativeEngine` in the event loop as an awaitable `Engine`."""

    def __init__(self, engine: NativeEngine, schedule: Schedule = "deterministic") -> None:
        self.engine = engine
        engine.chunks = 1 if schedule == "free" else _CHUNKS
        self.schedule: Schedule = schedule
        self.barrier = CallBarrier(self._schedule_step)
        self._waiting: dict[int, tuple[asyncio.Future[Sampled], Callable[[], None], Request]] = {}
        """The future, the end of the wait, and the request, by handle."""
        self._scheduled: asyncio.AbstractEventLoop | None = None
        """Event loop in which a step is scheduled."""

    @property
    def max_length(self) -> int:
        """Return the engine's context length in tokens."""
        return self.engine.max_length

    @property
    def version(self) -> int:
        """Return the version of the policy weights that the engine samples from."""
        return self.engine.version

    def update_weights(self, source: Policy, version: int) -> None:
        """Load the policy's current weights into the engine as `version`."""
        self.engine.update_weights(source, version)

    def free(self) -> None:
        """Free the engine's memory until the next `update_weights`."""
        self.engine.free()

    @asynccontextmanager
    async def participant(self) -> AsyncGenerator[None]:
        """Register a rollout; the deterministic schedule waits for it while it is not sampling."""
        with self.barrier.participant():
            yield

    async def sample(self, request: Request) -> Sampled:
        """Sample the continuation of one request."""
        handle = self.engine.submit(request)
        future = asyncio.get_running_loop().create_future()
        resume = self.barrier.wait()
        self._waiting[handle] = future, resume, request
        try:
            return await future
        except asyncio.CancelledError:
            self.engine.cancel(handle)
            if self._waiting.pop(handle, None) is not None:
                resume()
            raise

    def release(self, session: str) -> None:
        """Drop a conversation's KV cache."""
        self.engine.release(session)

    def _schedule_step(self) -> None:
        """Schedule an engine step unless one is already scheduled."""
        loop = asyncio.get_running_loop()
        if self._scheduled is not loop:
            self._scheduled = loop
            pauses = self.schedule == "free" and self.engine.prefilling
            (partial(loop.call_later, _PAUSE) if pauses else loop.call_soon)(self._run_step)

    def _run_step(self) -> None:
        self._scheduled = None
        if not self._waiting or not self.engine.is_busy:
            return
        if self.schedule == "deterministic" and self.barrier.thinking > 0:
            self.barrier.check_deadlock()
            return  # the thinking rollout wakes it when it samples or ends
        try:
            with ENGINE_CLOCK.pause():
                ended = self._run_steps()
        except Exception as error:
            # Report it to every waiting rollout as a failure of infrastructure.
            for handle in list(self._waiting):
                self.engine.cancel(handle)
                failure = EngineError(f"the engine failed: {type(error).__name__}: {error}")
                failure.__cause__ = error
                self._resolve(handle, failure)
            self.engine.new_tokens, self.engine.failures = [], []
            return
        new_tokens, self.engine.new_tokens = self.engine.new_tokens, []
        for handle, token in new_tokens:
            waiting = self._waiting.get(handle)
            on_token = None if waiting is None else waiting[2].on_token
            if on_token is None:
                continue
            try:
                on_token((token,))
            except Exception as error:  # a failing callback ends its own request only
                self.engine.cancel(handle)
                self._resolve(handle, error)
        failures, self.engine.failures = self.engine.failures, []
        for handle, error in failures:
            self._resolve(handle, error)
        for handle, result in ended:
            self._resolve(handle, result)
        self._schedule_step()

    def _run_steps(self) -> list[tuple[int, Sampled]]:
        """Step the engine until a request ends, or once if another task has to run in between."""
        engine, free = self.engine, self.schedule == "free"
        ended = engine.step()
        while engine.is_busy and not ended:
            if engine.is_deadlocked if free else engine.is_stuck:
                raise EngineError(
                    f"deadlock: idle conversations hold all {engine.slots} slots while every "
                    "request waits for one; increase the number of slots"
                )
            if free or engine.is_streaming or engine.failures or engine.prefilling:
                break
            ended = engine.step()
        return ended

    def _resolve(self, handle: int, result: Sampled | Exception) -> None:
        """Deliver a result or an exception to a waiting request."""
        waiting = self._waiting.pop(handle, None)
        if waiting is None:
            return
        future, resume, _ = waiting
        resume()
        if future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
