"""Sampling of one request, shared by everybody who waits for it, and kept for who asks again.

An `Answer` is a task of its own, so a client that repeats a request joins the one that runs, and a
client that goes away cancels it only when nobody else waits. The `Ledger` finds the answer of a
repeated request (`x-stainless-retry-count`, or an equal `Idempotency-Key`): sampling twice would
put a call into the record that no agent ever saw. `door.py` owns one ledger an attempt.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from tutelage.gateway.request import ChatRequest
from tutelage.gateway.text import Decoder
from tutelage.types import Call, ChatClient

KEPT_ANSWERS = 256
"""Answers an attempt keeps for repeats, the latest first."""


@dataclass(frozen=True, slots=True)
class Model:
    """A client and what the gateway knows about it."""

    name: str
    client: ChatClient
    streams: bool
    """Whether the client hands out tokens as they are sampled."""
    decoder: Decoder | None

    @staticmethod
    def of(name: str, client: ChatClient) -> Model:
        """Look at a client once, so that requests need not."""
        found = getattr(client, "codec", None)
        decoder = cast("Decoder", found) if hasattr(found, "decode") else None
        return Model(name, client, _hands_out_tokens(client), decoder)


class Answer:
    """One request while it is sampled, and its calls afterwards, one for each choice."""

    def __init__(
        self, id: str, request: ChatRequest, model: Model, agent: str, on_end: OnEnd
    ) -> None:
        """`on_end` is called once, before anybody who waits hears of the end."""
        self.id, self.request, self.model, self.agent = id, request, model, agent
        self.created = int(time.time())
        self.began_ns = time.time_ns()
        self.tokens: list[list[int]] = [[] for _ in range(request.n)]
        """What each choice has sampled so far; stays empty where the client hands out nothing."""
        self.delivered = False
        self._on_end: OnEnd | None = on_end
        self._waiting = 0
        self._wakers: set[Callable[[], None]] = set()
        self.task: asyncio.Task[tuple[Call, ...]] = asyncio.get_running_loop().create_task(
            self._sample()
        )
        self.task.add_done_callback(self._settled)

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls, once `task` is done. Raises what sampling raised."""
        return self.task.result()

    @property
    def usable(self) -> bool:
        """Whether a repeat may have it: it runs and is not being cancelled, or it succeeded."""
        if not self.task.done():
            return not self.task.cancelling()
        return not self.task.cancelled() and self.task.exception() is None

    def join(self, wake: Callable[[], None] | None = None) -> None:
        """Begin to wait; `wake` is called for each new piece and at the end."""
        self._waiting += 1
        if wake is not None:
            self._wakers.add(wake)
            self.task.add_done_callback(lambda _: wake())

    def leave(self, wake: Callable[[], None] | None = None) -> None:
        """Stop waiting; the last one to leave a running answer cancels it."""
        self._waiting -= 1
        if wake is not None:
            self._wakers.discard(wake)
        if self._waiting <= 0 and not self.task.done():
            self.task.cancel()

    async def _sample(self) -> tuple[Call, ...]:
        try:
            calls = await self._choices()
        except BaseException as error:
            self._end((), error)
            raise
        self._end(calls, None)
        return calls

    def _end(self, calls: tuple[Call, ...], error: BaseException | None) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self, calls, error)

    def _settled(self, task: asyncio.Task[tuple[Call, ...]]) -> None:
        """For a task that was cancelled before it began; and an answer that nobody waits for any
        more must not complain about its exception."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._end((), error)

    async def _choices(self) -> tuple[Call, ...]:
        if self.request.n == 1:
            return (await self._choice(0),)
        tasks = [asyncio.ensure_future(self._choice(i)) for i in range(self.request.n)]
        try:
            return tuple(await asyncio.gather(*tasks))
        finally:  # one choice that fails ends the others: no answer is half an answer
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _choice(self, index: int) -> Call:
        request = self.request
        extra: dict[str, Any] = {}
        if request.constraint is not None:
            extra["constraint"] = request.constraint
        if request.seed is not None:
            extra["seed"] = request.seed + index
        if self.model.streams and request.stream:
            extra["on_token"] = partial(self._token, index)
        return await self.model.client.chat(
            request.messages,
            tools=request.tools,
            sampling=request.sampling,
            agent=self.agent,
            **extra,
        )

    def _token(self, index: int, ids: Sequence[int]) -> None:
        self.tokens[index] += ids
        for wake in tuple(self._wakers):
            wake()


def _hands_out_tokens(client: ChatClient) -> bool:
    """Whether `client.chat` takes `on_token`."""
    try:
        return "on_token" in inspect.signature(client.chat).parameters
    except (TypeError, ValueError):
        return False


def with_limit(request: ChatRequest, left: int | None) -> ChatRequest:
    """The request with no more tokens than the attempt has left."""
    if left is None or request.sampling.max_tokens <= left:
        return request
    return replace(request, sampling=replace(request.sampling, max_tokens=left))


OnEnd = Callable[[Answer, tuple[Call, ...], BaseException | None], None]
"""Takes an answer that has ended, with its calls or with what ended it."""


class Ledger:
    """The latest answers of an attempt by what was asked."""

    def __init__(self, size: int = KEPT_ANSWERS) -> None:
        self._size = size
        self._kept: OrderedDict[str, tuple[bytes, Answer]] = OrderedDict()
        self._by_key: dict[bytes, dict[str, Answer]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, key: bytes) -> Answer | None:
        """The answer that a repeat of this request is about: the oldest that never arrived, else
        the latest. Equal requests are common where an agent samples the same prompt several times.
        """
        usable = [a for a in self._by_key.get(key, {}).values() if a.usable]
        return next((a for a in usable if not a.delivered), usable[-1] if usable else None)

    def add(self, key: bytes, answer: Answer) -> None:
        """Remember an answer, and forget the oldest when there are too many."""
        self._kept[answer.id] = (key, answer)
        self._by_key.setdefault(key, {})[answer.id] = answer
        while len(self._kept) > self._size:
            self._forget(next(iter(self._kept)))

    def drop(self, answer: Answer) -> None:
        """Forget an answer that came to nothing."""
        if answer.id in self._kept:
            self._forget(answer.id)

    def _forget(self, id: str) -> None:
        key, _ = self._kept.pop(id)
        rest = self._by_key[key]
        del rest[id]
        if not rest:
            del self._by_key[key]
