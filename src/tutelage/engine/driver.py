"""The native engine behind `await`, on a schedule that is a function of the seed.

Rollouts run as coroutines in one event loop. With the `deterministic` schedule the engine takes a
step only when every rollout in it waits for the engine (`call_barrier.py`): tool results that came
back in any order have then all been submitted, requests are admitted by their `order` and `lane`,
and the whole run repeats bit for bit. With `free` it steps whenever it has work, so a slow tool
delays nobody, and only the invariant mode of `native.py` makes results repeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
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
"""With the free schedule, seconds after a step that leaves chunks of a prompt, in which the event
loop answers others; with the deterministic one, where others wait anyway, chunks of a step."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A running request, with the futures of its result and its tokens."""

    future: asyncio.Future[Sampled]
    resume: Callable[[], None]
    request: Request


class EngineDriver:
    """A `NativeEngine` as an `Engine`; see the module's docstring."""

    def __init__(self, engine: NativeEngine, schedule: Schedule = "deterministic") -> None:
        self.engine = engine
        engine.chunks = 1 if schedule == "free" else _CHUNKS
        self.schedule: Schedule = schedule
        self.barrier = CallBarrier(self._wake)
        self._waiting: dict[int, _Waiting] = {}
        self._planned: asyncio.AbstractEventLoop | None = None
        """The loop in which a step is planned."""

    @property
    def max_length(self) -> int:
        """The engine's context length."""
        return self.engine.max_length

    @property
    def version(self) -> int:
        """The version of the policy that it samples from."""
        return self.engine.version

    def update_weights(self, source: Policy, version: int) -> None:
        """See `Engine`."""
        self.engine.update_weights(source, version)

    def free(self) -> None:
        """See `Engine`."""
        self.engine.free()

    @asynccontextmanager
    async def participant(self) -> AsyncGenerator[None]:
        """Around a rollout: the deterministic schedule waits for it while it is not sampling."""
        with self.barrier.participant():
            yield

    async def sample(self, request: Request) -> Sampled:
        """Run one request; see `Engine.sample`."""
        handle = self.engine.submit(request)
        future = asyncio.get_running_loop().create_future()
        resume = self.barrier.wait()
        self._waiting[handle] = _Waiting(future, resume, request)
        try:
            return await future
        except asyncio.CancelledError:
            self.engine.cancel(handle)
            if self._waiting.pop(handle, None) is not None:
                resume()
            raise

    def release(self, session: str) -> None:
        """Forget a conversation's cache."""
        self.engine.release(session)

    def _wake(self) -> None:
        """Plan a step unless one is planned."""
        loop = asyncio.get_running_loop()
        if self._planned is not loop:
            self._planned = loop
            pauses = self.schedule == "free" and self.engine.prefilling
            (partial(loop.call_later, _PAUSE) if pauses else loop.call_soon)(self._turn)

    def _turn(self) -> None:
        self._planned = None
        if not self._waiting or not self.engine.busy:
            return
        if self.schedule == "deterministic" and self.barrier.thinking > 0:
            self.barrier.blocked()
            return  # whoever is thinking wakes us when it samples or ends
        try:
            with ENGINE_CLOCK.standing_still():
                ended = self._steps()
        except Exception as error:
            # Every waiting rollout gets it, as a failure of infrastructure.
            for handle in list(self._waiting):
                self.engine.cancel(handle)
                failure = EngineError(f"the engine failed: {type(error).__name__}: {error}")
                failure.__cause__ = error
                self._settle(handle, failure)
            self.engine.news, self.engine.failures = [], []
            return
        news, self.engine.news = self.engine.news, []
        for handle, token, logprob in news:
            waiting = self._waiting.get(handle)
            if waiting is None or waiting.request.on_token is None:
                continue
            try:
                if waiting.request.on_logprobs is not None:
                    waiting.request.on_logprobs((logprob,))
                waiting.request.on_token((token,))
            except Exception as error:  # a listener that fails loses its request, and no other
                self.engine.cancel(handle)
                self._settle(handle, error)
        failures, self.engine.failures = self.engine.failures, []
        for handle, error in failures:
            self._settle(handle, error)
        for handle, result in ended:
            self._settle(handle, result)
        self._wake()

    def _steps(self) -> list[tuple[int, Sampled]]:
        """Step until something ends, or once where another task has to get a turn in between."""
        engine, free = self.engine, self.schedule == "free"
        ended = engine.step()
        while engine.busy and not ended:
            if engine.deadlocked if free else engine.stuck:
                raise EngineError(
                    f"deadlock: idle conversations hold all {engine.slots} slots while every "
                    "request waits for one; give the engine more slots"
                )
            if free or engine.streaming or engine.failures or engine.prefilling:
                break
            ended = engine.step()
        return ended

    def _settle(self, handle: int, result: Sampled | Exception) -> None:
        """Deliver a result or an exception to the waiting request."""
        waiting = self._waiting.pop(handle, None)
        if waiting is None:
            return
        waiting.resume()
        if waiting.future.done():
            return
        if isinstance(result, Exception):
            waiting.future.set_exception(result)
        else:
            waiting.future.set_result(result)
