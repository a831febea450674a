"""A model request, independent of the API through which it came.

A dialect (`dialects/`) builds it from the client's body, `completions.py` samples it, and
`reply.py` is the other direction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tutelage.errors import SCHEMA_FIELD
from tutelage.types import JSON, Constraint, Message, Sampling, ToolSpec

_NO_FIELDS: Callable[[], JSON] = dict


@dataclass(slots=True)
class ChatRequest:
    """Request for replies to a conversation or to prompts. Choice i uses the seed `seed + i`.

    Treat it as immutable and copy it with `replace`. It is not frozen because that would make its
    construction, once per model call, three times as slow.
    """

    model: str
    messages: tuple[Message, ...]
    sampling: Sampling
    tools: tuple[ToolSpec, ...] = ()
    strict: tuple[str, ...] = ()
    """Names of the tools that are `strict`, for the record."""
    constraint: Constraint | None = None
    schema_field: str = SCHEMA_FIELD
    """The client's field that has the constraint's schema, if there is one."""
    seed: int | None = None
    n: int = 1
    """Choices per conversation, or per prompt."""
    prompts: tuple[str | tuple[int, ...], ...] = ()
    """Prompts to continue in place of messages."""
    stream: bool = False
    include_usage: bool = False
    """True if a stream ends with the token usage, where the dialect has this option."""
    logprobs: bool = False
    top_logprobs: int = 0
    omits_thoughts: bool = False
    """True if the text of thoughts is omitted, where the dialect has thoughts."""
    token_ids: bool = False
    """True if the reply includes token ids, as with vLLM's `return_token_ids`."""
    conversation: tuple[Message, ...] | None = None
    """Messages that a later request may continue, together with the reply; None: not stored."""
    items: tuple[JSON, ...] = ()
    """The input items of the request, as the dialect stores them with the conversation."""
    unused: JSON = field(default_factory=_NO_FIELDS)
    """Fields without effect, for the record."""
    scored: int | None = None
    """Number of most probable tokens to report for each token of the prompt; None: do not score the
    prompt."""
    echo: JSON = field(default_factory=_NO_FIELDS)
    """Fields that the reply repeats, in the format of the dialect."""

    @property
    def num_choices(self) -> int:
        """Return the number of choices to sample."""
        return self.n * max(1, len(self.prompts))

    def choice_seed(self, index: int) -> int | None:
        """Return the seed of a choice, or None if the request has none."""
        return None if self.seed is None else self.seed + index % self.n

    def choice_prompt(self, index: int) -> str | tuple[int, ...] | None:
        """Return the prompt that a choice continues, or None for a conversation."""
        return self.prompts[index // self.n] if self.prompts else None
