"""An engine that replays a script, for tests of agents, sessions and runners without a model.

It implements the `Engine` behaviour that callers depend on: context overflow, `max_tokens`, the
end-of-turn token, streaming of single tokens. Replies are replayed in order.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from tutelage.engine.script import ScriptedReply
from tutelage.engine.scripted import scripted_text
from tutelage.errors import EngineError
from tutelage.types import Sampled, StopReason

if TYPE_CHECKING:
    from tutelage.engine.protocol import Request
    from tutelage.policy.codec import Codec
    from tutelage.policy.model import Policy

Reply = ScriptedReply | str | Sequence[int] | Exception
"""A line of a script, a text (both get an end-of-turn token), token ids, or an exception to
raise."""

Replies = Iterable[Reply] | Callable[["Request"], Reply | Awaitable[Reply]]
"""Replies in the order of the calls, or a function, async or not, from a request to its reply."""


class ScriptedEngine:
    """`Engine` that replays scripted replies; `requests` and `released` record its use."""

    def __init__(
        self,
        codec: Codec,
        script: Replies,
        *,
        max_length: int = 4096,
        logprob: float = -1.0,
        version: int = 0,
    ) -> None:
        """Set the context length `max_length` in tokens, and the `logprob` of every token."""
        self.requests: list[Request] = []
        self.released: list[str] = []
        self.version, self.max_length = version, max_length
        self._codec, self._logprob = codec, logprob
        self._end = int(cast("int", codec.tokenizer.eos_token_id))
        self._script = script if callable(script) else iter(script)

    def update_weights(self, source: Policy, version: int) -> None:
        """Set the version; the replies stay the same."""
        self.version = version

    def free(self) -> None:
        """Do nothing, because the engine holds no memory."""

    async def sample(self, request: Request) -> Sampled:
        """Return the next reply, truncated to `max_tokens` and the context length.

        Raises `ContextOverflowError` if the prompt leaves no room, the script's own exceptions, and
        `EngineError` if the script has no reply left.
        """
        room = request.max_new_tokens(self.max_length)
        self.requests.append(request)
        if not callable(self._script):
            reply = next(self._script, None)
        elif inspect.isawaitable(reply := self._script(request)):
            reply = await reply
        if reply is None:
            raise EngineError(
                f"the script has no reply for request {len(self.requests)}, in session "
                f"{request.session!r}; pass ScriptedEngine more replies, or a function"
            )
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, ScriptedReply):
            reply = await scripted_text(reply)
        ids = (*self._codec.encode(reply), self._end) if isinstance(reply, str) else tuple(reply)
        ids = ids[:room]
        ended = bool(ids) and ids[-1] in self._codec.eos_ids
        reason = StopReason.STOP if ended else StopReason.LENGTH
        logprobs = (self._logprob,) * len(ids)
        if request.on_token is not None:
            for i in ids:
                request.on_token((i,))
                await asyncio.sleep(0)
        return Sampled(ids, logprobs, logprobs, reason, self.version)

    def release(self, session: str) -> None:
        """Record the end of a session."""
        self.released.append(session)

    @asynccontextmanager
    async def participant(self) -> AsyncGenerator[None]:
        """Return a context manager for a rollout that has no effect."""
        yield
