"""Count and limit a rollout's calls to remote models.

A limit on tokens or dollars is only as strict as the worst case of one rollout. It is enforced
here: by limits on calls, on tokens per request and on tokens per reply. A request beyond them fails
as a context overflow, which is the agent's own failure. `prompts/play.py` makes one meter for each
rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

from tutelage.engine.endpoint import max_token_count
from tutelage.engine.prices import Price
from tutelage.engine.usage import Cost, Usage
from tutelage.errors import ContextOverflowError
from tutelage.seeds import SeedTree
from tutelage.types import UNBOUNDED, Call, ChatClient, ChatOptions, Message, ToolSpec

CHARACTERS_A_TOKEN = 3
"""A request with more bytes per allowed token is rejected before it is sent: English has about
four. The server's own count is what is charged."""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits on one rollout's use of remote models."""

    calls: int
    prompt_tokens: int
    reply_tokens: int

    def worst_case(self, price: Price | None) -> Usage:
        """Return the maximum usage that the limits allow."""
        tokens = self.calls * (self.prompt_tokens + self.reply_tokens)
        dollars = 0.0 if price is None else price.cost(self.prompt_tokens, self.reply_tokens)
        return Usage(self.calls, tokens, self.calls * dollars)


@dataclass(slots=True)
class UsageMeter:
    """Count the model usage of one rollout, over all its attempts and models."""

    caps: CallLimits
    calls: int = 0
    cost: Cost = field(default_factory=Cost)
    """Cost of the answered calls; a model without a price adds no dollars."""

    def usage(self) -> Usage:
        """Return the calls, tokens and dollars so far; dollars are 0 if the price is unknown."""
        tokens = self.cost.prompt_tokens + self.cost.completion_tokens
        return Usage(self.calls, tokens, self.cost.dollars or 0.0)


@dataclass(frozen=True, slots=True)
class MeteredClient:
    """Chat client that counts and limits an attempt's model calls with a usage meter."""

    client: ChatClient
    meter: UsageMeter
    price: Price | None
    seeds: SeedTree | None = None
    """If set, each request carries a seed of its own, for models that are sampled."""

    async def chat(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> Call:
        """Send a request. Raises `ContextOverflowError` if it exceeds the limits."""
        meter, caps = self.meter, self.meter.caps
        if meter.calls >= caps.calls:
            raise ContextOverflowError(
                f"this rollout has reached max_turns={caps.calls}: {meter.calls} model calls"
            )
        size = _byte_size(messages, options.get("tools", ()))
        if size > caps.prompt_tokens * CHARACTERS_A_TOKEN:
            raise ContextOverflowError(
                f"this request has {size} bytes, more than max_prompt_tokens="
                f"{caps.prompt_tokens} allows"
            )
        if options.get("seed") is None and self.seeds is not None:
            options["seed"] = self.seeds.child("call", meter.calls).value(31)
        meter.calls += 1
        params = options["sampling"]
        options["sampling"] = replace(params, max_tokens=min(params.max_tokens, caps.reply_tokens))
        call = await self.client.chat(messages, **options)
        # Without a limit, the size of the reply bounds its tokens.
        cap = _byte_size([call.reply], ()) if caps.reply_tokens == UNBOUNDED else caps.reply_tokens
        used = call.usage or (min(size, caps.prompt_tokens), cap)
        dollars = 0.0 if self.price is None else self.price.cost(*used)
        meter.cost += Cost(1, *used, dollars, int(call.usage is None))
        return call


def _byte_size(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
    size = sum(max_token_count(str(m.to_dict())) for m in messages)
    return size + sum(max_token_count(str(t.to_dict())) for t in tools)
