"""Rewards that compare the final answer with the task's `answer`, without any symbolic maths.

`exact_number` is the reward of the embedded job and what `--reward math` means. All run on the
event loop: they are bounded in time on any text (see `answers.py`). The grader for expressions is
`math_grader.py`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from tutelage.rewards.answers import (
    answer_text,
    find_number,
    last_box,
    last_number,
    normalise_text,
    read_number,
    true_answer,
)
from tutelage.rewards.function import reward

EXACT_TOLERANCE = Fraction(1, 10**9)
"""Relative; forgives the tenth significant digit, where the calculator rounds."""
PARTIAL_TOLERANCE = Fraction(1, 10)
"""Relative error up to which `numeric_partial_credit` gives something."""


def _same_number(given: Fraction, truth: Fraction) -> bool:
    """Equal; or, where one of them is not whole, equal but for rounding."""
    if given.denominator == 1 and truth.denominator == 1:
        return given == truth
    return _relative_error(given, truth) <= EXACT_TOLERANCE


@reward(inline=True)
def exact_number(prediction: str, answer: Any) -> float:
    """1.0 when the final answer is the number `answer`, else 0.0.

    An `answer` that is no number is compared as text.
    """
    truth = read_number(true_answer(answer))
    if truth is None:
        return _same_text(prediction, answer)
    fraction = find_number(prediction)
    return 1.0 if fraction is not None and _same_number(fraction, truth) else 0.0


@reward(inline=True)
def math_reward_string_equal(prediction: str, answer: Any) -> float:
    """1.0 when the last number of the final text, or of its last box, is `answer`.

    The number counts as text does: `72.0` is `72`, and within no tolerance. Whatever stands before
    it is not read, so a text that lists numbers earns 1.0 for its last one; a part of a number,
    as 5 of `3/5` and 28 of `28%`, is none. An `answer` that is no number must be what the box
    holds, or the whole text.
    """
    truth = read_number(true_answer(answer))
    boxed = last_box(prediction)
    if truth is None:
        return _same_text(prediction if boxed is None else boxed, answer)
    return float(last_number(prediction if boxed is None else boxed) == truth)


@reward(inline=True)
def exact_text(prediction: str, answer: Any) -> float:
    """1.0 when the final text equals `answer` after normalising case, spacing and `$`."""
    return _same_text(prediction, answer)


@reward(inline=True)
def numeric_partial_credit(prediction: str, answer: Any) -> dict[str, float]:
    """1.0 for the exact number; within 10 % from 1.0 falling to 0.5; else 0.0.

    The number is read from `answer is X`, `result: X`, or a text that is only a number. Part
    `exact` is 1.0 for the exact number alone.
    """
    truth, fraction = read_number(true_answer(answer)), find_number(prediction)
    if truth is None or fraction is None:
        return {"reward": 0.0, "exact": 0.0}
    if _same_number(fraction, truth):
        return {"reward": 1.0, "exact": 1.0}
    error = _relative_error(fraction, truth)
    credit = 1.0 - 5.0 * float(error) if error <= PARTIAL_TOLERANCE else 0.0
    return {"reward": credit, "exact": 0.0}


def _same_text(prediction: str, answer: Any) -> float:
    truth = normalise_text(answer_text(answer))
    return 1.0 if truth and normalise_text(prediction) == truth else 0.0


def _relative_error(given: Fraction, truth: Fraction) -> Fraction:
    """`|given - truth| / max(|truth|, 1e-10)`, exactly."""
    return abs(given - truth) / max(abs(truth), Fraction(1, 10**10))
