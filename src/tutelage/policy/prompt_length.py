"""Reject prompts that are much too long without encoding all of their text.

A gateway encodes prompts on the event loop that all clients share, and a tokenizer takes seconds
for megabytes. So only the beginning of a long text is encoded first; a text that may fit is then
encoded as a whole (`codec.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tutelage.errors import ContextOverflowError

_CHARS_PER_TOKEN = 32
"""Number of characters per token of the context in the part that is encoded first."""


def check_length(text: str, limit: int, encode: Callable[[str], Sequence[int]]) -> None:
    """Raise `ContextOverflowError` if the start of a long text exceeds twice the token limit.

    The factor 2 leaves room for a word that is cut at the end, which may have more tokens.
    """
    beginning = text[: _CHARS_PER_TOKEN * limit]
    if len(beginning) < len(text) and len(encode(beginning)) > 2 * limit:
        raise ContextOverflowError(
            f"the prompt has more than {limit} tokens; shorten the input or, where the model's own "
            "context is longer, raise `rollout.max_len` (`--max-length` of tutelage serve)"
        )
