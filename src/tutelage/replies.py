"""A model's reply as text: the thought at its beginning, and the answer after it.

A thought stands between the tags of the model's chat template (`policy/thoughts.py` finds them), or
between `<think>` and `</think>` if no template has tags. `split_thought` splits a complete reply
and `ThoughtStream` one that is being sampled. Agents and rewards read only the answer; records and
prompts keep the complete text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tutelage.types import THOUGHTS

_CLOSED = re.compile(r"^[ \t]*</think>|(?<=[\w.!?])</think>|</think>[ \t]*$", re.MULTILINE)
"""End of a thought that was opened in the prompt: at the edge of a line, or directly after a word.
Elsewhere, as between quotes, the text only mentions the tag."""


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """Tags around a model's reasoning, from its chat template or by default."""

    begun: bool = False
    """True if the template opens the thought."""
    known: bool = True
    """True if the template has tags of thoughts."""
    opening: str = "<think>"
    closing: str = "</think>"


def split_thought(text: str, tags: ThinkTags | None = None) -> tuple[str, str]:
    """Split a reply into its initial reasoning, with the tags, and the answer.

    A thought that is not closed leaves no answer. Without `tags`, for a text of an unknown model,
    the tags are `<think>` and `</think>`, and the opening tag may have been in the prompt.
    """
    if tags is None:
        tags = ThinkTags(begun=bool(_CLOSED.search(text.partition("<think>")[0])))
    stream = ThoughtStream(tags)
    answer = stream.feed(text, final=True)[1]
    one = rf"{re.escape(tags.opening)}.*?(?:{re.escape(tags.closing)}|\Z)\s*"
    further = re.match(f"(?:{one})*", answer, re.DOTALL) if stream.raw else None
    end = len(stream.raw) + (0 if further is None else further.end())
    return text[:end], text[end:]


def read_thought(fields: Mapping[str, Any]) -> tuple[str, str]:
    """Return the reasoning in the fields of a message or delta, and the name of its field."""
    found = ((value, name) for name in THOUGHTS if isinstance(value := fields.get(name), str))
    return next((pair for pair in found if pair[0]), ("", ""))


class ThoughtStream:
    """Incremental parser that splits a streamed reply into initial reasoning and text."""

    def __init__(self, tags: ThinkTags | None, *, hidden: bool = False) -> None:
        """Create a parser. Without `tags`, everything is text; `hidden` reasoning is dropped."""
        self.raw = ""
        """The thought as sampled, with its tags and surrounding white space."""
        self._hidden = hidden
        self._tags = tags
        self._state = "text" if tags is None else "start"
        self._buffer = ""

    def feed(self, chunk: str, *, final: bool = False) -> tuple[str, str]:
        """Add text, and return the reasoning and the text that can be released."""
        self._buffer += chunk
        thought = text = ""
        if self._state == "start":
            self._detect_start(final)
        if self._state == "thought":
            thought = self._feed_thought(final)
        if self._state == "gap" and (self._buffer.strip() or final):
            self._consume(len(self._buffer) - len(self._buffer.lstrip()))
            self._state = "text"
        if self._state == "text":
            text, self._buffer = self._buffer, ""
        return ("" if self._hidden else thought), text

    @property
    def visible(self) -> bool:
        """Return True if the reply has reasoning that is not hidden."""
        return bool(self.raw) and not self._hidden

    @property
    def complete(self) -> bool:
        """Return True if the visible reasoning is complete."""
        return self.visible and self._state in ("gap", "text")

    def _detect_start(self, last: bool) -> None:
        """Decide whether the reply begins with reasoning, once enough text is buffered."""
        assert self._tags is not None
        said, opening = self._buffer.lstrip(), self._tags.opening
        if said.startswith(opening):
            self._consume(len(self._buffer) - len(said) + len(opening))
            self._state = "thought"
        elif last or not opening.startswith(said):
            self._state = "thought" if self._tags.begun else "text"

    def _feed_thought(self, last: bool) -> str:
        """Return the reasoning that can be released."""
        assert self._tags is not None
        closing = self._tags.closing
        at = self._buffer.find(closing)
        end = (
            len(self._buffer) if last else len(self._buffer) - overlap_length(self._buffer, closing)
        )
        said = self._buffer[: end if at < 0 else at]
        # White space around a thought is none of it; at its end it may be inside.
        begin = 0 if self.raw.strip() not in ("", self._tags.opening) else leading_spaces(said)
        shown = said[begin:].rstrip()
        if at >= 0:
            self._consume(at + len(closing))
            self._state = "gap"
        else:
            self._consume(end if last else begin + len(shown))
        return shown

    def _consume(self, count: int) -> None:
        """Move `count` characters from the buffer to the reasoning."""
        self.raw, self._buffer = self.raw + self._buffer[:count], self._buffer[count:]


def leading_spaces(text: str) -> int:
    """Return the number of leading white space characters."""
    return len(text) - len(text.lstrip())


def overlap_length(text: str, tag: str) -> int:
    """Return the length of the longest suffix of `text` that is a prefix of `tag`."""
    sizes = range(min(len(tag) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(tag[:size])), 0)
