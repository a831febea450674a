"""An engine that answers with a script: texts or token ids, one for each call.

It keeps the promises of `AsyncEngine` that callers rely on (context overflow, `max_tokens`, the
end-of-turn token, tokens told one by one), so agents, sessions and runners are tested through their
real path, only the model is replaced. It says what its script says also where a request has a
grammar. Answers can be made from the request, can be late, and can be failures.
`tiny.py` has a real engine over a very small model.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import cast

from tutelage.engine.protocol import Request
from tutelage.errors import ContextOverflowError, EngineError
from tutelage.policy.codec import Codec
from tutelage.types import Sampled, StopReason

Reply = str | Sequence[int] | Exception
"""A text (its end-of-turn token is added), token ids as they are, or an exception to raise."""

Script = Iterable[Reply] | Callable[[Request], Reply | Awaitable[Reply]]
"""Replies in the order of the calls, or a function, async or not, from a request to its reply."""


class ScriptedEngine:
    """An `AsyncEngine` that says what it is told; `requests` and `released` record its use."""

    def __init__(
        self,
        codec: Codec,
        script: Script,
        *,
        max_length: int = 4096,
        logprob: float = -1.0,
        version: int = 0,
    ) -> None:
        """`max_length` is in tokens; every sampled token gets `logprob`."""
        self.requests: list[Request] = []
        self.released: list[str] = []
        self.version = version
        self._codec, self._max_length, self._logprob = codec, max_length, logprob
        self._end = int(cast("int", codec.tokenizer.eos_token_id))
        self._answer = script if callable(script) else _in_order(script)

    @property
    def max_length(self) -> int:
        """The most tokens that prompt and answer can have together."""
        return self._max_length

    async def sample(self, request: Request) -> Sampled:
        """The next reply, cut to what `max_tokens` and the context allow.

        Raises `ContextOverflowError` when the prompt leaves no room, the script's own exceptions,
        and `EngineError` when the script has no reply left.
        """
        room = self._max_length - len(request.prompt_ids)
        if room <= 0:
            raise ContextOverflowError(
                f"the prompt has {len(request.prompt_ids)} tokens and the context "
                f"{self._max_length}; give ScriptedEngine a larger `max_length`"
            )
        self.requests.append(request)
        reply = self._answer(request)
        if inspect.isawaitable(reply):
            reply = await reply
        if isinstance(reply, Exception):
            raise reply
        sampled = self._sampled(reply, min(room, request.sampling.max_tokens))
        if request.on_token is not None:
            for token in sampled.token_ids:
                request.on_token((token,))
                await asyncio.sleep(0)
        return sampled

    def release(self, session: str) -> None:
        """Note that a session was closed."""
        self.released.append(session)

    @asynccontextmanager
    async def participant(self) -> AsyncGenerator[None]:
        """Around a rollout; a script has no schedule, so this does nothing."""
        yield

    def _sampled(self, reply: str | Sequence[int], limit: int) -> Sampled:
        if isinstance(reply, str):
            ids = (*self._codec.encode(reply), self._end)
        else:
            ids = tuple(reply)
        ids = ids[:limit]
        ended = bool(ids) and ids[-1] in self._codec.eos_ids
        logprobs = (self._logprob,) * len(ids)
        reason = StopReason.STOP if ended else StopReason.LENGTH
        return Sampled(ids, logprobs, logprobs, reason, self.version)


def _in_order(replies: Iterable[Reply]) -> Callable[[Request], Reply]:
    left = iter(replies)
    made = 0

    def answer(request: Request) -> Reply:
        nonlocal made
        for reply in left:
            made += 1
            return reply
        raise EngineError(
            f"the script ended after {made} replies, and {request.session!r} asks for one more; "
            "give ScriptedEngine more replies, or a function"
        )

    return answer
