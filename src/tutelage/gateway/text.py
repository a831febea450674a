"""Text of a reply while it is still being sampled, and the parts of it that clients see.

Tokens become text a window at a time, and text goes out only once nothing that follows can take it
back: not what may be the beginning of a tool call or of a stop string, not a half character, not
white space at the ends, which the codec strips. So what was streamed is always a beginning of what
the finished reply says. `completions.py` collects the tokens, the dialects send the text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import Protocol

from tutelage.engine.logprobs import TokenLogprob
from tutelage.replies import ThoughtMarks, blank, overlap
from tutelage.types import JSON

_CALL = "<tool_call>"
_WINDOW = 16


class TextDecoder(Protocol):
    """The half of a codec that is needed here."""

    @property
    def eos_ids(self) -> Collection[int]:
        """Tokens that end a turn."""
        ...

    @property
    def call_format(self) -> str:
        """How the model writes tool calls."""
        ...

    @property
    def strips(self) -> bool:
        """Whether the text of a turn is without the white space at its ends."""
        ...

    @property
    def thoughts(self) -> ThoughtMarks:
        """How it writes thoughts."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        ...


def token_entry(decoder: TextDecoder, token: int, logprob: TokenLogprob) -> JSON:
    """Return what is said of a token: its log-probability, and the most probable ones beside it."""
    value, top = logprob
    others = [_entry(decoder, *other) for other in top]
    return {**_entry(decoder, token, value), "top_logprobs": others}


def _entry(decoder: TextDecoder, token: int, value: float) -> JSON:
    """A token with its log-probability; a part of a character has no bytes."""
    text = decoder.decode([token])
    exact = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": value, "bytes": exact}


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Where the first stop string of a text begins, and which it is; None without one."""
    return min(((at, stop) for stop in stops if (at := text.find(stop)) >= 0), default=None)


def cut(
    content: str | None, stops: Sequence[str], *, exact: bool = False, sampled: str = ""
) -> str | None:
    """Content as OpenAI's API gives it: without the stop string that ended it, and unless `exact`
    without white space before that. Where the content is stripped, `sampled` is what it was before:
    of a stop string that began in the white space at its beginning only the end may be left."""
    if content is None or not stops:
        return content
    before = first_stop(sampled, stops)
    if before is not None and before[0] < blank(sampled):
        return ""
    found = first_stop(content, stops)
    if found is None:
        return content
    return content[: found[0]] if exact else content[: found[0]].rstrip()


class TokenEnds:
    """Where in the text of a reply its tokens end, so that it is known which of them a piece of it
    completes."""

    def __init__(self) -> None:
        self._ends: list[int] = []

    def add(self, end: int) -> None:
        """Another token, after which the text has this length."""
        # A part of a character may look longer than the character does.
        for at in range(len(self._ends) - 1, -1, -1):
            if self._ends[at] <= end:
                break
            self._ends[at] = end
        self._ends.append(end)

    def within(self, length: int) -> int:
        """How many tokens the first characters of the text are made of."""
        return bisect_right(self._ends, length)


class TextStream:
    """The text of one choice as it grows; an `exact` one has no calls, and keeps white space."""

    def __init__(
        self, decoder: TextDecoder, stops: Sequence[str] = (), *, exact: bool = False
    ) -> None:
        self.sent = ""
        self.length = 0
        """Of the text so far, whether or not it may go out."""
        self._decoder, self._exact = decoder, exact
        self._strips = decoder.strips and not exact
        self._llama = decoder.call_format == "llama" and not exact
        call = "{" if self._llama and decoder.thoughts.known else _CALL  # after a thought
        self._marks = tuple(stops) if exact else (call, *stops)
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
        text = self._text + undecided
        # A stop string may begin in the white space that is stripped.
        end, begin = self._safe(text), blank(text) if self._strips else 0
        text, end = text[begin:], end - begin
        self.length = len(text)
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
        if self._llama and (text.lstrip().startswith(("{", "<")) or not text):
            return 0
        marks = [at for mark in self._marks if (at := text.find(mark)) >= 0]
        if marks:
            self._closed = True
            end = min(marks)
        else:
            end = len(text) - max((overlap(text, mark) for mark in self._marks), default=0)
        # White space may be taken back: a stop string takes what lies before it, too.
        safe = text[:end]
        while safe and (safe[-1] == "\ufffd" or (safe[-1].isspace() and not self._exact)):
            safe = safe[:-1]
        return len(safe)
