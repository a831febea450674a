"""The math grader: compare options, numbers, expressions and lists as mathematics.

Cheap and certain checks come first: equal text, option letters, then numbers (with a relative
tolerance of 1 %). Only expressions with variables that agree at several sample points are passed
to sympy, in a process that can be killed (`symbolic.py`). `formulas.py` evaluates formulas.

The answer of an equation is its right side: `5` for `x = 5` and `2 + 3 = 5`. The left side must be
a name, words, or an expression of the same value. An equation is rejected if its sides differ
(`6 = 5`), if a variable is left to be solved for (`x + 1 = 5`), or if its words negate it or leave
a choice.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

from tutelage.errors import GraderError, RewardError
from tutelage.rewards.answers import (
    LATEX_TEXT,
    NEGATION_OR_CHOICE,
    answer_text,
    find_marked_answer,
    is_number_word,
    normalise_text,
    plain_text,
    read_number,
    strip_period,
    strip_solution,
)
from tutelage.rewards.formulas import agree_at_samples, convert_latex, float_value, free_variables
from tutelage.rewards.function import reward
from tutelage.rewards.worker import RewardJob, RewardLocation, RewardProcesses
from tutelage.tools.expression import MAX_LENGTH, ExpressionError

TOLERANCE = 0.01
"""Relative tolerance (exclusive)."""
MIN_SCALE = 1e-10
"""Smallest divisor of a relative error, for true values near zero."""
MAX_NESTING = 8
"""Maximum depth of nested lists."""
SYMPY_SECONDS = 0.7
"""Timeout of one symbolic comparison, without the import of sympy."""

_OPTION_MARKS = str.maketrans("", "", " \t\r\n()[].:*")


_AROUND = re.compile(r"^(?:around|about|approximately|≈|~)\s*", re.IGNORECASE)
_CHOICE = re.compile(r"[<>!≤≥≠¬∨±]|==|\\(?:ne|neq|lnot|pm|geq?|leq?)\b|\b(?:or|and|not)\b")
_NAME = re.compile(
    r"\\?[A-Za-z]+(?:_(?:[A-Za-z0-9]|\{\w+\}))?['′]?(?:\s*\([^()]*\))?\Z"  # x, x_1, f(2), Area
)
_LAST_SUM = re.compile(r"(?:\A|(?<=[\s:,]))[-+]?[0-9(.][0-9+\-*/^(). ×·÷−]*\Z")
_UNIT = re.compile(r"[\s]*[-+$€£]?[0-9.,]+\s*([A-Za-z].*)", re.DOTALL)

_ONE_UNIT = re.compile(r"[-+$€£]*[0-9][0-9.,/]*\s*([A-Za-z]+?)s?(?:\^\{?([23])\}?)?\Z")
"""Matches the unit of `5 km^2` and its power."""
_RELATION = re.compile(r"([<>≤≥])")
_REVERSED = str.maketrans("<>≤≥", "><≥≤")

_HELPER = RewardProcesses(1, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
"""The helper process of this process, started on first use. It keeps no state between jobs. Threads
are limited because numpy's would use up its memory limit."""
_EQUAL = RewardLocation("tutelage.rewards.symbolic", "equal")


def symbolic_equal(first: str, second: str, seconds: float = SYMPY_SECONDS) -> bool | None:
    """Test two expressions for equality with sympy, or return None if time or memory ran out.

    Raises `GraderError` if the helper process cannot be started.
    """
    arguments = pickle.dumps({"first": first, "second": second})
    try:
        result = _HELPER.grade(RewardJob(_EQUAL, arguments, "math_grader", "", seconds))
    except (RewardError, TimeoutError):
        return None
    except (ImportError, OSError) as error:
        raise GraderError(
            f"the helper process for symbolic math did not start: {error}; run `python -m "
            "tutelage.rewards.symbolic` to see why"
        ) from error
    return result.value == 1.0


@reward(bounded=True)
def math_grader(prediction: str, answer: Any) -> dict[str, float]:
    """Return 1.0 if the final answer is mathematically equal to `answer`, else 0.0.

    `answer` is text, a number, or a list whose elements must match in order. Part `undecided` is
    1.0 if the symbolic check ran out of time or memory, which counts as wrong.
    """
    verdict = grade(prediction, answer, symbolic_equal)
    return {"reward": float(verdict is True), "undecided": float(verdict is None)}


def grade(prediction: str, answer: Any, symbolic: Callable[[str, str], bool | None]) -> bool | None:
    """Return True if a final text is correct, else False, or None if `symbolic` timed out."""
    answer, stated = strip_solution(answer), find_marked_answer(prediction)
    text = prediction if stated is None else stated
    if len(text) > MAX_LENGTH:
        return text.strip() == str(answer).strip()
    return _is_equal(plain_text(text), answer, symbolic, 0)


def _is_equal(
    predicted: str, truth: Any, symbolic: Callable[[str, str], bool | None], depth: int
) -> bool | None:
    elements, brackets, predicted_brackets = split_list(predicted), "", _find_brackets(predicted)
    if isinstance(truth, (list, tuple)):
        truths = cast("Sequence[Any]", truth)
    else:
        text = plain_text(answer_text(truth)).strip()
        if text and normalise_text(predicted) == normalise_text(text):
            return True
        truths, brackets = split_list(text), _find_brackets(text)
        if truths is None:
            truths, elements = _RELATION.split(text), _RELATION.split(predicted)
            if len(truths) == 1:
                return _is_equal_scalar(predicted, text, symbolic)
            if elements[1::2] != truths[1::2]:  # `5 > x` is `x < 5`
                elements = [part.translate(_REVERSED) for part in reversed(elements)]
    if elements is None or len(elements) != len(truths) or depth >= MAX_NESTING:
        return False
    # A list without brackets equals one in any brackets, but not a half-open interval.
    if brackets != predicted_brackets and brackets + predicted_brackets not in ("()", "[]", "{}"):
        return False
    remaining, undecided = list(elements), False
    for true_element in truths:
        for element in remaining if brackets == "{}" else remaining[:1]:  # sets are unordered
            verdict = _is_equal(element, true_element, symbolic, depth + 1)
            if verdict is not False:
                undecided = undecided or verdict is None
                remaining.remove(element)
                break
        else:
            return False
    return None if undecided else True


def _is_equal_scalar(
    predicted: str, truth: str, symbolic: Callable[[str, str], bool | None]
) -> bool | None:
    option = normalise_text(truth).translate(_OPTION_MARKS)
    if len(option) == 1 and option.isascii() and option.isalpha():
        return normalise_text(predicted).translate(_OPTION_MARKS) == option
    try:
        if not _is_valid_equation(predicted, truth):
            return False
        predicted, truth = _right_side(predicted), _right_side(truth)
        predicted_variables, true_variables = free_variables(predicted), free_variables(truth)
        if true_variables:
            # Extra variables could cancel, as in y + x - x, but that is not a final answer.
            if predicted_variables != true_variables:
                return False
            predicted, truth = convert_latex(predicted), convert_latex(truth)
            return agree_at_samples(predicted, truth, true_variables) and symbolic(predicted, truth)
        true_value = float_value(truth)
        value = float_value(predicted)
    except ExpressionError:
        return False
    return _is_close(value, true_value) and not _have_different_units(predicted, truth)


def _is_close(value: float, true_value: float) -> bool:
    return abs(value - true_value) / max(abs(true_value), MIN_SCALE) < TOLERANCE


def _is_valid_equation(predicted: str, truth: str) -> bool:
    """Return False if a text is an equation whose right side is not its answer, else True.

    Raises `ExpressionError` if the right side cannot be evaluated.
    """
    lefts = _left_sides(predicted)
    if not lefts:
        return True
    true_names = [left for left in _left_sides(truth) if _is_name(left)]
    if true_names and _is_name(lefts[0]) and lefts[0].strip("$ ") != true_names[0].strip("$ "):
        return False  # `y = 5` instead of `x = 5`
    right = _right_side(predicted)
    letters = free_variables(right)
    for index, left in enumerate(lefts):
        if letters:
            if _is_name(left):
                continue
            plain = convert_latex(left), convert_latex(right)
            if free_variables(left) != letters or not agree_at_samples(*plain, letters):
                return False
            continue
        if NEGATION_OR_CHOICE.search(left) or is_number_word(left):
            return False
        left = strip_period(_AROUND.sub("", left))
        first, second = _UNIT.match(left), _UNIT.match(right)
        converts = first and second and first[1].strip() != second[1].strip()
        if _is_name(left) or converts:  # `1 hour = 60 minutes`
            continue
        try:
            if not _is_close(float_value(left), float_value(right)):
                return False
        except ExpressionError:
            if not _is_consistent_sum(left, index, float_value(right)):
                return False
    return True


def _right_side(text: str) -> str:
    """Return the right side `X` of `... = X` or `= around X`, or the text if it has no `=`.

    Inequalities, and texts that leave a choice (`x = 5 or x = 6`), are returned whole.
    """
    if not _CHOICE.search(text):
        text = text.rpartition("=")[2]
    return strip_period(_AROUND.sub("", text.strip()).strip())


def _left_sides(text: str) -> list[str]:
    """Return the parts of an equation before each `=`, or none if it cannot be split."""
    return [] if _CHOICE.search(text) else [part.strip() for part in text.split("=")[:-1]]


def _is_name(text: str) -> bool:
    """Return True if the left side of an equation is empty, a variable or a single word."""
    return bool(_NAME.match(text.strip(" $"))) or not text


def _is_consistent_sum(left: str, index: int, expected: float) -> bool:
    """Return True if the sum at the end of the left side has the `expected` value.

    A left side without a sum must be words. `index` is its position among the left sides.
    """
    match = _LAST_SUM.search(left)
    if match is not None:
        try:
            return _is_close(float_value(match.group()), expected)
        except ExpressionError:
            return False
    # `x = 6 y = 5` has two answers; `x + 1` and `2x` are not names; `Step 2: x` and words are.
    has_digit = any(ch.isdigit() for ch in left)
    return not has_digit or (index == 0 and bool(re.search(r"[A-Za-z]{2}", left)))


def _have_different_units(predicted: str, truth: str) -> bool:
    """Return True if two numbers have units of different power or symbol, such as `km` and `m`.

    Unit words are not compared, because a unit has many names.
    """
    texts = (LATEX_TEXT.sub(r"\1", text).strip("$ ") for text in (predicted, truth))
    first, second = map(_ONE_UNIT.match, texts)
    if first is None or second is None:
        return False
    short, long = sorted((first[1], second[1]), key=len)
    symbols = len(long) <= 3 and not long.startswith(short)  # `s` and `sec`, `h` and `hr`
    return first[2] != second[2] or symbols


def split_list(text: str) -> list[str] | None:
    """Split a list such as `[a, b]`, `{a, b}` or `a; b`, or return None for a single value."""
    text = text.strip()
    if len(text) > MAX_LENGTH or read_number(text) is not None:
        return None
    brackets = _find_brackets(text)
    parts = _split_top_level(text[1:-1] if brackets else text)
    # Round brackets around one value only group it.
    return parts if parts and (len(parts) > 1 or brackets in ("[]", "{}")) else None


def _find_brackets(text: str) -> str:
    """Return the outer brackets of a text, such as `[)`, or an empty string."""
    text = text.strip()
    pair = text[:1] + text[-1:]
    inside = re.fullmatch(r"[(\[{][)\]}]", pair) and _split_top_level(text[1:-1])
    return pair if inside else ""


def _split_top_level(text: str) -> list[str] | None:
    """Split text at commas and semicolons outside brackets, or return None if unbalanced."""
    parts: list[str] = []
    depth, begin = 0, 0
    for i, ch in enumerate(text):
        depth += (ch in "([{") - (ch in ")]}")
        if depth < 0:
            return None
        if ch in ",;" and not depth:
            parts.append(text[begin:i])
            begin = i + 1
    return [part.strip().strip("'\"") for part in [*parts, text[begin:]]]
