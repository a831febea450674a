"""Translate LaTeX formulas into the calculator's grammar and compute their values.

Nothing is evaluated as code: the calculator's parser (`tutelage.tools.expression`) reads a formula
with the algebras below, one over floats and one over sets of variables. `math_grader.py` compares
the results.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from tutelage.rewards.answers import (
    LATEX_TEXT,
    MODIFIERS,
    is_unit,
    read_leading_number,
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
_UPRIGHT_UNIT = re.compile(rf"\s*(?:[msghlLNJWVACF]\s*\Z|(?!(?i:{MODIFIERS})\b)[A-Za-z])")
"""Words, or a single upright letter that is a unit; upright `i`, `e` and `k` are not."""
_NAMES = "sin|cos|tan|log|ln|exp"
_ARGUMENT = r"([A-Za-z0-9.]+)(?=\s*(?:\Z|[-+*,)}=]|\\(?:cdot|times|" + _NAMES + r")\b))"
"""`x` of `\\tan x`, if the following text cannot belong to the argument."""
_LATEX_WORDS = (
    (re.compile(rf"\\?\b({_NAMES})(?:\s+|(?=[0-9])){_ARGUMENT}"), r" \1(\2)"),
    (re.compile(r"\\(?:cdot|times)\b"), "*"),
    (re.compile(r"\\div\b"), "/"),
    (re.compile(rf"\\(pi|{_NAMES})\b"), r" \1"),
)
FUNCTIONS = ("sqrt", "exp", "log", "sin", "cos", "tan")
"""Functions with the same name in `math` and sympy; `ln` and `abs` are added separately."""
_FLOAT_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in FUNCTIONS},
    "ln": math.log,
    "abs": abs,
}
_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e}


def _wrap_real(compute: Callable[..., Any], name: str = "") -> Callable[..., float]:
    """Wrap a function so that it raises `ExpressionError` if its result is not a real number.

    A named function takes one argument; `log` also accepts a base.
    """

    def wrapper(*values: float) -> float:
        if name and len(values) != 1 and (name != "log" or len(values) != 2):
            raise ExpressionError(f"{name} takes one argument")
        try:
            return compute(*values)
        except (ValueError, ArithmeticError) as error:
            raise ExpressionError(f"not a real number: {error}") from error

    return wrapper


_REAL_FUNCTIONS = {name: _wrap_real(compute, name) for name, compute in _FLOAT_FUNCTIONS.items()}
_FLOAT_OPERATORS: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _wrap_real(operator.truediv),
    "**": _wrap_real(math.pow),
}


def convert_latex(text: str) -> str:
    """Translate LaTeX to the grammar of the calculator, which rejects unsupported commands.

    Raises `ExpressionError` for a number before an improper fraction.
    """
    text = _MIXED_NUMBER.sub(
        lambda m: f"({m[1]}+{m[2]}/{m[3]})" if int(m[2]) < int(m[3]) else m[0], text
    )
    if _NUMBER_AND_FRACTION.search(text):
        # 2\frac{5}{2} can be read as 4.5 or 5.
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
    """Evaluate a constant expression, or a number with or without a unit, as a float.

    Raises `ExpressionError` if the text is neither, or its value is not finite.
    """
    number = read_number(text)
    try:
        if number is not None:
            return float(number)
        try:
            plain = convert_latex(text)
            # Translated LaTeX may be a plain number, such as `50\\%`.
            number = read_number(plain)
            value = parse(plain, _real_algebra({})) if number is None else float(number)
        except ExpressionError:
            number = read_leading_number(text)
            if number is None:
                raise
            return float(number)
    except OverflowError:
        raise ExpressionError("the number is too large") from None
    if not math.isfinite(value):
        raise ExpressionError("the value is not a finite number")
    return value


def free_variables(text: str) -> frozenset[str]:
    """Return the variables of an expression, or none for a number with or without a unit.

    Raises `ExpressionError` if the text is not an expression.
    """
    if read_number(text) is not None:
        return frozenset()
    try:
        plain = convert_latex(text)
        if read_number(plain) is not None:
            return frozenset()
        return parse(plain, _VARIABLES)
    except ExpressionError:
        if read_leading_number(text) is None:
            raise
        return frozenset()


def _read_letter(name: str) -> frozenset[str]:
    """Return the name of a variable as a set, or the empty set for a constant. Raises
    `ExpressionError` for longer names."""
    if name in _CONSTANTS:
        return frozenset()
    if len(name) > 1:
        raise ExpressionError(f"unknown name {name[:20]!r}")
    return frozenset(name)


def _union(*letters: frozenset[str]) -> frozenset[str]:
    return frozenset[str]().union(*letters)


_VARIABLES = Algebra(
    number=lambda text: frozenset[str](),
    name=_read_letter,
    operators=dict.fromkeys(("+", "-", "*", "/", "//", "%", "**"), _union),
    functions=dict.fromkeys(_FLOAT_FUNCTIONS, _union),
    negative=_union,
    implicit_product=True,
)
"""Algebra that computes the set of variables in an expression."""


def _real_algebra(variables: Mapping[str, float]) -> Algebra[float]:
    """Create an algebra over floats with the given values of variables."""
    values = {**variables, **_CONSTANTS}

    def lookup(name: str) -> float:
        if name not in values:
            raise ExpressionError(f"unknown name {name[:20]!r}")
        return values[name]

    return Algebra(float, lookup, _FLOAT_OPERATORS, _REAL_FUNCTIONS, implicit_product=True)


def agree_at_samples(predicted: str, truth: str, variables: frozenset[str]) -> bool:
    """Return True if two expressions have equal values at all sample points.

    The sample points are fixed; points where an expression has no value are skipped.
    """
    for sample in range(_SAMPLES):
        # Additive golden-ratio sequence in (0.2, 3.2), with an offset for each letter.
        point = {v: 0.2 + 3 * ((ord(v) * 0.7548 + sample * 0.6180339887) % 1) for v in variables}
        try:
            algebra = _real_algebra(point)
            first, second = parse(predicted, algebra), parse(truth, algebra)
        except ExpressionError:
            continue
        if not math.isclose(first, second, rel_tol=1e-6, abs_tol=1e-9):
            return False
    return True
