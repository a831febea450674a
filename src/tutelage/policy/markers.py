"""Special tokens that a text spells: how an observation that says `<|im_end|>` stays a text.

A chat template writes special tokens and contents into one string, and a tokenizer cannot tell
them apart: a tool result could close its turn and open another role. So contents are broken, with a
character that nobody uses, at every place where a special token would begin; after rendering, the
string is cut at that character and its pieces are encoded one by one, in none of which such a token
is whole. Contents without special tokens are not touched at all, and encode as ever. `codec.py`
renders with this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from tutelage.types import JSON

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BREAKS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
"""Unicode's noncharacters, which texts for interchange do not have."""

_TRUSTED = ("system", "developer")
"""Roles whose texts come from the author of the agent: they may spell special tokens and mean it,
as instructions for a format of calls do."""

_ALLOWED = frozenset({"<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>"})
"""What an assistant's own content may have as special tokens: they open no other role."""


class SpecialTokens:
    """The special tokens of one tokenizer, and texts in which they are escape.

    Messages and tools are in the form in which templates get them: nested mappings and lists.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        added = cast("Mapping[int, Any]", tokenizer.added_tokens_decoder).values()
        names = {
            str(token)
            for token in added
            # One that is not declared special may be one by its looks. Others are runs of blanks
            # or words, which texts have in them all the time.
            if len(str(token)) > 1
            and (token.special or re.fullmatch(r"<\S+>|\[\S+\]", str(token)) is not None)
        }
        self._pattern, self._foreign_pattern = _starts(names), _starts(names - _ALLOWED)

    def breaker(self, forms: Iterable[JSON]) -> str | None:
        """The character to break with; None when no content spells a special token."""
        records = list(forms)
        doubtful = [form for form in records if form.get("role") not in _TRUSTED]
        if self.escape(doubtful, _BREAKS[0]) == doubtful:
            return None
        used = json.dumps(records, ensure_ascii=False)
        return next((c for c in _BREAKS if c not in used), _BREAKS[0])

    def message(self, form: JSON, breaker: str | None) -> JSON:
        """A message whose texts spell no special token; the same one without a `breaker`."""
        if breaker is None or form["role"] in _TRUSTED:
            return form
        out = cast("JSON", self.escape(form, breaker))
        if form["role"] == "assistant" and self._foreign_pattern is not None:
            out["content"] = self._foreign_pattern.sub(rf"\g<1>{breaker}", form["content"])
        return out

    def escape(self, data: Any, breaker: str) -> Any:
        """Data of which no text spells a special token."""
        if isinstance(data, str):
            return data if self._pattern is None else self._pattern.sub(rf"\g<1>{breaker}", data)
        if isinstance(data, Mapping):
            items = cast("Mapping[str, Any]", data).items()
            return {self.escape(k, breaker): self.escape(v, breaker) for k, v in items}
        if isinstance(data, list | tuple):
            return [self.escape(v, breaker) for v in cast("Sequence[Any]", data)]
        return data

    def is_plain(self, text: str | None) -> bool:
        """Whether a text spells no special token."""
        return not text or self._pattern is None or self._pattern.search(text) is None


def _starts(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """Finds every character at which one of `tokens` begins, also where they overlap."""
    alternatives = "|".join(re.escape(t) for t in sorted(tokens))
    return re.compile(f"(?=(?:{alternatives}))(.)", re.DOTALL) if alternatives else None
