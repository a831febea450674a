"""What every engine promises: sample a continuation of token ids, and report it exactly.

`factory.py` makes engines of this process; servers follow behind the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tutelage.engine.logprobs import OnLogprobs
from tutelage.errors import ContextOverflowError
from tutelage.policy.grammar import Grammar
from tutelage.types import Sampled, Sampling

if TYPE_CHECKING:
    from tutelage.policy.model import Policy

OnToken = Callable[[Sequence[int]], None]
"""Is told the ids that were sampled since it was last told, the end-of-turn token among them."""
OnPrompt = Callable[[int], None]
"""Is told how many tokens a prompt has, before the first is sampled after it."""


@dataclass(frozen=True, slots=True)
class Request:
    """Sample after `prompt_ids`.

    The samples are a function of the prompt, the weights, `sampling` and `seed`: the i-th token is
    drawn with the i-th number of a stream that `seed` alone determines. `order` ranks requests that
    wait at the same moment; give each rollout its own. Requests of one `session` are turns of one
    conversation: the engine keeps its keys and values until `release`, and a prompt that extends
    what is cached only pays for its new tokens. `lane` tells apart what one rollout asks at the
    same time; the conversations of lanes above 0 are the first to lose their cache.

    The first `shared` tokens, less than all, are a system prompt and tools that other conversations
    begin with too: an engine of a large model computes them once for all.

    `top_logprobs` asks for that many of the most probable tokens beside each that is drawn.

    With a `grammar` only what it allows is drawn. `on_token`, called in the event loop, receives
    tokens as they are drawn, and `on_logprobs`, called before it, their log-probabilities; what
    they raise fails the request.
    """

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    order: int = 0
    session: str | None = None
    lane: int = 0
    grammar: Grammar | None = field(default=None, compare=False)
    on_token: OnToken | None = field(default=None, compare=False)
    shared: int = 0
    top_logprobs: int = 0
    on_logprobs: OnLogprobs | None = field(default=None, compare=False)

    def room(self, max_length: int) -> int:
        """Return how many tokens may follow the prompt, at least one. Raises
        `ContextOverflowError`."""
        if len(self.prompt_ids) >= max_length:
            raise ContextOverflowError(
                f"the prompt has {len(self.prompt_ids)} tokens; the context length is {max_length}"
                "; shorten the input or, where the model's own context is longer, raise "
                "`rollout.max_len` (`--max-length` of tutelage serve, vLLM's --max-model-len)"
            )
        if not self.prompt_ids:
            raise ContextOverflowError("the prompt is empty: there is no text to continue")
        return min(self.sampling.max_tokens, max_length - len(self.prompt_ids))


class Engine(Protocol):
    """An engine as agents, runners and gateways see it. It serves one event loop, for as long as
    the run lasts."""

    @property
    def version(self) -> int:
        """The version of the policy that it samples from, which each sample carries."""
        ...

    def update_weights(self, source: Policy, version: int) -> None:
        """Sample from the weights that `source` has now, and call them `version`. What runs goes on
        under them: each token is drawn from what one version says of the whole sequence before it,
        and the sample says which tokens are whose (`versions.py`)."""
        ...

    def free(self) -> None:
        """Give up what takes memory until `update_weights`: nothing is sampled before. An engine
        that did has no version until then."""
        ...

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

    def participant(self) -> AbstractAsyncContextManager[None]:
        """Around a rollout, reward included; see `driver.py` for what it is good for."""
        ...
