"""Rewards that compare the final answer with the task's `answer`, without symbolic maths.

`exact_number` is the reward of the embedded job and of `--reward math`. All run on the event loop,
because their time is bounded on any text (see `answers.py`). `math_grader.py` grades expressions.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from tutelage.rewards.answers import (
    answer_text,
    find_last_box,
    find_last_number,
    find_number,
    normalise_text,
    read_number,
    strip_solution,
)
from tutelage.rewards.function import reward

EXACT_TOLERANCE = Fraction(1, 10**9)
"""Relative tolerance; allows for the calculator's rounding at the tenth significant digit."""
PARTIAL_TOLERANCE = Fraction(1, 10)
"""Largest relative error for which `numeric_partial_credit` gives partial credit."""


def _is_same_number(predicted: Fraction, truth: Fraction) -> bool:
    """Compare two numbers, exactly for integers, else within `EXACT_TOLERANCE`."""
    if predicted.denominator == 1 and truth.denominator == 1:
        return predicted == truth
    return _relative_error(predicted, truth) <= EXACT_TOLERANCE


@reward(inline=True)
def exact_number(prediction: str, answer: Any) -> float:
    """Return 1.0 if the final answer is the number `answer`, else 0.0.

    An `answer` that is not a number is compared as text.
    """
    truth = read_number(strip_solution(answer))
    if truth is None:
        return _score_text(prediction, answer)
    predicted = find_number(prediction)
    return 1.0 if predicted is not None and _is_same_number(predicted, truth) else 0.0


@reward(inline=True)
def math_reward_string_equal(prediction: str, answer: Any) -> float:
    """Return 1.0 if the last number of the final text, or of its last box, equals `answer`.

    Numbers must be equal without tolerance (`72.0` equals `72`). The text before the last number
    is ignored, so a list of numbers is graded by its last one; a part of a number, such as 5 in
    `3/5` or 28 in `28%`, is not read. An `answer` that is not a number is compared as text with
    the content of the box, or with the whole text.
    """
    truth = read_number(strip_solution(answer))
    boxed = find_last_box(prediction)
    if truth is None:
        return _score_text(prediction if boxed is None else boxed, answer)
    return float(find_last_number(prediction if boxed is None else boxed) == truth)


@reward(inline=True)
def exact_text(prediction: str, answer: Any) -> float:
    """Return 1.0 if the final text equals `answer`, ignoring case, spacing and `$`."""
    return _score_text(prediction, answer)


@reward(inline=True)
def numeric_partial_credit(prediction: str, answer: Any) -> dict[str, float]:
    """Return 1.0 for the exact number, 1.0 to 0.5 for errors up to 10 %, and 0.0 otherwise.

    The number is read from `answer is X`, `result: X`, or a text that is only a number. Part
    `exact` is 1.0 only for the exact number.
    """
    truth, predicted = read_number(strip_solution(answer)), find_number(prediction)
    if truth is None or predicted is None:
        return {"reward": 0.0, "exact": 0.0}
    if _is_same_number(predicted, truth):
        return {"reward": 1.0, "exact": 1.0}
    error = _relative_error(predicted, truth)
    credit = 1.0 - 5.0 * float(error) if error <= PARTIAL_TOLERANCE else 0.0
    return {"reward": credit, "exact": 0.0}


def _score_text(prediction: str, answer: Any) -> float:
    truth = normalise_text(answer_text(answer))
    return 1.0 if truth and normalise_text(prediction) == truth else 0.0


def _relative_error(predicted: Fraction, truth: Fraction) -> Fraction:
    """Compute `|predicted - truth| / max(|truth|, 1e-10)` exactly."""
    return abs(predicted - truth) / max(abs(truth), Fraction(1, 10**10))
