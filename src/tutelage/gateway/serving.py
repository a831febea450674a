"""A policy as a client that serves any request, for `tutelage serve`.

Every request is a conversation of its own: it is rendered whole, its cache is given back when it
ends, and no record grows. An attempt's client, which appends turn to turn, is `engine/chat.py`; a
file of calls is written by `CallLog` here, from the spans that the gateway hands on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

import orjson

from tutelage.engine.chat import ChatSession
from tutelage.engine.protocol import Engine
from tutelage.errors import StoreError
from tutelage.gateway.record import CallSpan
from tutelage.policy.codec import Codec
from tutelage.seeds import SeedTree
from tutelage.types import Call, ChatOptions, Message


class ServedPolicy:
    """A `ChatClient` that keeps nothing between requests."""

    def __init__(self, engine: Engine, codec: Codec, seeds: SeedTree) -> None:
        self.codec = codec
        self._engine, self._seeds = engine, seeds
        self._numbers = itertools.count()

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        on_token: Callable[[Sequence[int]], None] | None = None,
        **options: Unpack[ChatOptions],
    ) -> Call:
        """Send one request; see `ChatClient`."""
        number = next(self._numbers)
        session = ChatSession(
            self._engine, self.codec, seeds=self._seeds.child(number), name=f"serve/{number}",
            order=number,
        )  # fmt: skip
        try:
            return await session.chat(messages, on_token=on_token, **options)
        finally:
            session.close()


class CallLog:
    """Writes each call as a line of JSON: messages, tools, token ids, log-probabilities, reply."""

    def __init__(self, path: Path) -> None:
        """Raises `StoreError` when the file cannot be written."""
        try:
            self._file = path.open("ab")
        except OSError as error:
            raise StoreError(f"cannot write {str(path)!r}: {error.strerror}") from error

    def __call__(self, span: CallSpan) -> None:
        """Write the calls of one response."""
        for i, call in enumerate(span.calls):
            line = {
                "response_id": span.response_id,
                "choice": i,
                "agent": span.agent,
                "model": span.model,
                "api": span.api,
                "messages": [m.to_dict() for m in call.messages],
                "tools": [t.to_dict() for t in call.tools],
                "sampling": call.sampling,
                "reply": call.reply.to_dict(),
                "finish_reason": span.finish_reasons[i],
                "prompt_ids": call.prompt_ids,
                "token_ids": call.sampled.token_ids,
                "logprobs": call.sampled.logprobs,
                "parse_errors": call.parse_errors,
                "usage": {"input_tokens": span.input_tokens, "output_tokens": span.output_tokens},
            }
            self._file.write(orjson.dumps(line) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
