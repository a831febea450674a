"""What an answer says: its dates, its numbers, its names, whatever words stand around them.

Dates and times of day are read first and are no numbers; neither are the figures in names of files.
Numbers may be approximate, so each is compared within a tolerance. A function that checks gives the
fault in words, and the empty text where there is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MOST_OTHER_NUMBERS = 3
"""Numbers that nothing explains, beside the one that was wanted: more are a list to choose from."""
_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august"),
    *("september", "october", "november", "december"),
)
_MONTH = f"({'|'.join(f'{name}|{name[:3]}' for name in _MONTHS)})"
_ISO = re.compile(r"(?<!\d)(\d{4})-(\d{1,2})-(\d{1,2})(?!\d)")
_DAY_FIRST = re.compile(
    rf"(?<!\d)(\d{{1,2}})(?:st|nd|rd|th)?\.? (?:of )?{_MONTH}\b\.?(?:,? (\d{{4}}))?", re.IGNORECASE
)
_MONTH_FIRST = re.compile(
    rf"\b{_MONTH}\.? (\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? (\d{{4}}))?", re.IGNORECASE
)
_TIME = re.compile(r"(?<!\d)\d{1,2}:\d{2}(?!\d)")
# No figures of a name such as IMG_0412.jpg or invoice-1041.csv.
_NUMBER = re.compile(r"(?<![\w.])(?<!\w-)(?:(?<!\w)-)?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\d)")


def dates_in(text: str, year: int) -> set[date]:
    """The dates of a text: 2026-05-14, 14 May 2026, May 14th; of `year` where none is written."""
    return _taken(text, year)[0]


def numbers_in(text: str) -> list[float]:
    """The numbers of a text that belong to no date, time or name."""
    rest = _TIME.sub(" ", _taken(text, 2000)[1])
    return [float(number.replace(",", "")) for number in _NUMBER.findall(rest)]


def number_fault(answer: str, wanted: float, near: float, known: Iterable[float] = ()) -> str:
    """Why an answer does not give a number: it is not there within `near`, or it stands among more
    numbers than `known` explains."""
    numbers = numbers_in(answer)
    if not any(abs(number - wanted) <= near + 1e-9 for number in numbers):
        return f"the answer does not give {wanted:.10g}"
    expected = [*known, wanted]
    others = {n for n in numbers if all(abs(n - e) > near + 1e-9 for e in expected)}
    if len(others) > MOST_OTHER_NUMBERS:
        return f"{wanted:.10g} is one of many numbers in the answer"
    return ""


def says(text: str, words: str) -> bool:
    """Whether whole words stand in a text, in any case and over any space."""
    pattern = r"\s+".join(re.escape(word) for word in words.split())
    return re.search(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE) is not None


def says_file(text: str, name: str) -> bool:
    """Whether a text names a file, with or without the folder before it."""
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", text) is not None


def weekdays_in(text: str) -> set[str]:
    """The days of the week that a text names, in full."""
    return {day for day in WEEKDAYS if re.search(rf"\b{day}s?\b", text, re.IGNORECASE)}


def lines_of(text: str) -> list[str]:
    """The lines of a text that hold anything, without space around them."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def _taken(text: str, year: int) -> tuple[set[date], str]:
    """The dates of a text, and the text without them."""
    found: set[date] = set()

    def take(match: re.Match[str], y: str | None, month: str, day: str) -> str:
        number = _MONTHS.index(_full(month)) + 1 if month.isalpha() else int(month)
        try:
            found.add(date(int(y or year), number, int(day)))
        except ValueError:
            return match[0]
        return " "

    text = _ISO.sub(lambda m: take(m, m[1], m[2], m[3]), text)
    text = _DAY_FIRST.sub(lambda m: take(m, m[3], m[2], m[1]), text)
    text = _MONTH_FIRST.sub(lambda m: take(m, m[3], m[1], m[2]), text)
    return found, text


def _full(month: str) -> str:
    return next(name for name in _MONTHS if name.startswith(month.lower()))
