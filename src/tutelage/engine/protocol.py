"""The engine protocol: sample a continuation of token ids and report its exact tokens.

`factory.py` makes engines in this process; servers are used through the same protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tutelage.errors import ContextOverflowError
from tutelage.policy.grammar import Grammar
from tutelage.types import Sampled, Sampling

if TYPE_CHECKING:
    from tutelage.policy.model import Policy

OnToken = Callable[[Sequence[int]], None]
"""Callback that receives the newly sampled token ids, including the end-of-turn token."""
OnPrompt = Callable[[int], None]
"""Callback that receives the length of the prompt before the first token is sampled."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request to sample one continuation of `prompt_ids`.

    The samples are a function of the prompt, the weights, `sampling` and `seed`: the i-th token is
    drawn with the i-th number of a stream that `seed` alone determines. `order` ranks requests that
    wait at the same moment; give each rollout its own. Requests of one `session` are turns of one
    conversation: the engine keeps its keys and values until `release`, and a prompt that extends
    the cached tokens only computes its new ones. `lane` numbers the concurrent requests of one
    rollout; conversations of lanes above 0 are the first to lose their cache.

    The first `shared` tokens, less than all, are a system prompt and tools that other conversations
    share: an engine of a large model computes them once for all.

    `top_logprobs` is the number of most probable tokens to report beside each drawn token.

    With a `grammar` only tokens that it allows are drawn. `on_token`, called in the event loop,
    receives tokens as they are drawn; an exception in it fails the request.
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

    def max_new_tokens(self, max_length: int) -> int:
        """Return the maximum number of new tokens. Raises `ContextOverflowError` if the prompt is
        empty or fills the context."""
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
    """Interface of inference engines that sample continuations of prompts.

    An engine serves a single event loop for the whole run.
    """

    @property
    def version(self) -> int:
        """Return the version of the current weights, which is recorded in each sample."""
        ...

    def update_weights(self, source: Policy, version: int) -> None:
        """Load a policy's current weights into the engine as `version`.

        Running requests continue with the new weights: each token is drawn from one version's
        distribution given the whole sequence before it, and the sample records the version of each
        token (`versions.py`).
        """
        ...

    def free(self) -> None:
        """Free memory until the next `update_weights`. Until then the engine cannot sample and has
        no version."""
        ...

    async def sample(self, request: Request) -> Sampled:
        """Sample the continuation of one request. Cancelling the task that awaits it cancels the
        request in the engine.

        Raises `ContextOverflowError` when the prompt leaves no room, `EngineError` otherwise.
        """
        ...

    def release(self, session: str) -> None:
        """Drop a session's KV cache. Unknown sessions are ignored."""
        ...

    @property
    def max_length(self) -> int:
        """Return the context length in tokens, for prompt and reply together."""
        ...

    def participant(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager that registers a rollout during its run and grading.

        A deterministic schedule waits for registered rollouts (`driver.py`).
        """
        ...
