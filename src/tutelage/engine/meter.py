"""A rollout's remote models, bounded and counted: what makes the worst case of a rollout true.

A ceiling on tokens or dollars is as hard as the worst case of one rollout, so that is enforced
here: a bound on calls, on tokens of a request and on tokens of a reply. What
goes past is refused as an overflow of the context, which is the agent's own failure.
`prompts/play.py` makes one meter for each rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

from tutelage.engine.endpoint import token_bound
from tutelage.engine.prices import Price
from tutelage.engine.usage import Cost, Usage
from tutelage.errors import ContextOverflowError
from tutelage.seeds import SeedTree
from tutelage.types import UNBOUNDED, Call, ChatClient, ChatOptions, Message, ToolSpec

CHARACTERS_A_TOKEN = 3
"""A request is refused before it is sent when it has more than this many bytes for each token that
is allowed: English has about four. The server's own count is what is charged."""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The most that one rollout may do with remote models."""

    calls: int
    prompt_tokens: int
    reply_tokens: int

    def worst(self, price: Price | None) -> Usage:
        """Its amount."""
        tokens = self.calls * (self.prompt_tokens + self.reply_tokens)
        each = 0.0 if price is None else price.of(self.prompt_tokens, self.reply_tokens)
        return Usage(self.calls, tokens, self.calls * each)


@dataclass(slots=True)
class UsageMeter:
    """What one rollout used, over all its attempts and models."""

    caps: CallLimits
    calls: int = 0
    cost: Cost = field(default_factory=Cost)
    """That of the calls that were answered; a model without a price adds no dollars."""

    def usage(self) -> Usage:
        """As the search counts it."""
        tokens = self.cost.prompt_tokens + self.cost.completion_tokens
        return Usage(self.calls, tokens, self.cost.dollars or 0.0)


@dataclass(frozen=True, slots=True)
class MeteredClient:
    """One model of one attempt behind a meter."""

    client: ChatClient
    meter: UsageMeter
    price: Price | None
    seeds: SeedTree | None = None
    """With these each request carries a seed of its own, for models that are sampled."""

    async def chat(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> Call:
        """Send one request; see `ChatClient`. Raises `ContextOverflowError` past the caps."""
        meter, caps = self.meter, self.meter.caps
        if meter.calls >= caps.calls:
            raise ContextOverflowError(
                f"this rollout has reached max_turns={caps.calls}: {meter.calls} model calls"
            )
        size = _size(messages, options.get("tools", ()))
        if size > caps.prompt_tokens * CHARACTERS_A_TOKEN:
            raise ContextOverflowError(
                f"this request has {size} bytes, more than max_prompt_tokens="
                f"{caps.prompt_tokens} allows"
            )
        if options.get("seed") is None and self.seeds is not None:
            options["seed"] = self.seeds.child("call", meter.calls).value(31)
        meter.calls += 1
        asked = options["sampling"]
        options["sampling"] = replace(asked, max_tokens=min(asked.max_tokens, caps.reply_tokens))
        call = await self.client.chat(messages, **options)
        # Of a reply without a limit its size bounds the tokens.
        most = _size([call.reply], ()) if caps.reply_tokens == UNBOUNDED else caps.reply_tokens
        used = call.usage or (min(size, caps.prompt_tokens), most)
        dollars = 0.0 if self.price is None else self.price.of(*used)
        meter.cost += Cost(1, *used, dollars, int(call.usage is None))
        return call


def _size(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
    number = sum(token_bound(str(m.to_dict())) for m in messages)
    return number + sum(token_bound(str(t.to_dict())) for t in tools)
