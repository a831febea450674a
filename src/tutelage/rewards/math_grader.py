"""The math grader: options, numbers, expressions and lists, compared as mathematics.

Cheap and certain checks come first: equal text, option letters, then numbers (with a relative
tolerance of 1 %). Only two expressions with variables that agree at several sample points reach
sympy, in a process that can be killed (`symbolic.py`). Nothing a model wrote is ever evaluated as
code: expressions are read by the calculator's parser (`tutelage.tools.expression`) with the
algebra of floats below.
"""

from __future__ import annotations

import math
import operator
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from tutelage.errors import GraderError
from tutelage.rewards.answers import (
    leading_number,
    normalise_text,
    read_number,
    stated_answer,
    true_answer,
)
from tutelage.rewards.equations import claims, is_name, left_sides, right_side
from tutelage.rewards.function import reward
from tutelage.rewards.wording import CHANGES_IT, is_unit
from tutelage.rewards.worker import Job, Place, Pool, UnloadableError
from tutelage.tools.expression import MAX_LENGTH, ExpressionError, parse

TOLERANCE = 0.01
"""Relative, strictly below."""
TINY = 1e-10
"""What a true value of zero is measured against."""
MAX_NESTING = 8
"""Lists within lists."""
QUESTION_SECONDS = 0.7
"""For one question to sympy; importing it is no part of that."""

_SAMPLES = 8
_OPTION_MARKS = str.maketrans("", "", " \t\r\n()[].:*")
_MIXED_NUMBER = re.compile(r"[0-9]\s*\\[dt]?frac")
_LATEX_GROUPS = (
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"((\1)/(\2))"),
    (re.compile(r"\\[dt]?frac\s*([0-9])\s*([0-9])"), r"((\1)/(\2))"),
    (re.compile(r"\\sqrt\s*\{([^{}]*)\}"), r" sqrt(\1)"),
    (re.compile(r"\\sqrt\s*([0-9a-z])(?![0-9a-z])"), r" sqrt(\1)"),
    (re.compile(r"\^\s*\{([^{}]*)\}"), r"^(\1)"),
)
_LATEX_UNIT = re.compile(
    r"(?<=[^\s\\{(])\s*(?:\\[,;! ]\s*)*\\(?:text|mathrm)\s*\{([^{}]*)\}(?:\s*\^\s*\{?[23]\}?)?\s*\Z"
)
_UPRIGHT_UNIT = re.compile(rf"\s*(?:[msghlLNJWVACF]\s*\Z|(?!(?i:{CHANGES_IT})\b)[A-Za-z])")
"""Words, or one letter that upright is a unit; an upright `i`, `e` or `k` is none."""
_LATEX_TEXT = re.compile(r"\\(?:text|mathrm)\s*\{([^{}]*)\}")
_LATEX_WORDS = (
    (re.compile(r"\\(?:left|right|[,;! ])"), ""),
    (re.compile(r"\\(?:cdot|times)\b"), "*"),
    (re.compile(r"\\div\b"), "/"),
    (re.compile(r"\\(pi|sin|cos|tan|log|ln|exp)\b"), r" \1"),
    (re.compile(r"\\([%$()])"), r"\1"),
)
_FLOAT_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "ln": math.log,
    "abs": abs,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
}
_FLOAT_OPERATORS: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": math.pow,
}
_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e}


_HELPER = Pool(1)
"""One helper process for this process, started only when an answer needs it. It keeps nothing from
one question to the next."""
_EQUAL = Place("tutelage.rewards.symbolic", "equal")


def symbolic_equal(first: str, second: str, seconds: float = QUESTION_SECONDS) -> bool | None:
    """Whether two expressions are equal, asked of sympy; None when time or memory ran out.

    Raises `GraderError` when the helper cannot be started.
    """
    question = pickle.dumps({"first": first, "second": second})
    try:
        found = _HELPER.run(Job(_EQUAL, question, "math_grader", ""), seconds)
    except GraderError:
        return None
    except (UnloadableError, OSError) as error:
        raise GraderError(
            f"the helper process for symbolic maths did not start: {error}; run `python -m "
            "tutelage.rewards.symbolic` to see why"
        ) from error
    return found.value == 1.0 if found.error is None else None


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
    given = prediction if stated is None else stated
    if len(given) > MAX_LENGTH:
        return given.strip() == str(answer).strip()
    return _same(given, answer, symbolic, 0)


def _same(
    given: str, truth: Any, symbolic: Callable[[str, str], bool | None], depth: int
) -> bool | None:
    if isinstance(truth, (list, tuple)):
        truths = cast("Sequence[Any]", truth)
    else:
        text = str(truth).strip()
        if text and normalise_text(given) == normalise_text(text):
            return True
        listed = split_list(text)
        if listed is None:
            return _same_scalar(given, text, symbolic)
        truths = listed
    elements = split_list(given)
    if elements is None or len(elements) != len(truths) or depth >= MAX_NESTING:
        return False
    undecided = False
    for element, true_element in zip(elements, truths, strict=True):
        verdict = _same(element, true_element, symbolic, depth + 1)
        if verdict is False:
            return False
        undecided = undecided or verdict is None
    return None if undecided else True


def _same_scalar(
    given: str, truth: str, symbolic: Callable[[str, str], bool | None]
) -> bool | None:
    option = truth.translate(_OPTION_MARKS)
    if len(option) == 1 and option.isascii() and option.isalpha():
        return given.translate(_OPTION_MARKS).casefold() == option.casefold()
    try:
        if not _claims(given, truth):
            return False
        given, truth = right_side(given), right_side(truth)
        given_variables, true_variables = _variables_of(given), _variables_of(truth)
        if true_variables:
            return _same_expression(given, truth, given_variables, true_variables, symbolic)
        true_value = float_value(truth)
        value = float_value(given)
    except ExpressionError:
        return False
    return _close(value, true_value)


def _close(value: float, true_value: float) -> bool:
    return abs(value - true_value) / max(abs(true_value), TINY) < TOLERANCE


def _claims(given: str, truth: str) -> bool:
    """Whether a text that is an equation gives its right side as the answer.

    Raises `ExpressionError` where its right side is nothing that could be compared.
    """
    lefts = left_sides(given)
    if not lefts:
        return True
    named = [left for left in left_sides(truth) if is_name(left)]
    if named and is_name(lefts[0]) and lefts[0].strip("$ ") != named[0].strip("$ "):
        return False  # `y = 5` where `x = 5` was asked for
    right = right_side(given)
    letters = _variables_of(right)
    if not letters:
        return claims(given, float_value, _close)
    return all(
        is_name(left)
        or (
            _variables_of(left) == letters
            and _agree_at_samples(_plain_math(left), _plain_math(right), letters)
        )
        for left in lefts
    )


def _same_expression(
    given: str,
    truth: str,
    given_variables: frozenset[str],
    true_variables: frozenset[str],
    symbolic: Callable[[str, str], bool | None],
) -> bool | None:
    # Other letters could still cancel, as in y + x - x; that is no final answer.
    if given_variables != true_variables:
        return False
    given, truth = _plain_math(given), _plain_math(truth)
    return _agree_at_samples(given, truth, true_variables) and symbolic(given, truth)


def split_list(text: str) -> list[str] | None:
    """The elements of `[a, b]`, `(a, b)`, `{a, b}`, `a, b` or `a; b`; None for a single value."""
    text = text.strip()
    if len(text) > MAX_LENGTH or read_number(text) is not None:
        return None
    if text[:1] + text[-1:] in ("[]", "{}", "()"):
        parts = _split_top(text[1:-1])
        # Round brackets around one value only group it.
        if parts is not None and (len(parts) > 1 or text[0] != "("):
            return parts
    parts = _split_top(text)
    return parts if parts is not None and len(parts) > 1 else None


def _plain_math(text: str) -> str:
    """LaTeX as the grammar of expressions; what cannot be translated is left and then refused."""
    if _MIXED_NUMBER.search(text):
        # 2\\frac{1}{2} means 2.5 to some and 1 to others.
        raise ExpressionError("a mixed number has no certain value")
    text = _with_words(text.replace("\\$", "").replace("$", "").replace("π", " pi ").strip())
    for pattern, replacement in _LATEX_WORDS:
        text = pattern.sub(replacement, text)
    for _ in range(20):
        before = text
        for pattern, replacement in _LATEX_GROUPS:
            text = pattern.sub(replacement, text)
        if text == before:
            break
    return text.strip()


def _with_words(text: str) -> str:
    r"""The text without the unit that ends it in `\text{}`; other such words as plain words."""
    unit = _LATEX_UNIT.search(text)
    if unit is not None and _UPRIGHT_UNIT.match(unit[1]) and is_unit(unit[1]):
        text = text[: unit.start()]
    return _LATEX_TEXT.sub(r" \1 ", text)


def float_value(text: str) -> float:
    """The value of a number, with or without a unit, or of an expression without variables.

    Raises `ExpressionError`.
    """
    number = read_number(text)
    try:
        if number is not None:
            return float(number)
        try:
            plain = _plain_math(text)
            # What was LaTeX may be a number now, as `50\\%` is.
            number = read_number(plain)
            value = parse(plain, _FloatAlgebra({})) if number is None else float(number)
        except ExpressionError:
            number = leading_number(text)
            if number is None:
                raise
            return float(number)
    except OverflowError:
        raise ExpressionError("too large") from None
    if not math.isfinite(value):
        raise ExpressionError("not a finite number")
    return value


def _variables_of(text: str) -> frozenset[str]:
    """The letters that an expression leaves open; none for a number, with or without a unit.

    Raises `ExpressionError` when it is no expression.
    """
    if read_number(text) is not None:
        return frozenset()
    try:
        plain = _plain_math(text)
        if read_number(plain) is not None:
            return frozenset()
        return parse(plain, _VariablesAlgebra())
    except ExpressionError:
        if leading_number(text) is None:
            raise
        return frozenset()


class _VariablesAlgebra:
    """The set of letters in an expression."""

    functions = frozenset(_FLOAT_FUNCTIONS)
    implicit_product = True

    def number(self, text: str) -> frozenset[str]:
        """None."""
        return frozenset()

    def name(self, name: str) -> frozenset[str]:
        """The letter itself, unless it is a constant; words are no variables."""
        if name in _CONSTANTS:
            return frozenset()
        if len(name) > 1:
            raise ExpressionError(f"unknown name {name[:20]!r}")
        return frozenset(name)

    def call(self, name: str, arguments: list[frozenset[str]]) -> frozenset[str]:
        """Those of the arguments."""
        return frozenset().union(*arguments)

    def negative(self, value: frozenset[str]) -> frozenset[str]:
        """Those of `value`."""
        return value

    def binary(self, operator: str, left: frozenset[str], right: frozenset[str]) -> frozenset[str]:
        """Those of both sides."""
        return left | right


class _FloatAlgebra:
    """Floats within the real numbers, with the values of variables given."""

    functions = frozenset(_FLOAT_FUNCTIONS)
    implicit_product = True

    def __init__(self, variables: Mapping[str, float]) -> None:
        self._variables = variables

    def number(self, text: str) -> float:
        """The nearest float."""
        return float(text)

    def name(self, name: str) -> float:
        """A constant, or the value given for a letter."""
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name not in self._variables:
            raise ExpressionError(f"unknown name {name[:20]!r}")
        return self._variables[name]

    def call(self, name: str, arguments: list[float]) -> float:
        """One of `functions`; `log` takes a base as its second argument."""
        if len(arguments) != 1 and (name != "log" or len(arguments) != 2):
            raise ExpressionError(f"{name} takes one argument")
        return _real(lambda: _FLOAT_FUNCTIONS[name](*arguments))

    def negative(self, value: float) -> float:
        """Minus `value`."""
        return -value

    def binary(self, operator: str, left: float, right: float) -> float:
        """+ - * / and **, within the real numbers."""
        compute = _FLOAT_OPERATORS.get(operator)
        if compute is None:
            raise ExpressionError(f"{operator!r} has no meaning in an answer")
        return _real(lambda: compute(left, right))


def _real(compute: Callable[[], float]) -> float:
    try:
        return compute()
    except (ValueError, ArithmeticError) as error:
        raise ExpressionError(f"no real value: {error}") from error


def _agree_at_samples(given: str, truth: str, variables: frozenset[str]) -> bool:
    """Whether both have the same value wherever both have one, at a few fixed points."""
    for sample in range(_SAMPLES):
        # Points of the additive golden-ratio sequence in (0.2, 3.2), one stream per letter.
        point = {v: 0.2 + 3 * ((ord(v) * 0.7548 + sample * 0.6180339887) % 1) for v in variables}
        try:
            first = parse(given, _FloatAlgebra(point))
            second = parse(truth, _FloatAlgebra(point))
        except ExpressionError:
            continue
        if not math.isclose(first, second, rel_tol=1e-6, abs_tol=1e-9):
            return False
    return True


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
