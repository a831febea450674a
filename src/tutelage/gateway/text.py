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

_CALL = "<tool_call>"
_WINDOW = 16


class ThoughtMarks(Protocol):
    """How a chat template marks a thought."""

    @property
    def known(self) -> bool:
        """Whether it does."""
        ...

    @property
    def opening(self) -> str:
        """What begins one."""
        ...

    @property
    def closing(self) -> str:
        """What ends one."""
        ...

    @property
    def begun(self) -> bool:
        """Whether the template opens the thought itself."""
        ...


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
    if before is not None and before[0] < _blank(sampled):
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
        self._marks = tuple(stops) if exact else (_CALL, *stops)
        self._llama = decoder.call_format == "llama" and not exact
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
        end, blank = self._safe(text), _blank(text) if self._strips else 0
        text, end = text[blank:], end - blank
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

    def _waits(self, character: str) -> bool:
        """Whether it may be taken back at the end: a stop string takes what lies before it, too."""
        return character.isspace() and not self._exact

    def _safe(self, text: str) -> int:
        if self._llama and (text.lstrip().startswith(("{", "<")) or not text):
            return 0
        marks = [at for mark in self._marks if (at := text.find(mark)) >= 0]
        if marks:
            self._closed = True
            end = min(marks)
        else:
            end = len(text) - max((_overlap(text, mark) for mark in self._marks), default=0)
        while end > 0 and (text[end - 1] == "\ufffd" or self._waits(text[end - 1])):
            end -= 1
        return end


class ThoughtStream:
    """A reply's text as it grows, cut into the thought that it begins with and the rest."""

    def __init__(self, decoder: TextDecoder | None, *, hidden: bool = False) -> None:
        """A `hidden` thought is left out."""
        self.raw = ""
        """The thought as it was sampled, with its markers and the white space around it."""
        self._hidden = hidden
        marks = None if decoder is None else decoder.thoughts
        self._marks = marks
        self._place = "start" if marks is not None and marks.known else "text"
        self._kept = ""

    def feed(self, new: str, *, last: bool = False) -> tuple[str, str]:
        """Take more text; what may go out now of the thought, and of the text."""
        self._kept += new
        thought = text = ""
        if self._place == "start":
            self._start(last)
        if self._place == "thought":
            thought = self._thought(last)
        if self._place == "gap" and (self._kept.strip() or last):
            self._take(len(self._kept) - len(self._kept.lstrip()))
            self._place = "text"
        if self._place == "text":
            text, self._kept = self._kept, ""
        return ("" if self._hidden else thought), text

    @property
    def shown(self) -> bool:
        """Whether there is a thought to be shown."""
        return bool(self.raw) and not self._hidden

    @property
    def ended(self) -> bool:
        """Whether such a thought is over."""
        return self.shown and self._place in ("gap", "text")

    def _start(self, last: bool) -> None:
        """Whether the reply begins with a thought, once that is sure."""
        assert self._marks is not None
        said, opening = self._kept.lstrip(), self._marks.opening
        if said.startswith(opening):
            self._take(len(self._kept) - len(said) + len(opening))
            self._place = "thought"
        elif last or not opening.startswith(said):
            self._place = "thought" if self._marks.begun else "text"

    def _thought(self, last: bool) -> str:
        assert self._marks is not None
        closing = self._marks.closing
        at = self._kept.find(closing)
        end = len(self._kept) if last else len(self._kept) - _overlap(self._kept, closing)
        said = self._kept[: end if at < 0 else at]
        # White space around a thought is none of it; at its end it may be inside.
        begin = 0 if self.raw.strip() not in ("", self._marks.opening) else _blank(said)
        shown = said[begin:].rstrip()
        if at >= 0:
            self._take(at + len(closing))
            self._place = "gap"
        else:
            self._take(end if last else begin + len(shown))
        return shown

    def _take(self, count: int) -> None:
        self.raw, self._kept = self.raw + self._kept[:count], self._kept[count:]


def _blank(text: str) -> int:
    """How much white space a text begins with."""
    return len(text) - len(text.lstrip())


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that is a beginning of `mark`."""
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(mark[:size])), 0)
