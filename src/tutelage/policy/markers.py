"""Escape special tokens in contents, so that `<|im_end|>` in an observation stays plain text.

A chat template writes special tokens and contents into one string, in which a tokenizer cannot
distinguish them: a tool result could close its turn and open another role. So an unused separator
character is inserted into each special token of a content; after rendering, the string is split
at that character and the pieces, none of which contains a whole special token, are encoded one by
one. Contents without special tokens are not changed. `codec.py` renders with this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from tutelage.types import JSON

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SEPARATORS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
"""Unicode noncharacters, which do not occur in texts for interchange."""

_TRUSTED = ("system", "developer")
"""Roles whose texts come from the author of the agent: they may contain special tokens, such as
instructions for a call format."""

_ALLOWED = frozenset({"<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>"})
"""Special tokens allowed in an assistant's content: they do not open another role."""


class SpecialTokens:
    """Escape the special tokens of a tokenizer in message contents.

    Messages and tools have the form that templates receive: nested mappings and lists.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        added = cast("Mapping[int, Any]", tokenizer.added_tokens_decoder).values()
        names = {
            str(token)
            for token in added
            # Tokens in brackets count even if they are not declared special. Other added tokens are
            # runs of blanks or words, which are common in texts.
            if len(str(token)) > 1
            and (token.special or re.fullmatch(r"<\S+>|\[\S+\]", str(token)) is not None)
        }
        self._pattern, self._forbidden = _start_pattern(names), _start_pattern(names - _ALLOWED)

    def find_separator(self, forms: Iterable[JSON]) -> str | None:
        """Return an unused character to escape special tokens, or None if no content has any."""
        records = list(forms)
        untrusted = [form for form in records if form.get("role") not in _TRUSTED]
        if self.escape(untrusted, _SEPARATORS[0]) == untrusted:
            return None
        used = json.dumps(records, ensure_ascii=False)
        return next((c for c in _SEPARATORS if c not in used), _SEPARATORS[0])

    def escape_message(self, form: JSON, sep: str | None) -> JSON:
        """Escape the special tokens in a message, unless `sep` is None."""
        if sep is None or form["role"] in _TRUSTED:
            return form
        out = cast("JSON", self.escape(form, sep))
        if form["role"] == "assistant" and self._forbidden is not None:
            out["content"] = self._forbidden.sub(rf"\g<1>{sep}", form["content"])
        return out

    def escape(self, data: Any, sep: str) -> Any:
        """Escape the special tokens in all strings of nested data."""
        if isinstance(data, str):
            return data if self._pattern is None else self._pattern.sub(rf"\g<1>{sep}", data)
        if isinstance(data, Mapping):
            items = cast("Mapping[str, Any]", data).items()
            return {self.escape(k, sep): self.escape(v, sep) for k, v in items}
        if isinstance(data, list | tuple):
            return [self.escape(v, sep) for v in cast("Sequence[Any]", data)]
        return data

    def is_plain(self, text: str | None) -> bool:
        """Return True if a text contains no special token."""
        return not text or self._pattern is None or self._pattern.search(text) is None


def _start_pattern(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern for the first characters of special tokens, which may overlap."""
    alternatives = "|".join(re.escape(t) for t in sorted(tokens))
    return re.compile(f"(?=(?:{alternatives}))(.)", re.DOTALL) if alternatives else None
