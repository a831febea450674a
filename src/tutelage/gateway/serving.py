"""A policy as a client that serves any request, for `tutelage serve`.

Every request is a conversation of its own: it is rendered whole, its cache is given back when it
ends, and no record grows. A long one is rendered in a thread, since a tokenizer takes a second for
a hundred thousand tokens and all clients share the event loop. An attempt's client, which appends
turn to turn, is `engine/chat.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from tutelage.engine.chat import ChatSession
from tutelage.engine.logprobs import OnLogprobs, TokenLogprob
from tutelage.engine.protocol import Engine, OnPrompt, OnToken
from tutelage.policy.codec import Codec
from tutelage.policy.prompt_length import check_length
from tutelage.policy.row import Row
from tutelage.seeds import SeedTree
from tutelage.types import UNBOUNDED, Call, ChatOptions, Message, ToolSpec

if TYPE_CHECKING:
    from tutelage.policy.model import Policy

SCORED = 512
"""Tokens of a prompt that are scored at once: each takes a number for every token that there is."""
LONG = 16_000
"""Characters of a prompt from which on a thread renders it: that takes 30 ms, the thread 0.1."""


class ServedPolicy:
    """A `ChatClient` that keeps nothing between requests."""

    def __init__(
        self,
        engine: Engine,
        codec: Codec,
        seeds: SeedTree,
        reply_tokens: int = UNBOUNDED,
        policy: Policy | None = None,
    ) -> None:
        """`reply_tokens` is what a server should allow a request that names no limit; `policy`
        scores prompts."""
        self.codec, self.reply_tokens, self.policy = codec, reply_tokens, policy
        self._engine, self._seeds = engine, seeds
        self._numbers = itertools.count()
        self._thread = asyncio.Lock()
        """Held while a thread uses the codec: one at a time does."""

    @property
    def max_length(self) -> int:
        """The most tokens that prompt and answer can have together."""
        return self._engine.max_length

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        on_token: OnToken | None = None,
        on_logprobs: OnLogprobs | None = None,
        on_prompt: OnPrompt | None = None,
        **options: Unpack[ChatOptions],
    ) -> Call:
        """Send one request; see `ChatClient`."""
        number = next(self._numbers)
        if isinstance(text := options.get("prompt"), str):
            if len(text) > LONG:
                async with self._thread:
                    options["prompt"] = await asyncio.to_thread(self._encode, text)
        elif _long(messages):
            await self.render(messages, tuple(options.get("tools", ())), self.max_length)
        session = ChatSession(
            self._engine, self.codec, seeds=self._seeds.child(number), name=f"serve/{number}",
            order=number,
        )  # fmt: skip
        try:
            return await session.chat(
                messages,
                on_token=on_token,
                on_logprobs=on_logprobs,
                on_prompt=on_prompt,
                **options,
            )
        finally:
            session.close()

    async def render(
        self, messages: Sequence[Message], tools: tuple[ToolSpec, ...], max_length: int
    ) -> tuple[int, ...]:
        """The ids of a conversation, which the codec keeps for a session that renders it next.

        Raises `ContextOverflowError` above `max_length` of them.
        """
        if not _long(messages):
            return self.codec.render(messages, tools, max_length)
        async with self._thread:
            ids = await asyncio.to_thread(self.codec.render, messages, tools, max_length)
            await asyncio.to_thread(self.codec.shared_length, messages, tools, ids)
            return ids

    async def score(self, ids: Sequence[int], top: int) -> list[TokenLogprob]:
        """Return the log-probabilities of a prompt's tokens after the first, with the `top` most
        probable ones beside each. Needs a `policy`."""
        return await asyncio.to_thread(self._score, tuple(ids), top)

    def _score(self, ids: tuple[int, ...], top: int) -> list[TokenLogprob]:
        import torch

        assert self.policy is not None
        scored: list[TokenLogprob] = []
        for begin in range(1, len(ids), SCORED):
            until = ids[: begin + SCORED]
            row = Row(until, (0,) * begin + (1,) * (len(until) - begin))
            lines = self.policy.network.distribution([row], 1.0, torch.float32)
            values, others = (found.tolist() for found in lines.topk(top))
            drawn = lines.gather(1, torch.tensor(until[begin:], device=lines.device)[:, None])
            pairs = (tuple(zip(*each, strict=True)) for each in zip(others, values, strict=True))
            scored += zip(drawn[:, 0].tolist(), pairs, strict=True)
        return scored

    def _encode(self, text: str) -> tuple[int, ...]:
        """The ids of a raw prompt."""
        check_length(text, self.max_length, self.codec.encode)
        return tuple(self.codec.encode(text))


def _long(messages: Sequence[Message]) -> bool:
    """Whether a thread renders them."""
    texts = [message.content or "" for message in messages]
    texts += [call.arguments for message in messages for call in message.tool_calls]
    return sum(map(len, texts)) > LONG
