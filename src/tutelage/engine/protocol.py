"""What every engine promises: sample a continuation of token ids, and report it exactly.

`native.py` implements it in this process; servers follow behind the same words.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from tutelage.types import Sampled, Sampling


@dataclass(frozen=True, slots=True)
class Request:
    """Sample after `prompt_ids`.

    The samples are a function of the prompt, the weights, `sampling` and `seed`: the i-th token is
    drawn with the i-th number of a stream that `seed` alone determines. `order` ranks requests that
    wait at the same moment; give each rollout its own. Requests of one `session` are turns of one
    conversation: the engine keeps its keys and values until `release`, and a prompt that extends
    what is cached only pays for its new tokens.
    """

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    order: int = 0
    session: str | None = None


class AsyncEngine(Protocol):
    """An engine as agents and gateways see it."""

    async def sample(self, request: Request) -> Sampled:
        """Run one request. Cancelling the awaiting task cancels it in the engine.

        Raises `ContextOverflowError` when the prompt leaves no room, `EngineError` otherwise.
        """
        ...

    def release(self, session: str) -> None:
        """Forget what is kept for a session. Unknown sessions are fine."""
        ...

    @property
    def max_length(self) -> int:
        """The most tokens that prompt and answer can have together."""
        ...


class RolloutEngine(AsyncEngine, Protocol):
    """An engine whose schedule knows which rollouts there are; what the runner needs."""

    def participant(self) -> AbstractAsyncContextManager[None]:
        """Around a rollout, reward included; see `driver.py` for what it is good for."""
        ...
