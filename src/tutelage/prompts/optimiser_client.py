"""The HTTP client of the optimiser LLM, with limits, usage and prices.

`OptimiserClient` is the `Ask` of a search. `engine/remote.py` sends and retries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tutelage.engine.endpoint import Endpoints, max_token_count
from tutelage.engine.prices import Price
from tutelage.engine.remote import RemoteChatClient
from tutelage.engine.usage import Usage
from tutelage.prompts.contract import OptimiserReply
from tutelage.seeds import SeedTree
from tutelage.types import Message, Sampling

REQUEST_TOKENS = 16_000
"""Maximum tokens of a request to the optimiser; its evidence is cut to 12,000."""

SECONDS = 120.0
"""Timeout of one request in seconds."""


class OptimiserClient:
    """Client for the LLMs of all optimiser roles, used on one event loop; see `contract.py`.

    A request has a seed of the seed tree if the server accepts one. Raises `EngineError` after all
    retries.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        prices: Mapping[str, Price | None],
        seeds: SeedTree,
        sampling: Sampling,
    ) -> None:
        """Create the clients. `prices` are by role; an unknown price (None) counts as 0 dollars."""
        self.unknown = 0
        """Calls without a usage in the server's reply."""
        self._sampling = sampling
        self._prices, self._seeds = prices, seeds
        self._clients = {
            role: RemoteChatClient(
                endpoint.base_url,
                endpoint.api_key,
                endpoint.model,
                seeds=seeds.child(role),
                name=role,
                timeout=SECONDS,
                keep=64,
            )
            for role, endpoint in endpoints.items()
        }

    async def __call__(
        self, role: str, messages: Sequence[Message], step_key: str
    ) -> OptimiserReply:
        """Send one request and return the reply; the seed is derived from `step_key`."""
        client = self._clients[role]
        seed = self._seeds.child(step_key).value(31)
        call = await client.chat(messages, sampling=self._sampling, agent=role, seed=seed)
        text = call.reply.content or ""
        bound = (sum(max_token_count(m.content or "") for m in messages), max_token_count(text))
        prompt, completion = call.usage or bound
        dollars = price.cost(prompt, completion) if (price := self._prices.get(role)) else 0.0
        self.unknown += call.usage is None
        return OptimiserReply(call.answer, Usage(1, prompt + completion, dollars))

    async def aclose(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.close()


def max_call_usage(prices: Sequence[Price | None], reply_tokens: int) -> Usage:
    """Return the maximum usage of one optimiser request, at the highest of the given prices."""
    dearest = max((p.cost(REQUEST_TOKENS, reply_tokens) for p in prices if p), default=0.0)
    return Usage(1, REQUEST_TOKENS + reply_tokens, dearest)
