"""Chat client of `tutelage serve`: a policy that answers any request.

Each request is a separate conversation: it is rendered in full, its cache is freed when it ends,
and no record is kept. `engine/chat.py` has the client of an attempt, which appends turns to one
conversation.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Unpack

from tutelage.engine.chat import ChatSession
from tutelage.engine.protocol import Engine, OnPrompt, OnToken
from tutelage.policy.codec import Codec
from tutelage.seeds import SeedTree
from tutelage.types import UNBOUNDED, Call, ChatOptions, Message


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
        session = ChatSession(
            self._engine, self.codec, seeds=self._seeds.child(number), name=f"serve/{number}",
            order=number,
        )  # fmt: skip
        try:
            return await session.chat(messages, on_token=on_token, on_prompt=on_prompt, **options)
        finally:
            session.close()
