"""What a request asks for, whichever API it came through.

A dialect (`dialects/`) makes one of what the client sent; `completions.py` has it sampled, and
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
    """One request, which nobody changes: `replace` makes another. It is not frozen, since making
    one would then take three times as long, and each model call makes one. `seed` is given to the
    first choice, `seed + i` to the i-th."""

    model: str
    messages: tuple[Message, ...]
    sampling: Sampling
    tools: tuple[ToolSpec, ...] = ()
    strict: tuple[str, ...] = ()
    """The names of the tools that are `strict`, for the record."""
    constraint: Constraint | None = None
    schema_field: str = SCHEMA_FIELD
    """The client's field that has the schema of the constraint, where there is one."""
    seed: int | None = None
    n: int = 1
    """Choices for the messages, or for each prompt."""
    prompts: tuple[str | tuple[int, ...], ...] = ()
    """What to continue in place of messages."""
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with the tokens that were used, where its dialect leaves the choice."""
    logprobs: bool = False
    top_logprobs: int = 0
    omits_thoughts: bool = False
    """Whether the text of thoughts is left out of the answer, where its dialect has them."""
    token_ids: bool = False
    """Whether the answer carries token ids, as vLLM's `return_token_ids` does."""
    conversation: tuple[Message, ...] | None = None
    """What a later request may continue from, together with the reply; None: nothing is kept."""
    template: JSON = field(default_factory=_NO_FIELDS)
    """Variables of the chat template, which have to be those that are in force."""
    items: tuple[JSON, ...] = ()
    """What the request brought, as its dialect keeps it beside the conversation."""
    unused: JSON = field(default_factory=_NO_FIELDS)
    """Fields that change nothing here, for the record."""
    scored: int | None = None
    """The tokens of the prompt are scored, with as many of the most probable ones beside each;
    None: they are not."""
    echo: JSON = field(default_factory=_NO_FIELDS)
    """Fields that the answer repeats, in the dialect's words."""

    @property
    def choices(self) -> int:
        """How many replies are sampled."""
        return self.n * max(1, len(self.prompts))

    def seed_of(self, index: int) -> int | None:
        """The seed of a choice, None where the request names none."""
        return None if self.seed is None else self.seed + index % self.n

    def prompt_of(self, index: int) -> str | tuple[int, ...] | None:
        """The prompt that a choice continues, None where it answers messages."""
        return self.prompts[index // self.n] if self.prompts else None
