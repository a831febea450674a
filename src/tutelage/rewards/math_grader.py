"""The math grader: options, numbers, expressions and lists, compared as mathematics.

Cheap and certain checks come first: equal text, option letters, then numbers (with a relative
tolerance of 1 %). Only two expressions with variables that agree at several sample points reach
sympy, in a process that can be killed (`symbolic.py`). How a formula becomes a number is
`formulas.py`.

A text that is an equation claims its right side: `5` of `x = 5` and of `2 + 3 = 5`, nothing of
`6 = 5`. The left side has to let it: it is a name, words, or something of the same value. One of
another value, one that leaves a letter to be solved for (`x + 1 = 5`), and one whose words deny or
leave a choice claim nothing.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

from tutelage.errors import GraderError, RewardError
from tutelage.rewards.answers import (
    DENIED_OR_OPEN,
    LATEX_TEXT,
    answer_text,
    is_number_word,
    normalise_text,
    plain_text,
    read_number,
    stated_answer,
    true_answer,
    without_period,
)
from tutelage.rewards.formulas import agree_at_samples, float_value, plain_math, variables_of
from tutelage.rewards.function import reward
from tutelage.rewards.worker import RewardJob, RewardLocation, RewardProcesses
from tutelage.tools.expression import MAX_LENGTH, ExpressionError

TOLERANCE = 0.01
"""Relative, strictly below."""
TINY = 1e-10
"""What a true value of zero is measured against."""
MAX_NESTING = 8
"""Lists within lists."""
QUESTION_SECONDS = 0.7
"""For one question to sympy; importing it is no part of that."""

_OPTION_MARKS = str.maketrans("", "", " \t\r\n()[].:*")


_AROUND = re.compile(r"^(?:around|about|approximately|≈|~)\s*", re.IGNORECASE)
_CHOICE = re.compile(r"[<>!≤≥≠¬∨±]|==|\\(?:ne|neq|lnot|pm|geq?|leq?)\b|\b(?:or|and|not)\b")
_NAME = re.compile(
    r"\\?[A-Za-z]+(?:_(?:[A-Za-z0-9]|\{\w+\}))?['′]?(?:\s*\([^()]*\))?\Z"  # x, x_1, f(2), Area
)
_LAST_SUM = re.compile(r"(?:\A|(?<=[\s:,]))[-+]?[0-9(.][0-9+\-*/^(). ×·÷−]*\Z")
_UNIT = re.compile(r"[\s]*[-+$€£]?[0-9.,]+\s*([A-Za-z].*)", re.DOTALL)

_ONE_UNIT = re.compile(r"[-+$€£]*[0-9][0-9.,/]*\s*([A-Za-z]+?)s?(?:\^\{?([23])\}?)?\Z")
"""The unit of `5 km^2`, and its power."""
_RELATION = re.compile(r"([<>≤≥])")
_TURNED = str.maketrans("<>≤≥", "><≥≤")

_HELPER = RewardProcesses(1, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
"""One helper process for this process, started only when an answer needs it. It keeps nothing from
one question to the next. Threads of numpy would take from the memory that it may use."""
_EQUAL = RewardLocation("tutelage.rewards.symbolic", "equal")


def symbolic_equal(first: str, second: str, seconds: float = QUESTION_SECONDS) -> bool | None:
    """Whether two expressions are equal, decided by sympy; None when time or memory ran out.

    Raises `GraderError` when the helper cannot be started.
    """
    question = pickle.dumps({"first": first, "second": second})
    try:
        graded = _HELPER.grade(RewardJob(_EQUAL, question, "math_grader", "", seconds))
    except (RewardError, TimeoutError):
        return None
    except (ImportError, OSError) as error:
        raise GraderError(
            f"the helper process for symbolic math did not start: {error}; run `python -m "
            "tutelage.rewards.symbolic` to see why"
        ) from error
    return graded.value == 1.0


@reward(bounded=True)
def math_grader(prediction: str, answer: Any) -> dict[str, float]:
    """1.0 when the final answer equals `answer` as mathematics, else 0.0.

    `answer` is text, a number, or a list whose elements must match in order. Part `undecided` is
    1.0 when the symbolic check ran out of time or memory, which counts as wrong.
    """
    verdict = grade(prediction, answer, symbolic_equal)
    return {"reward": float(verdict is True), "undecided": float(verdict is None)}


def grade(prediction: str, answer: Any, symbolic: Callable[[str, str], bool | None]) -> bool | None:
    """Whether a final text answers `answer`; None when `symbolic` could not decide in time."""
    answer, stated = true_answer(answer), stated_answer(prediction)
    text = prediction if stated is None else stated
    if len(text) > MAX_LENGTH:
        return text.strip() == str(answer).strip()
    return _same(plain_text(text), answer, symbolic, 0)


def _same(
    given: str, truth: Any, symbolic: Callable[[str, str], bool | None], depth: int
) -> bool | None:
    elements, brackets, given_brackets = split_list(given), "", _brackets(given)
    if isinstance(truth, (list, tuple)):
        truths = cast("Sequence[Any]", truth)
    else:
        text = plain_text(answer_text(truth)).strip()
        if text and normalise_text(given) == normalise_text(text):
            return True
        truths, brackets = split_list(text), _brackets(text)
        if truths is None:
            truths, elements = _RELATION.split(text), _RELATION.split(given)
            if len(truths) == 1:
                return _same_scalar(given, text, symbolic)
            if elements[1::2] != truths[1::2]:  # `5 > x` is `x < 5`
                elements = [part.translate(_TURNED) for part in reversed(elements)]
    if elements is None or len(elements) != len(truths) or depth >= MAX_NESTING:
        return False
    # A list without brackets equals one in any pair; a half-open interval is no list.
    if brackets != given_brackets and brackets + given_brackets not in ("()", "[]", "{}"):
        return False
    left, undecided = list(elements), False
    for true_element in truths:
        for element in left if brackets == "{}" else left[:1]:  # a set has no order
            verdict = _same(element, true_element, symbolic, depth + 1)
            if verdict is not False:
                undecided = undecided or verdict is None
                left.remove(element)
                break
        else:
            return False
    return None if undecided else True


def _same_scalar(
    given: str, truth: str, symbolic: Callable[[str, str], bool | None]
) -> bool | None:
    option = normalise_text(truth).translate(_OPTION_MARKS)
    if len(option) == 1 and option.isascii() and option.isalpha():
        return normalise_text(given).translate(_OPTION_MARKS) == option
    try:
        if not _claims(given, truth):
            return False
        given, truth = _right_side(given), _right_side(truth)
        given_variables, true_variables = variables_of(given), variables_of(truth)
        if true_variables:
            # Other letters could still cancel, as in y + x - x; that is no final answer.
            if given_variables != true_variables:
                return False
            given, truth = plain_math(given), plain_math(truth)
            return agree_at_samples(given, truth, true_variables) and symbolic(given, truth)
        true_value = float_value(truth)
        value = float_value(given)
    except ExpressionError:
        return False
    return _close(value, true_value) and not _units_differ(given, truth)


def _close(value: float, true_value: float) -> bool:
    return abs(value - true_value) / max(abs(true_value), TINY) < TOLERANCE


def _claims(given: str, truth: str) -> bool:
    """Whether a text that is an equation gives its right side as the answer.

    Raises `ExpressionError` where its right side is nothing that could be compared.
    """
    lefts = _left_sides(given)
    if not lefts:
        return True
    named = [left for left in _left_sides(truth) if _is_name(left)]
    if named and _is_name(lefts[0]) and lefts[0].strip("$ ") != named[0].strip("$ "):
        return False  # `y = 5` where `x = 5` was asked for
    right = _right_side(given)
    letters = variables_of(right)
    for place, left in enumerate(lefts):
        if letters:
            if _is_name(left):
                continue
            plain = plain_math(left), plain_math(right)
            if variables_of(left) != letters or not agree_at_samples(*plain, letters):
                return False
            continue
        if DENIED_OR_OPEN.search(left) or is_number_word(left):
            return False
        left = without_period(_AROUND.sub("", left))
        one, other = _UNIT.match(left), _UNIT.match(right)
        converts = one is not None and other is not None and one[1].strip() != other[1].strip()
        if _is_name(left) or converts:  # `1 hour = 60 minutes`
            continue
        try:
            if not _close(float_value(left), float_value(right)):
                return False
        except ExpressionError:
            if not _words_allow(left, place, float_value(right)):
                return False
    return True


def _right_side(text: str) -> str:
    """`X` of `... = X`, of `= around X`, and of a plain `X`.

    Inequalities, and texts that leave a choice (`x = 5 or x = 6`), stay whole.
    """
    if not _CHOICE.search(text):
        text = text.rpartition("=")[2]
    return without_period(_AROUND.sub("", text.strip()).strip())


def _left_sides(text: str) -> list[str]:
    """What stands before each `=`; none where `_right_side` leaves the text whole."""
    return [] if _CHOICE.search(text) else [part.strip() for part in text.split("=")[:-1]]


def _is_name(text: str) -> bool:
    """Whether a left side is a letter or a word that the right side is the value of."""
    return bool(_NAME.match(text.strip(" $"))) or not text


def _words_allow(left: str, place: int, wanted: float) -> bool:
    """Whether `So the total is 2 + 3` allows `= 5`: its last sum has that value, if it has one."""
    match = _LAST_SUM.search(left)
    if match is not None:
        try:
            return _close(float_value(match.group()), wanted)
        except ExpressionError:
            return False
    # `x = 6 y = 5` answers twice; `x + 1` and `2x` are no names; `Step 2: x` and words are.
    has_digit = any(ch.isdigit() for ch in left)
    return not has_digit or (place == 0 and bool(re.search(r"[A-Za-z]{2}", left)))


def _units_differ(given: str, truth: str) -> bool:
    """Whether both numbers have units, of another power or of another symbol, as `km` and `m`.

    Words are not compared: a unit has many names.
    """
    texts = (LATEX_TEXT.sub(r"\1", text).strip("$ ") for text in (given, truth))
    one, other = map(_ONE_UNIT.match, texts)
    if one is None or other is None:
        return False
    short, long = sorted((one[1], other[1]), key=len)
    symbols = len(long) <= 3 and not long.startswith(short)  # `s` and `sec`, `h` and `hr`
    return one[2] != other[2] or symbols


def split_list(text: str) -> list[str] | None:
    """The elements of `[a, b]`, `(a, b)`, `{a, b}`, `a, b` or `a; b`; None for a single value."""
    text = text.strip()
    if len(text) > MAX_LENGTH or read_number(text) is not None:
        return None
    brackets = _brackets(text)
    parts = _split_top(text[1:-1] if brackets else text)
    # Round brackets around one value only group it.
    return parts if parts and (len(parts) > 1 or brackets in ("[]", "{}")) else None


def _brackets(text: str) -> str:
    """Return the pair of brackets around a text, such as `[)`, or an empty text."""
    text = text.strip()
    pair = text[:1] + text[-1:]
    inside = re.fullmatch(r"[(\[{][)\]}]", pair) and _split_top(text[1:-1])
    return pair if inside else ""


def _split_top(text: str) -> list[str] | None:
    """Split at the commas or semicolons that stand in no bracket; None when brackets cross."""
    parts: list[str] = []
    depth, begin = 0, 0
    for at, ch in enumerate(text):
        depth += (ch in "([{") - (ch in ")]}")
        if depth < 0:
            return None
        if ch in ",;" and not depth:
            parts.append(text[begin:at])
            begin = at + 1
    return [part.strip().strip("'\"") for part in [*parts, text[begin:]]]
