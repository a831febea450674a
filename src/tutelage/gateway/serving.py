"""Chat client of `tutelage serve`: a policy that answers any request.

Each request is a separate conversation: it is rendered in full, its cache is freed when it ends,
and no record is kept. Long prompts are rendered in a thread, since a tokenizer takes one second per
hundred thousand tokens and all clients share the event loop. `engine/chat.py` has the client of an
attempt, which appends turns to one conversation.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Unpack

from tutelage.engine.chat import ChatSession
from tutelage.engine.protocol import Engine, OnPrompt, OnToken
from tutelage.policy.codec import Codec
from tutelage.policy.prompt_length import check_length
from tutelage.seeds import SeedTree
from tutelage.types import UNBOUNDED, Call, ChatOptions, Message, ToolSpec

LONG = 16_000
"""Characters of a prompt above which it is rendered in a thread: rendering takes 30 ms then, a
thread 0.1 ms."""


class ServedPolicy:
    """Chat client that samples from a policy and keeps nothing between requests."""

    def __init__(
        self,
        engine: Engine,
        codec: Codec,
        seeds: SeedTree,
        reply_tokens: int = UNBOUNDED,
    ) -> None:
        """Create a client that samples with the engine.

        `reply_tokens` is the default limit on the tokens of a reply.
        """
        self.codec, self.reply_tokens = codec, reply_tokens
        self._engine, self._seeds = engine, seeds
        self._numbers = itertools.count()
        self._thread = asyncio.Lock()
        """Held while a thread uses the codec, which is not thread-safe."""

    @property
    def max_length(self) -> int:
        """Return the context length in tokens, for prompt and reply together."""
        return self._engine.max_length

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        on_token: OnToken | None = None,
        on_prompt: OnPrompt | None = None,
        **options: Unpack[ChatOptions],
    ) -> Call:
        """Sample a reply to one request."""
        number = next(self._numbers)
        if isinstance(text := options.get("prompt"), str):
            if len(text) > LONG:
                async with self._thread:
                    options["prompt"] = await asyncio.to_thread(self._encode, text)
        elif _is_long(messages):
            await self.render(messages, tuple(options.get("tools", ())), self.max_length)
        session = ChatSession(
            self._engine, self.codec, seeds=self._seeds.child(number), name=f"serve/{number}",
            order=number,
        )  # fmt: skip
        try:
            return await session.chat(messages, on_token=on_token, on_prompt=on_prompt, **options)
        finally:
            session.close()

    async def render(
        self, messages: Sequence[Message], tools: tuple[ToolSpec, ...], max_length: int
    ) -> tuple[int, ...]:
        """Render a conversation as token ids. The codec caches them for the next session.

        Raises `ContextOverflowError` for more than `max_length` tokens.
        """
        if not _is_long(messages):
            return self.codec.render(messages, tools, max_length)
        async with self._thread:
            ids = await asyncio.to_thread(self.codec.render, messages, tools, max_length)
            await asyncio.to_thread(self.codec.shared_length, messages, tools, ids)
            return ids

    def _encode(self, text: str) -> tuple[int, ...]:
        """Encode a raw prompt as token ids. Raises `ContextOverflowError` if it is too long."""
        check_length(text, self.max_length, self.codec.encode)
        return tuple(self.codec.encode(text))


def _is_long(messages: Sequence[Message]) -> bool:
    """Return True if the messages are long enough to be rendered in a thread."""
    texts = [message.content or "" for message in messages]
    texts += [call.arguments for message in messages for call in message.tool_calls]
    return sum(map(len, texts)) > LONG
