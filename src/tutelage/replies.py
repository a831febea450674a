"""A model's reply as text: the thought that it begins with, and the answer after it.

A thought stands between the marks of the model's chat template (`policy/thoughts.py` finds them),
or between `<think>` and `</think>` where no template marks one. `split_thought` cuts a whole reply
and `ThoughtStream` one that is still being sampled. Everything that acts on a reply or grades it
reads the answer alone; records and prompts keep the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tutelage.types import THOUGHTS

_CLOSED = re.compile(r"^[ \t]*</think>|(?<=[\w.!?])</think>|</think>[ \t]*$", re.MULTILINE)
"""The end of a thought that was opened in the prompt: at an edge of a line, or right after a word.
Elsewhere, as between quotes, the text only mentions it."""


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """The marks of a thought: those of a chat template, or the usual ones where it has none."""

    begun: bool = False
    """Whether the template opens the thought itself."""
    known: bool = True
    """Whether the template marks thoughts."""
    opening: str = "<think>"
    closing: str = "</think>"


def split_thought(text: str, marks: ThinkTags | None = None) -> tuple[str, str]:
    """Return the thoughts that a reply begins with, with their marks, and the answer after them.

    A thought that is not closed leaves no answer. Without marks, as of a text whose model nobody
    knows, they are `<think>` and `</think>`, of which the first may have stood in the prompt.
    """
    if marks is None:
        marks = ThinkTags(begun=bool(_CLOSED.search(text.partition("<think>")[0])))
    stream = ThoughtStream(marks)
    answer = stream.feed(text, last=True)[1]
    one = rf"{re.escape(marks.opening)}.*?(?:{re.escape(marks.closing)}|\Z)\s*"
    further = re.match(f"(?:{one})*", answer, re.DOTALL) if stream.raw else None
    end = len(stream.raw) + (0 if further is None else further.end())
    return text[:end], text[end:]


def thought_of(fields: Mapping[str, Any]) -> tuple[str, str]:
    """The thought among the fields of a message or delta, and the name of its field."""
    found = ((value, name) for name in THOUGHTS if isinstance(value := fields.get(name), str))
    return next((pair for pair in found if pair[0]), ("", ""))


class ThoughtStream:
    """A reply's text as it grows, cut into the thought that it begins with and the rest."""

    def __init__(self, marks: ThinkTags | None, *, hidden: bool = False) -> None:
        """Without marks all is text; a `hidden` thought is left out."""
        self.raw = ""
        """The thought as it was sampled, with its markers and the white space around it."""
        self._hidden = hidden
        self._marks = marks
        self._place = "text" if marks is None else "start"
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
        end = len(self._kept) if last else len(self._kept) - overlap(self._kept, closing)
        said = self._kept[: end if at < 0 else at]
        # White space around a thought is none of it; at its end it may be inside.
        begin = 0 if self.raw.strip() not in ("", self._marks.opening) else blank(said)
        shown = said[begin:].rstrip()
        if at >= 0:
            self._take(at + len(closing))
            self._place = "gap"
        else:
            self._take(end if last else begin + len(shown))
        return shown

    def _take(self, count: int) -> None:
        self.raw, self._kept = self.raw + self._kept[:count], self._kept[count:]


def blank(text: str) -> int:
    """How much white space a text begins with."""
    return len(text) - len(text.lstrip())


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that is a beginning of `mark`."""
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(mark[:size])), 0)
