"""Files that a request names by what they are: "my shopping list", "the April notes".

Each becomes a pattern such as *shopping* that a search over names may find, where a catalog has
a tool that searches. Which file it is, is known only when the search has run: one that finds
several gives no path, and the next step fails.
"""

from __future__ import annotations

import re

from tutelage.orchestration.plan.spans import MONTHS, Span, spans

_HEADS = ("lists?|notes?|logs?|files?|poems?|photos?|pictures?|images?|documents?|letters?|"
          "reports?|invoices?|drafts?|minutes|diary|calendar|agenda|spreadsheet")  # fmt: skip
_ALONE = ("poem", "calendar", "diary", "agenda")
"""Heads that need no word beside them."""
_TITLE = re.compile(
    rf"\b(?:the|my|our|this|that|your)\s+((?:[A-Za-z][\w-]*\s+){{0,2}})({_HEADS})\b"
    rf"(?:\s+(?:from|of|for|about|in)\s+((?:the )?[A-Za-z][\w-]*))?",
    re.IGNORECASE,
)
_NUMBERED = re.compile(rf"\b({_HEADS})\s+(?:number\s+|no\.?\s+|#)?(\d{{2,}})\b", re.IGNORECASE)
_EMPTY = frozenset(
    [
        "new",
        "old",
        "whole",
        "other",
        "same",
        "first",
        "last",
        "second",
        "all",
        "text",
        "and",
        "or",
        "of",
        "in",
        "it",
        "one",
        "file",
        "files",
        "folder",
        "meeting",
        "big",
        "biggest",
        "largest",
        "smallest",
        "latest",
        "newest",
        "oldest",
        "png",
        "jpg",
        "csv",
        "txt",
        "log",
    ]
)
"""Words that tell no file from another."""


def titles(text: str) -> list[Span]:
    """The files that are named so, as spans of the kind file, each with its pattern."""
    taken = [s for s in spans(text) if s.kind in ("path", "file", "pattern", "quoted", "url")]
    found: list[Span] = []
    for match in _TITLE.finditer(text):
        head = match[2].lower()
        words = [w for w in match[1].split() if w.lower() not in _EMPTY]
        after = (match[3] or "").removeprefix("the ")
        end = match.end(2)
        month = next((w for w in (*words, after) if w.lower() in MONTHS), None)
        if month is not None:
            words, end = [month], match.end() if month == after else end
        elif not words and head in _ALONE:
            words = [head]
        if words:
            found.append(Span("file", match.start(), end, _pattern(words)))
    for match in _NUMBERED.finditer(text):
        found.append(Span("file", *match.span(), f"*{_singular(match[1])}*{match[2]}*"))
    free = [s for s in found if not any(s.start < t.end and t.start < s.end for t in taken)]
    return [s for s in free if not re.match(r"\s+folder\b", text[s.end :])]


def _pattern(words: list[str]) -> str:
    """Letters in a row of each word, with whatever between: to-do is todo, too."""
    parts = [part for word in words for part in re.findall(r"[^\W_]+", _singular(word))]
    return f"*{'*'.join(parts)}*"


def _singular(word: str) -> str:
    lowered = word.lower().removesuffix("'s")
    return (
        lowered[:-1]
        if len(lowered) > 4 and lowered.endswith("s") and lowered[-2] != "s"
        else lowered
    )
