"""Whether a text can fit a context at all, told from a part of it.

A gateway encodes prompts on the event loop that all clients share, and a tokenizer takes seconds
for megabytes. So a text that is long for its context is encoded a slice at a time, until it is sure
that it does not fit; what may fit is then encoded as a whole (`codec.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tutelage.errors import ContextOverflowError

_LONG = 8
"""Characters for each token of the context, up to which a text is encoded at once."""
_SLICE = 4096


def check_length(text: str, most: int, encode: Callable[[str], Sequence[int]]) -> None:
    """Raise `ContextOverflowError` if the beginning of `text` has twice the tokens of the context.

    Twice, since a word that a slice cuts may have more tokens than it has as a whole.
    """
    if len(text) <= max(_SLICE, _LONG * most):
        return
    count = 0
    for at in range(0, len(text), _SLICE):
        count += len(encode(text[at : at + _SLICE]))
        if count > 2 * most:
            raise ContextOverflowError(
                f"the prompt has more than {most} tokens; shorten the input or, where the "
                "model's own context is longer, raise `rollout.max_len` (`--max-length` of "
                "tutelage serve)"
            )
