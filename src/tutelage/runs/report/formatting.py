"""Formatting of numbers and texts: percentages, durations, escaped control characters.

Pure functions. `page.py` applies `sanitize` to every string of the page, so that the text of a
model cannot reorder a line or break the file's encoding.
"""

from __future__ import annotations

from collections.abc import Sequence

from tutelage.errors import pluralize as in_words

_THIN = "\u202f"
"""Narrow non-breaking space, between digits and before a unit."""


def percent(fraction: float) -> str:
    """Format a fraction as a percentage with at most one decimal place, more for tiny values."""
    if 5e-6 < abs(fraction) < 5e-4:
        return f"{100 * fraction:.1g}{_THIN}%"
    return f"{100 * fraction:.1f}".removesuffix(".0") + f"{_THIN}%"


def count(number: float) -> str:
    """Format an integer with thousands separators."""
    return f"{number:,.0f}".replace(",", _THIN)


def short(number: float) -> str:
    """Format a number with three significant digits."""
    if number == 0 or 1e-3 <= abs(number) < 1e5:
        return f"{number:.3g}" if abs(number) < 1000 else count(number)
    return (
        f"{number:.1e}".replace(".0e", "e")
        .replace("e-0", "e-")
        .replace("e+0", "e+")
        .replace("-", "−")
    )


def duration(seconds: float) -> str:
    """Format a duration in seconds with its two largest units."""
    if seconds < 59.95:
        return f"{seconds:.1f}".removesuffix(".0") + f"{_THIN}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}{_THIN}min {whole % 60}{_THIN}s"
    return f"{whole // 3600}{_THIN}h {whole % 3600 // 60}{_THIN}min"


def count_noun(number: int, noun: str) -> str:
    """Format a count with its noun as `1 step` or `2 steps`."""
    return in_words(number, noun).replace(",", _THIN)


def join_words(words: Sequence[str]) -> str:
    """Join texts as `a`, `a and b` or `a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def cut(text: str, limit: int) -> str:
    """Shorten a text in its middle if it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    left_out = count(len(text) - head - tail)
    return f"{text[:head]} [… {left_out} characters left out …] {text[-tail:]}"


def _make_escapes() -> dict[int, str]:
    shown = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
    shown |= dict.fromkeys(range(0x80, 0xA0), "\ufffd") | {0x7F: "\u2421"}
    reordering = (0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF)
    return shown | {code: f"⟨U+{code:04X}⟩" for code in reordering}


_SHOWN = _make_escapes()


def sanitize(text: str) -> str:
    """Escape control and reordering characters in a text, and replace lone surrogates."""
    return text.translate(_SHOWN).encode("utf-8", "replace").decode("utf-8")
