"""Formulas that a model wrote, as numbers: LaTeX into the grammar of expressions, and its values.

Nothing is ever evaluated as code: a formula is read by the calculator's parser
(`tutelage.tools.expression`) with the algebras below, of floats and of the letters that are left
open. `math_grader.py` compares what is found here.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from tutelage.rewards.answers import (
    CHANGES_IT,
    LATEX_TEXT,
    is_unit,
    leading_number,
    read_number,
)
from tutelage.tools.expression import Algebra, ExpressionError, parse

_SAMPLES = 8
_MIXED_NUMBER = re.compile(r"(?<![\w.^}])([0-9]+)\s*\\[dt]?frac\s*\{?([0-9]+)\}?\s*\{?([0-9]+)\}?")
_NUMBER_AND_FRACTION = re.compile(r"[0-9]\s*\\[dt]?frac")
_LATEX_GROUPS = (
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"((\1)/(\2))"),
    (re.compile(r"\\[dt]?frac\s*([0-9])\s*([0-9])"), r"((\1)/(\2))"),
    (re.compile(r"\\sqrt\s*\{([^{}]*)\}"), r" sqrt(\1)"),
    (re.compile(r"\\sqrt\s*([0-9a-z])(?![0-9a-z])"), r" sqrt(\1)"),
    (re.compile(r"\^\s*\{([^{}]*)\}"), r"^(\1)"),
)
_LATEX_UNIT = re.compile(
    r"(?<=[^\s\\{(°])\s*\\(?:text[a-z]*|mathrm|mbox)\s*\{([^{}]*)\}(?:\s*\^\s*\{?[23]\}?)?\s*\Z"
)
_UPRIGHT_UNIT = re.compile(rf"\s*(?:[msghlLNJWVACF]\s*\Z|(?!(?i:{CHANGES_IT})\b)[A-Za-z])")
"""Words, or one letter that upright is a unit; an upright `i`, `e` or `k` is none."""
_NAMES = "sin|cos|tan|log|ln|exp"
_ARGUMENT = r"([A-Za-z0-9.]+)(?=\s*(?:\Z|[-+*,)}=]|\\(?:cdot|times|" + _NAMES + r")\b))"
"""`x` of `\\tan x`, where what follows is certainly no part of it."""
_LATEX_WORDS = (
    (re.compile(rf"\\?\b({_NAMES})(?:\s+|(?=[0-9])){_ARGUMENT}"), r" \1(\2)"),
    (re.compile(r"\\(?:cdot|times)\b"), "*"),
    (re.compile(r"\\div\b"), "/"),
    (re.compile(rf"\\(pi|{_NAMES})\b"), r" \1"),
)
FUNCTIONS = ("sqrt", "exp", "log", "sin", "cos", "tan")
"""Those that `math` and sympy have under the same name; `ln` and `abs` come to them."""
_FLOAT_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in FUNCTIONS},
    "ln": math.log,
    "abs": abs,
}
_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e}


def _real(compute: Callable[..., Any], name: str = "") -> Callable[..., float]:
    """`compute` within the real numbers; one with a name is called with one argument, but that
    `log` takes a base as its second one."""

    def real(*values: float) -> float:
        if name and len(values) != 1 and (name != "log" or len(values) != 2):
            raise ExpressionError(f"{name} takes one argument")
        try:
            return compute(*values)
        except (ValueError, ArithmeticError) as error:
            raise ExpressionError(f"not a real number: {error}") from error

    return real


_REAL_FUNCTIONS = {name: _real(compute, name) for name, compute in _FLOAT_FUNCTIONS.items()}
_FLOAT_OPERATORS: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _real(operator.truediv),
    "**": _real(math.pow),
}


def plain_math(text: str) -> str:
    """LaTeX as the grammar of expressions; what cannot be translated is left and then refused."""
    text = _MIXED_NUMBER.sub(
        lambda m: f"({m[1]}+{m[2]}/{m[3]})" if int(m[2]) < int(m[3]) else m[0], text
    )
    if _NUMBER_AND_FRACTION.search(text):
        # 2\frac{5}{2} means 4.5 to some and 5 to others.
        raise ExpressionError("a number before an improper fraction is ambiguous")
    text = text.replace("$", "").replace("π", " pi ").strip()
    unit = _LATEX_UNIT.search(text)
    if unit is not None and _UPRIGHT_UNIT.match(unit[1]) and is_unit(unit[1]):
        text = text[: unit.start()]
    text = LATEX_TEXT.sub(r" \1 ", text)
    for pattern, replacement in _LATEX_WORDS:
        text = pattern.sub(replacement, text)
    for _ in range(20):
        before = text
        for pattern, replacement in _LATEX_GROUPS:
            text = pattern.sub(replacement, text)
        if text == before:
            break
    return text.strip()


def float_value(text: str) -> float:
    """The value of a number, with or without a unit, or of an expression without variables.

    Raises `ExpressionError`.
    """
    number = read_number(text)
    try:
        if number is not None:
            return float(number)
        try:
            plain = plain_math(text)
            # What was LaTeX may be a number now, as `50\\%` is.
            number = read_number(plain)
            value = parse(plain, _floats({})) if number is None else float(number)
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


def variables_of(text: str) -> frozenset[str]:
    """The letters that an expression leaves open; none for a number, with or without a unit.

    Raises `ExpressionError` when it is no expression.
    """
    if read_number(text) is not None:
        return frozenset()
    try:
        plain = plain_math(text)
        if read_number(plain) is not None:
            return frozenset()
        return parse(plain, _VARIABLES)
    except ExpressionError:
        if leading_number(text) is None:
            raise
        return frozenset()


def _letter(name: str) -> frozenset[str]:
    """The letter itself, unless it is a constant; words are no variables."""
    if name in _CONSTANTS:
        return frozenset()
    if len(name) > 1:
        raise ExpressionError(f"unknown name {name[:20]!r}")
    return frozenset(name)


def _all_of(*letters: frozenset[str]) -> frozenset[str]:
    return frozenset[str]().union(*letters)


_VARIABLES = Algebra(
    number=lambda text: frozenset[str](),
    name=_letter,
    operators=dict.fromkeys(("+", "-", "*", "/", "//", "%", "**"), _all_of),
    functions=dict.fromkeys(_FLOAT_FUNCTIONS, _all_of),
    negative=_all_of,
    implicit_product=True,
)
"""The set of letters in an expression."""


def _floats(variables: Mapping[str, float]) -> Algebra[float]:
    """Floats within the real numbers, with the values of variables given."""
    known = {**variables, **_CONSTANTS}

    def name(name: str) -> float:
        if name not in known:
            raise ExpressionError(f"unknown name {name[:20]!r}")
        return known[name]

    return Algebra(float, name, _FLOAT_OPERATORS, _REAL_FUNCTIONS, implicit_product=True)


def agree_at_samples(given: str, truth: str, variables: frozenset[str]) -> bool:
    """Whether both have the same value at points where both have one, at a few fixed points."""
    for sample in range(_SAMPLES):
        # Points of the additive golden-ratio sequence in (0.2, 3.2), one stream per letter.
        point = {v: 0.2 + 3 * ((ord(v) * 0.7548 + sample * 0.6180339887) % 1) for v in variables}
        try:
            first, second = parse(given, _floats(point)), parse(truth, _floats(point))
        except ExpressionError:
            continue
        if not math.isclose(first, second, rel_tol=1e-6, abs_tol=1e-9):
            return False
    return True
