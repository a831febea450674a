"""Numbers and strange text as people read them: percentages, durations, visible control characters.

Pure functions. `page.py` puts every string of the page through `visible`, so
that what a model wrote cannot reorder a line or break the file's encoding.
"""

from __future__ import annotations

from collections.abc import Sequence

from tutelage.errors import counted as in_words

_THIN = "\u202f"
"""A narrow space that does not break: between digits, and before a unit."""


def percent(share: float) -> str:
    """A share of one as a percentage with at most one digit after the point, more when tiny."""
    if 5e-6 < abs(share) < 5e-4:
        return f"{100 * share:.1g}{_THIN}%"
    return f"{100 * share:.1f}".removesuffix(".0") + f"{_THIN}%"


def count(number: float) -> str:
    """A whole number with its thousands set apart."""
    return f"{number:,.0f}".replace(",", _THIN)


def short(number: float) -> str:
    """A number in three significant digits."""
    if number == 0 or 1e-3 <= abs(number) < 1e5:
        return f"{number:.3g}" if abs(number) < 1000 else count(number)
    return (
        f"{number:.1e}".replace(".0e", "e")
        .replace("e-0", "e-")
        .replace("e+0", "e+")
        .replace("-", "−")
    )


def duration(seconds: float) -> str:
    """Seconds as the two largest units that matter."""
    if seconds < 59.95:
        return f"{seconds:.1f}".removesuffix(".0") + f"{_THIN}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}{_THIN}min {whole % 60}{_THIN}s"
    return f"{whole // 3600}{_THIN}h {whole % 3600 // 60}{_THIN}min"


def counted(number: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return in_words(number, noun).replace(",", _THIN)


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def cut(text: str, limit: int) -> str:
    """The text, cut in its middle with a marker when it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    left_out = count(len(text) - head - tail)
    return f"{text[:head]} [… {left_out} characters left out …] {text[-tail:]}"


def _shown_characters() -> dict[int, str]:
    shown = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
    shown |= dict.fromkeys(range(0x80, 0xA0), "\ufffd") | {0x7F: "\u2421"}
    reordering = (0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF)
    return shown | {code: f"⟨U+{code:04X}⟩" for code in reordering}


_SHOWN = _shown_characters()


def visible(text: str) -> str:
    """The text with control and reordering characters made visible and no lone surrogates."""
    return text.translate(_SHOWN).encode("utf-8", "replace").decode("utf-8")
