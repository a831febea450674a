"""Tools that only compute: arithmetic, units, dates of the calendar, texts.

Dates are written as 2026-05-14. Numbers are exact until they are given back. Each is a pure
function of its arguments.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date, timedelta
from fractions import Fraction

from tutelage.tools.expression import MAX_DIGITS, ExpressionError, evaluate
from tutelage.tools.loading import hint
from tutelage.tools.tool import ToolError, tool

MAX_TEXT = 1_000_000
"""Characters of a text that is worked on, and of what comes out."""
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_NUMBER = re.compile(r"(?<![\w.,])-?\d+(?:\.\d+)?|\d+(?:\.\d+)?")
_UNITS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "length": {
        "0.001": ("mm", "millimetre", "millimeter"),
        "0.01": ("cm", "centimetre", "centimeter"),
        "1": ("m", "metre", "meter"),
        "1000": ("km", "kilometre", "kilometer"),
        "0.0254": ("in", "inch", "inches"),
        "0.3048": ("ft", "foot", "feet"),
        "0.9144": ("yd", "yard"),
        "1609.344": ("mi", "mile"),
    },
    "weight": {
        "0.001": ("g", "gram"),
        "1": ("kg", "kilogram"),
        "1000": ("t", "tonne"),
        "0.028349523125": ("oz", "ounce"),
        "0.45359237": ("lb", "pound"),
    },
    "volume": {
        "0.001": ("ml", "millilitre", "milliliter"),
        "1": ("l", "litre", "liter"),
        "3.785411784": ("gal", "gallon"),
    },
    "time": {
        "1": ("s", "second"),
        "60": ("min", "minute"),
        "3600": ("h", "hour"),
        "86400": ("d", "day"),
        "604800": ("week",),
    },
}
"""What a unit is in the first of its kind, by its names; a plural ends in s."""
_SCALES = {"c": "celsius", "f": "fahrenheit", "k": "kelvin"}
_SCALE_NAMES = {**_SCALES, **{name: name for name in _SCALES.values()}}


@tool(inline=True)
def calculate(expression: str) -> int | float:
    """Evaluate an arithmetic expression.

    Args:
        expression: Numbers with + - * / // % ** and parentheses, such as (12.50 + 3) * 2.
    """
    try:
        return _number(evaluate(expression))
    except ExpressionError as error:
        raise ToolError(str(error)) from None


@tool(inline=True)
def sum_numbers(numbers: list[float]) -> int | float:
    """Add up numbers.

    Args:
        numbers: A list, such as [3.2, 4].
    """
    return _number(sum((_exact(number) for number in numbers), Fraction(0)))


@tool(inline=True)
def convert_units(
    value: float | list[float], from_unit: str, to_unit: str
) -> int | float | list[int | float]:
    """Convert a number, or each of a list, from one unit to another: length, weight, volume, time
    or temperature.

    Args:
        value: The number, or a list of numbers.
        from_unit: Such as miles, kg, days or celsius.
        to_unit: A unit of the same kind.
    """
    old, new = _unit(from_unit), _unit(to_unit)
    if old[0] != new[0]:
        raise ToolError(f"{from_unit!r} is a {old[0]} and {to_unit!r} is a {new[0]}")
    if isinstance(value, list):
        return [_converted(_exact(each), old[1], new[1]) for each in value]
    return _converted(_exact(value), old[1], new[1])


@tool(inline=True)
def add_days(date: str, days: int) -> str:
    """The date that lies a number of days after another.

    Args:
        date: Such as 2026-05-14.
        days: How many; below 0 for a date before.
    """
    try:
        return str(_date(date) + timedelta(days=days))
    except OverflowError:
        raise ToolError(f"{days} days from {date} is no date of the calendar") from None


@tool(inline=True)
def days_between(first: str, second: str) -> int:
    """How many days lie from the first date to the second; below 0 if the second is earlier.

    Args:
        first: Such as 2026-05-14.
        second: Such as 2026-06-01.
    """
    return (_date(second) - _date(first)).days


@tool(inline=True)
def weekday(date: str) -> str:
    """The day of the week of a date, such as Monday.

    Args:
        date: Such as 2026-05-14.
    """
    days = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    return days[_date(date).weekday()]


@tool(inline=True)
def count_words(text: str) -> int:
    """Count the words of a text.

    Args:
        text: The text itself.
    """
    return len(_bounded(text).split())


@tool(inline=True)
def replace_text(text: str, old: str, new: str) -> str:
    """Replace a part of a text each time that it occurs; returns the whole new text.

    Args:
        text: The text itself.
        old: The part to replace.
        new: What takes its place; empty to remove the part.
    """
    if not old:
        raise ToolError("the part to replace is empty; give the words to replace")
    count = _bounded(text).count(old)
    if not count:
        raise ToolError(f"{old[:80]!r} does not occur in the text")
    if len(text) + count * (len(new) - len(old)) > MAX_TEXT:
        raise ToolError(f"the new text has more than {MAX_TEXT:,} characters")
    return text.replace(old, new)


@tool(inline=True)
def sort_lines(text: str) -> str:
    """Sort the lines of a text alphabetically, upper and lower case alike.

    Args:
        text: The text itself.
    """
    lines = sorted(_bounded(text).splitlines(), key=lambda line: (line.casefold(), line))
    return "\n".join(lines) + ("\n" if text.endswith("\n") else "")


@tool(inline=True)
def extract_numbers(text: str) -> list[int | float]:
    """The numbers in a text, in their order, as a list.

    Args:
        text: The text itself.
    """
    found = _NUMBER.findall(_bounded(text))
    if long := [number for number in found if len(number) > 2 * MAX_DIGITS]:
        raise ToolError(f"the number {long[0][:20]}... has too many digits")
    return [_number(Fraction(number)) for number in found]


def _number(value: Fraction) -> int | float:
    """A value as JSON has it."""
    try:
        return value.numerator if value.denominator == 1 else float(value)
    except OverflowError:
        raise _too_large() from None


def _exact(number: float) -> Fraction:
    if not math.isfinite(number):
        raise _too_large()
    return Fraction(repr(number))


def _too_large() -> ToolError:
    return ToolError("the number is too large to work with")


def _date(text: str) -> date:
    try:
        if _DATE.fullmatch(text.strip()):
            return date.fromisoformat(text.strip())
    except ValueError:
        pass
    raise ToolError(f"{text[:40]!r} is not a date; write one as 2026-05-14")


def _bounded(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise ToolError(f"the text has more than {MAX_TEXT:,} characters")
    return text


def _unit(name: str) -> tuple[str, str]:
    """The kind of a unit, and its factor or its scale."""
    word = " ".join(name[:40].lower().replace("°", "").replace("degrees", "").split())
    if word in _SCALE_NAMES:
        return "temperature", _SCALE_NAMES[word]
    known = {n: (k, f) for k, units in _UNITS.items() for f, ns in units.items() for n in ns}
    for candidate in (word, word.removesuffix("s")):
        if candidate in known:
            return known[candidate]
    names = [unit for units in _UNITS.values() for (unit, *_) in units.values()]
    near = hint(word, [*known, *_SCALES.values()])
    raise ToolError(f"there is no unit {name[:40]!r}{near or '; units are ' + ', '.join(names)}")


def _converted(value: Fraction, old: str, new: str) -> int | float:
    if old in _SCALES.values():
        kelvin = {
            "celsius": value + Fraction("273.15"),
            "fahrenheit": (value + Fraction("459.67")) * 5 / 9,
            "kelvin": value,
        }[old]
        value = {
            "celsius": kelvin - Fraction("273.15"),
            "fahrenheit": kelvin * 9 / 5 - Fraction("459.67"),
            "kelvin": kelvin,
        }[new]
    else:
        value = value * Fraction(old) / Fraction(new)
    try:
        # Ten digits, as a pocket calculator shows them.
        return _number(Fraction(format(float(value), ".10g")))
    except OverflowError:
        raise _too_large() from None
