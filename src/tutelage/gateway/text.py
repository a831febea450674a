"""Text of a reply while it is still being sampled, and the parts of it that clients see.

Tokens become text a window at a time, and text goes out only once nothing that follows can take it
back: not what may be the beginning of a tool call or of a stop string, not a half character, not
white space at the ends, which the codec strips. So what was streamed is always a beginning of what
the finished reply says. `completions.py` collects the tokens, the two `_reply` modules send the
text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

_CALL = "<tool_call>"
_WINDOW = 16


class TextDecoder(Protocol):
    """The half of a codec that is needed here."""

    eos_ids: Collection[int]
    call_format: str

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        ...


def cut(content: str | None, stops: Sequence[str]) -> str | None:
    """Content as OpenAI's API gives it: without the stop string that ended it."""
    if content is None or not stops:
        return content
    ends = [at for stop in stops if (at := content.find(stop)) >= 0]
    return content[: min(ends)].rstrip() if ends else content


class TextStream:
    """The text of one choice as it grows."""

    def __init__(self, decoder: TextDecoder, stops: Sequence[str] = ()) -> None:
        self.sent = ""
        self._decoder, self._marks = decoder, (_CALL, *stops)
        self._llama = decoder.call_format == "llama"
        self._ids: list[int] = []
        self._from = 0
        """Where the window of undecided tokens begins."""
        self._text = ""
        """Text of the tokens before the window."""
        self._closed = False

    def feed(self, ids: Sequence[int]) -> str:
        """Take new tokens; the text that may go out now."""
        if self._closed:
            return ""
        self._ids += [i for i in ids if i not in self._decoder.eos_ids]
        undecided = self._window()
        text = (self._text + undecided).lstrip()
        end = self._safe(text)
        if not text.startswith(self.sent) or end <= len(self.sent):
            return ""
        new = text[len(self.sent) : end]
        self.sent += new
        return new

    def finish(self, content: str | None) -> str:
        """What of the finished reply's content has not gone out yet."""
        whole = content or ""
        return whole[len(self.sent) :] if whole.startswith(self.sent) else ""

    def _window(self) -> str:
        """Text of the latest tokens; older ones move to `_text` and are not decoded again."""
        while len(self._ids) - self._from > 2 * _WINDOW:
            # A token's text may depend on its left neighbour, never on more.
            middle = self._from + _WINDOW
            head = self._decoder.decode(self._ids[self._from : middle])
            both = self._decoder.decode(self._ids[self._from : middle + _WINDOW])
            if head.endswith("\ufffd") or not both.startswith(head):
                return self._decoder.decode(self._ids[self._from :])
            self._text += head
            self._from = middle
        return self._decoder.decode(self._ids[self._from :])

    def _safe(self, text: str) -> int:
        if self._llama and (text.startswith(("{", "<")) or not text):
            return 0
        marks = [at for mark in self._marks if (at := text.find(mark)) >= 0]
        if marks:
            self._closed = True
            end = min(marks)
        else:
            end = len(text) - max(_overlap(text, mark) for mark in self._marks)
        while end > 0 and (text[end - 1].isspace() or text[end - 1] == "\ufffd"):
            end -= 1
        return end


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that is a beginning of `mark`."""
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(mark[:size])), 0)
