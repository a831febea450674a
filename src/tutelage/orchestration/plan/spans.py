"""What of a request may be an argument: spans of its text, each with its kinds and its value.

A pure function of the text. Texts in quotes, addresses, paths, dates, expressions, numbers and
names are found by their form; a clause is what follows a cue such as "that" or a colon. A span may
have several readings, and which of them a parameter gets is for `planner/arguments.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

KINDS = ("quoted", "url", "email", "path", "file", "pattern", "date", "expression", "number",
         "unit", "name", "word", "clause", "numbers")  # fmt: skip
NUMBERS = {
    name: value
    for value, name in enumerate(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
            "twenty",
        ]
    )
} | {"thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "hundred": 100, "thousand": 1000}
_MONTHS = "january february march april may june july august september october november december"
MONTHS = {name: number for number, name in enumerate(_MONTHS.split(), 1)}
_MONTH = "|".join(MONTHS)
_DAYS = frozenset(["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"])
_UNITS = (
    "mm|cm|km|millimet(?:re|er)s?|centimet(?:re|er)s?|kilomet(?:re|er)s?|met(?:re|er)s?|inch(?:es)?",
    "feet|foot|ft|yards?|miles?|mg|kg|kgs|grams?|kilos?|kilograms?|tonnes?|tons?|ounces?|oz|pounds?",
    "lbs?|ml|lit(?:re|er)s?|gallons?|pints?|cups?|seconds?|minutes?|hours?|weeks?|celsius|kelvin",
    "fahrenheit|centigrade|euros?|dollars?",
)
"""Units that people measure in; days are no less often dates."""
_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
_SIGNED = rf"[-−]?{_NUMBER}"
_ALSO = "(?:, ?(?:and )?| and )"
_PLAIN = re.compile(
    r"\d+(?:\.\d+)?|[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?|\d+\.\d+,\d+\.\d+"
    r"|\d+(?:\.\d+)?(?:,(?!\d{3}(?!\d)|0\d)\d+(?:\.\d+)?){2,}"
)
"""Digits with points and commas that have one reading: a number, thousands, or a list of them."""
_DIGITS = re.compile(r"(?<![\w.,])\d+(?:[.,]\d+)*,\d+(?:[.,]\d+)*")
_DAY = re.compile(
    r"(?<![\w./-])(?:\d{1,2}([/.-])\d{1,2}\1\d{4}|\d{4}([/.-])\d{1,2}\2\d{1,2})(?![\w/-])"
)
"""A date whose day and month nobody can tell apart, and no arithmetic."""
_OPERATORS = {"plus": "+", "minus": "-", "times": "*", "multiplied by": "*", "divided by": "/",
              "over": "/", "−": "-", "×": "*", "x": "*", "÷": "/"}  # fmt: skip
_OPERATOR = "|".join([r"\*\*|//|[-+*/%]", *_OPERATORS])
_FORMS = (
    ("quoted", r"(?<!\w)'(?P<v1>[^'\n]+)'(?!\w)|\"(?P<v2>[^\"\n]+)\"|[“„«](?P<v3>[^”“»\n]+)[”“»]"),
    ("url", r"https?://[^\s'\"<>]*[\w/]"),
    ("email", r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
    ("date", rf"\d{{4}}-\d\d-\d\d|\d{{1,2}}(?:st|nd|rd|th)? (?:of )?(?:{_MONTH}),? \d{{4}}"
             rf"|(?:{_MONTH}) \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}"),
    ("expression", rf"(?<![\w./]){_NUMBER} ?(?:%|percent) of {_NUMBER}"),
    ("expression", rf"(?<![\w./])\(*\s*{_SIGNED}[\s)]*(?:(?:{_OPERATOR})[\s(]*{_SIGNED}\)*"
                   rf"(?:\s*\))*\s*)+(?![\w.]\w)"),
    ("pattern", r"(?<![\w*])[\w./-]*\*(?:[\w./*-]*[\w*])?(?![\d ]*\d)"),
    ("path", r"(?<![\w/])(?:/?[\w-]+/)+[\w.-]*\w|(?<!\w)/[\w-]+"),
    ("file", r"(?<![\w/.])[\w-]+\.[A-Za-z][A-Za-z0-9]{1,4}(?![\w/])"),
    ("numbers", rf"(?<![\w.-]){_SIGNED}(?:{_ALSO}{_SIGNED})+(?!\w|\.\d|{_ALSO}[-−]?\d)"),
    ("number", rf"(?<![\w.-]){_SIGNED}(?![\w]*[-/.]\d|e[-+]?\d)"),
    ("number", rf"(?<!\w)(?:{'|'.join(NUMBERS)})(?!\w)"),
    ("unit", rf"(?<![\w-])(?:{'|'.join(_UNITS)})(?![\w-])"),
    ("name", r"(?<!\w)[^\W\d_a-z][\w'-]*(?: [^\W\d_a-z][\w'-]*)*"),
)  # fmt: skip
"""Forms by kind; ignoring case but for names."""
_CASED = {"name"}
_COVERING = {"quoted", "url", "email", "date", "path", "pattern", "expression"}
"""Kinds inside which nothing else is looked for."""
_NUMERIC = {"expression", "number", "numbers"}
_FOUND = tuple(
    (kind, re.compile(form, 0 if kind in _CASED else re.IGNORECASE)) for kind, form in _FORMS
)
_CLAUSE = re.compile(r"(?:\b(?:that|saying|says|reading|reads|called|named|about|for)\b|:)\s+")
_END = re.compile(r"[,;]? (?:and then|then|and (?=\w+ (?:it|the|me))|into|in|to)\b|[.!?]?$")
_ENDING = re.compile(
    r"\b(txt|md|csv|log|png|jpe?g|gif|pdf|json|xml|html|py|zip|docx?|mp3|wav|sql|yaml)s?"
    r"(?: (?:files?|pictures?|images?|photos?|documents?))\b",
    re.IGNORECASE,
)
"""Files of a kind, as people name them."""
_WORD = re.compile(r"[^\W\d_][\w-]*")
_COMMON = frozenset(
    [
        "a",
        "an",
        "the",
        "this",
        "that",
        "these",
        "those",
        "it",
        "its",
        "them",
        "they",
        "he",
        "she",
        "we",
        "you",
        "i",
        "me",
        "my",
        "your",
        "our",
        "his",
        "her",
        "is",
        "are",
        "was",
        "were",
        "be",
        "been",
        "am",
        "do",
        "does",
        "did",
        "have",
        "has",
        "had",
        "will",
        "would",
        "can",
        "could",
        "should",
        "may",
        "must",
        "what",
        "which",
        "who",
        "whom",
        "whose",
        "when",
        "where",
        "why",
        "how",
        "many",
        "much",
        "and",
        "or",
        "but",
        "not",
        "no",
        "yes",
        "if",
        "then",
        "than",
        "of",
        "in",
        "on",
        "at",
        "to",
        "into",
        "from",
        "by",
        "for",
        "with",
        "as",
        "about",
        "up",
        "out",
        "off",
        "over",
        "under",
        "all",
        "any",
        "some",
        "every",
        "each",
        "there",
        "here",
        "please",
        "just",
        "only",
        "also",
        "so",
        "too",
        "very",
        "more",
        "most",
        "less",
        "least",
        "new",
        "old",
        "one",
        "ones",
    ]
)
"""Words that name nothing."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a request."""

    kind: str
    start: int
    end: int
    value: object
    """What a parameter gets: a number as a number, a date as 2026-05-14, a text as it is."""


@lru_cache(maxsize=1024)
def spans(text: str) -> tuple[Span, ...]:
    """All spans of a request, by where they begin."""
    taken = [False] * len(text)
    found = _formed(text, taken)
    for match in _WORD.finditer(text):
        common = match.group().lower() in _COMMON
        if not common and not any(taken[match.start() : match.end()]):
            found.append(Span("word", *match.span(), match.group()))
    for match in _ENDING.finditer(text):
        found.append(Span("pattern", *match.span(1), f"*.{match[1].lower()}"))
    for match in _CLAUSE.finditer(text):
        rest = text[match.end() :]
        last = _END.search(rest)
        clause = rest[: last.start() if last else len(rest)].strip().rstrip(".!?")
        if clause:
            found.append(Span("clause", match.end(), match.end() + len(clause), clause))
    return tuple(sorted(found, key=lambda span: (span.start, span.end, KINDS.index(span.kind))))


def _formed(text: str, taken: list[bool]) -> list[Span]:
    """The spans that have a form; places that nothing else may be found in are marked as taken."""
    found: list[Span] = []
    days = [day.span() for day in _DAY.finditer(text)]
    for kind, form in _FOUND:
        if kind in _NUMERIC and _unclear(text, taken):
            continue
        for match in form.finditer(text):
            start, end = match.span()
            within = kind in _NUMERIC and any(start < last and first < end for first, last in days)
            value = None if within or any(taken[start:end]) else _value(kind, match)
            if value is None:
                continue
            end = start + len(match.group().rstrip())
            found.append(Span(kind, start, end, value))
            if kind in _COVERING:
                taken[start:end] = [True] * (end - start)
    return found


def _unclear(text: str, taken: Sequence[bool]) -> bool:
    """Whether a number has a comma that may be a decimal one, as in 3,5: then none is read, since
    a part of it, or the others without it, would be a wrong number."""
    found = (match for match in _DIGITS.finditer(text) if not taken[match.start()])
    return any(_PLAIN.fullmatch(match.group()) is None for match in found)


def _value(kind: str, match: re.Match[str]) -> object:
    """The value of a match; None where it is none."""
    text = match.group()
    match kind:
        case "quoted":
            return next(part for part in match.groups() if part is not None)
        case "number":
            return _number(text)
        case "numbers":
            return [_number(part) for part in re.findall(_SIGNED, text)]
        case "expression":
            return _expression(text)
        case "date":
            return _date(text)
        case _:
            return text


def _expression(text: str) -> str:
    """An expression as arithmetic has it."""
    share = re.fullmatch(rf"({_NUMBER}) ?(?:%|percent) of ({_NUMBER})", text, re.IGNORECASE)
    if share:
        return f"{share[1]} / 100 * {share[2]}"
    for name, sign in _OPERATORS.items():
        text = re.sub(re.escape(name), sign, text, flags=re.IGNORECASE)
    return text.strip()


def _number(text: str) -> int | float:
    if text.lower() in NUMBERS:
        return NUMBERS[text.lower()]
    plain = text.replace(",", "").replace("−", "-")
    return float(plain) if "." in plain else int(plain)


def _date(text: str) -> str | None:
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        return text
    month = next(number for name, number in MONTHS.items() if name in text.lower())
    digits = re.findall(r"\d+", text)
    day, year = int(digits[0]), int(digits[-1])
    return f"{year:04}-{month:02}-{day:02}" if 1 <= day <= 31 else None


def by_kind(text: str, more: Sequence[Span] = (), *, name: bool = False) -> str:
    """A request with the kinds of its paths, numbers, names and the like in place of their words,
    and of the spans in `more`; with `name`, the word for a kind."""
    if name:
        return f"kind{text}"
    parts: list[str] = []
    end = 0
    for span in sorted([*more, *spans(text)], key=lambda each: each.start):
        plain = span.kind in ("word", "clause") or (span.kind == "name" and begins(text, span))
        if span.start >= end and not plain:
            kind = "path" if span.kind == "file" else span.kind
            parts += [text[end : span.start], f" kind{kind} "]
            end = span.end
    return "".join([*parts, text[end:]])


def begins(text: str, span: Span) -> bool:
    """Whether a name may have its capital letter for another reason: it begins a sentence, or is
    a day or the like."""
    first = str(span.value).split()[0].lower()
    begins = re.search(r"(?:^|[.!?:]\s)\W*$", text[: span.start]) is not None
    return begins or len(first.partition("'")[0]) < 2 or first in _DAYS or first in MONTHS
