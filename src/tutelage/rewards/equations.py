"""What a text that is an equation claims: `5` of `x = 5` and of `2 + 3 = 5`, nothing of `6 = 5`.

The value of an equation is its right side, if the left side lets it be: a name, words, or something
of the same value. A left side of another value, one that leaves a letter to be solved for
(`x + 1 = 5`), and one whose words deny or leave a choice claim nothing. Only numbers are compared
here; how a number is read is the math grader's affair, which gives it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tutelage.rewards.wording import DENIED_OR_OPEN, is_number_word
from tutelage.tools.expression import ExpressionError

_AROUND = re.compile(r"^(?:around|about|approximately|≈|~)\s*", re.IGNORECASE)
_CHOICE = re.compile(r"[<>!≤≥≠¬∨±]|==|\\(?:ne|neq|lnot|pm|geq?|leq?)\b|\b(?:or|and|not)\b")
_NAME = re.compile(
    r"\\?[A-Za-z]+(?:_(?:[A-Za-z0-9]|\{\w+\}))?['′]?(?:\s*\([^()]*\))?\Z"  # x, x_1, f(2), Area
)
_LAST_SUM = re.compile(r"(?:\A|(?<=[\s:,]))[-+]?[0-9(.][0-9+\-*/^(). ×·÷−]*\Z")
_UNIT = re.compile(r"[\s]*[-+$€£]?[0-9.,]+\s*([A-Za-z].*)", re.DOTALL)

Value = Callable[[str], float]
"""The number that a text is; raises `ExpressionError`."""


def right_side(text: str) -> str:
    """`X` of `... = X`, of `= around X`, and of a plain `X`.

    Inequalities, and texts that leave a choice (`x = 5 or x = 6`), stay whole.
    """
    if not _CHOICE.search(text):
        text = text.rpartition("=")[2]
    return without_period(_AROUND.sub("", text.strip()).strip())


def without_period(text: str) -> str:
    """The text without the period that ends it.

    `5...` goes on and stays as it is; of `3.33...` the digits are what was meant.
    """
    bare = text.rstrip(".")
    cut = len(text) - len(bare)
    return text if cut > 1 and re.search(r"(?<![0-9.])[0-9]+\Z", bare) else bare


def left_sides(text: str) -> list[str]:
    """What stands before each `=`; none where `right_side` leaves the text whole."""
    return [] if _CHOICE.search(text) else [part.strip() for part in text.split("=")[:-1]]


def is_name(text: str) -> bool:
    """Whether a left side is a letter or a word that the right side is the value of."""
    return bool(_NAME.match(text.strip(" $"))) or not text


def claims(text: str, value: Value, same: Callable[[float, float], bool]) -> bool:
    """Whether an equation between numbers gives its right side as the answer.

    True of a text without `=`. Raises `ExpressionError` where the right side is no number.
    """
    right = right_side(text)
    for place, left in enumerate(left_sides(text)):
        if DENIED_OR_OPEN.search(left) or is_number_word(left):
            return False
        left = without_period(_AROUND.sub("", left))
        if is_name(left) or _other_unit(left, right):
            continue
        try:
            if not same(value(left), value(right)):
                return False
        except ExpressionError:
            if not _words_allow(left, place, value(right), value, same):
                return False
    return True


def _words_allow(
    left: str, place: int, wanted: float, value: Value, same: Callable[[float, float], bool]
) -> bool:
    """Whether `So the total is 2 + 3` allows `= 5`: its last sum has that value, if it has one."""
    found = _LAST_SUM.search(left)
    if found is not None:
        try:
            return same(value(found.group()), wanted)
        except ExpressionError:
            return False
    # `x = 6 y = 5` answers twice; `x + 1` and `2x` are no names; `Step 2: x` and words are.
    has_digit = any(ch.isdigit() for ch in left)
    return not has_digit or (place == 0 and bool(re.search(r"[A-Za-z]{2}", left)))


def _other_unit(left: str, right: str) -> bool:
    """Whether both are numbers of different units, as in `1 hour = 60 minutes`."""
    one, other = _UNIT.match(left), _UNIT.match(right)
    return one is not None and other is not None and one[1].strip() != other[1].strip()
