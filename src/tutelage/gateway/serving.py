"""A policy as a client that serves any request, for `tutelage serve`.

Every request is a conversation of its own: it is rendered whole, its cache is given back when it
ends, and no record grows. An attempt's client, which appends turn to turn, is `engine/chat.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Unpack

from tutelage.engine.chat import ChatSession
from tutelage.engine.logprobs import OnLogprobs
from tutelage.engine.protocol import Engine, OnPrompt, OnToken
from tutelage.policy.codec import Codec
from tutelage.seeds import SeedTree
from tutelage.types import Call, ChatOptions, Message


class ServedPolicy:
    """A `ChatClient` that keeps nothing between requests."""

    def __init__(self, engine: Engine, codec: Codec, seeds: SeedTree) -> None:
        self.codec = codec
        self._engine, self._seeds = engine, seeds
        self._numbers = itertools.count()

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
