"""Whether a text can fit a context at all, told from a part of it.

A gateway encodes prompts on the event loop that all clients share, and a tokenizer takes seconds
for megabytes. So of a text that is long for its context the beginning is encoded first; what may
fit is then encoded as a whole (`codec.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tutelage.errors import ContextOverflowError

_LONG = 32
"""Characters for each token of the context that are encoded first."""


def check_length(text: str, most: int, encode: Callable[[str], Sequence[int]]) -> None:
    """Raise `ContextOverflowError` if the beginning of `text` has twice the tokens of the context.

    Twice, since a word that is cut may have more tokens than it has as a whole.
    """
    beginning = text[: _LONG * most]
    if len(beginning) < len(text) and len(encode(beginning)) > 2 * most:
        raise ContextOverflowError(
            f"the prompt has more than {most} tokens; shorten the input or, where the model's own "
            "context is longer, raise `rollout.max_len` (`--max-length` of tutelage serve)"
        )
