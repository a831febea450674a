"""Chat client of `tutelage serve`: a policy that answers any request.

Each request is a separate conversation: it is rendered in full, its cache is freed when it ends,
and no record is kept. `engine/chat.py` has the client of an attempt, which appends turns to one
conversation.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from tutelage.engine.chat import ChatSession
from tutelage.engine.logprobs import TokenLogprob
from tutelage.engine.protocol import Engine, OnPrompt, OnToken
from tutelage.policy.codec import Codec
from tutelage.policy.row import Row
from tutelage.seeds import SeedTree
from tutelage.types import UNBOUNDED, Call, ChatOptions, Message

if TYPE_CHECKING:
    from tutelage.policy.model import Policy

SCORED = 512
"""Number of prompt tokens scored at once; each needs one value per vocabulary entry."""


class ServedPolicy:
    """Stateless chat client that samples from a policy."""

    def __init__(
        self,
        engine: Engine,
        codec: Codec,
        seeds: SeedTree,
        reply_tokens: int = UNBOUNDED,
        policy: Policy | None = None,
    ) -> None:
        """Create a client that samples with the engine.

        `reply_tokens` is the default limit on the tokens of a reply; `policy` scores prompts.
        """
        self.codec, self.reply_tokens, self.policy = codec, reply_tokens, policy
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

    def score(self, ids: tuple[int, ...], top_k: int) -> list[TokenLogprob]:
        """Return each prompt token's log-probability and those of its `top_k` alternatives.

        Requires a `policy`.
        """
        import torch

        assert self.policy is not None
        scored: list[TokenLogprob] = [(None, ())]
        for start in range(1, len(ids), SCORED):
            context = ids[: start + SCORED]
            row = Row(context, (0,) * start + (1,) * (len(context) - start))
            logps = self.policy.network.distribution([row], 1.0, torch.float32)
            values, others = (tensor.tolist() for tensor in logps.topk(top_k))
            chosen = logps.gather(1, torch.tensor(context[start:], device=logps.device)[:, None])
            pairs = (tuple(zip(*each, strict=True)) for each in zip(others, values, strict=True))
            scored += zip(chosen[:, 0].tolist(), pairs, strict=True)
        return scored
