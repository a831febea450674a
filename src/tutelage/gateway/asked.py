"""What a request asks for, whichever API it came through.

`chat_request.py` and `responses_request.py` make one; `answers.py` has it sampled; `chat_reply.py`
and `responses_reply.py` write the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from tutelage.types import Constraint, Message, Sampling, ToolSpec


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `seed` is given to the first choice, `seed + i` to the i-th."""

    model: str
    messages: tuple[Message, ...]
    sampling: Sampling
    tools: tuple[ToolSpec, ...] = ()
    constraint: Constraint | None = None
    seed: int | None = None
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    token_ids: bool = False
    """Whether the answer carries token ids, as vLLM's `return_token_ids` does."""


def constraint_of(
    tool_choice: str, parallel: bool, schema: dict[str, object] | None, tools: tuple[ToolSpec, ...]
) -> Constraint | None:
    """The constraint, None when there is nothing to enforce."""
    if tool_choice == "auto" and schema is None and (parallel or not tools):
        return None
    if not tools and schema is None:
        return None  # `none` without tools, or one call at most of none
    return Constraint(tool_choice, parallel, schema)
