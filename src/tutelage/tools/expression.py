"""Arithmetic expressions: one parser, and the exact evaluator behind the calculator.

Text written by a model is never passed to Python's `eval` or sympy's `parse_expr`, which run code.
It is parsed here by precedence climbing over a closed grammar, and the parser computes nothing: it
passes numbers, names and operators to an `Algebra`. The one below computes rational numbers; the
math grader adds others (`tutelage.rewards.math_grader` for floats, `tutelage.rewards.symbolic` for
sympy), so that the calculator and the graders parse expressions identically.

Length, nesting, digits and the size of a power are checked before anything is computed.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, Generic, TypeVar

MAX_LENGTH = 1000
"""Maximum number of characters of an expression."""
MAX_DEPTH = 64
"""Maximum depth of nested parentheses, signs and powers."""
MAX_DIGITS = 40
"""Maximum decimal digits of numerator and denominator, also of intermediate results."""

V = TypeVar("V")

_LIMIT = 10**MAX_DIGITS
_MAX_BITS = _LIMIT.bit_length()
_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n]+)"
    r"|(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)"
    r"|(?P<operator>\*\*|//|[-+*/%^(),])"
)
_SYNONYMS = str.maketrans({"−": "-", "–": "-", "×": "*", "·": "*", "÷": "/"})
# Operator precedence; a sign binds tighter than a product and looser than a power.
_BINDING = {"+": 10, "-": 10, "*": 20, "/": 20, "//": 20, "%": 20, "**": 40, "^": 40}
_SIGN_BINDING = 30


class ExpressionError(ValueError):
    """Raised for invalid expressions and values outside the limits."""


@dataclass(frozen=True, slots=True)
class Algebra(Generic[V]):
    """Rules for evaluating an expression. Each callable may raise `ExpressionError`."""

    number: Callable[[str], V]
    """Return the value of a decimal literal."""
    name: Callable[[str], V]
    """Return the value of a constant or variable."""
    operators: Mapping[str, Callable[[V, V], V]]
    """Supported operators, out of + - * / // % **."""
    functions: Mapping[str, Callable[..., V]] = field(default_factory=dict[str, Callable[..., V]])
    """Functions that an expression may call, by name."""
    negative: Callable[[Any], Any] = operator.neg
    implicit_product: bool = False
    """True if `2x` and `3(4)` are parsed as products."""

    def apply(self, symbol: str, left: V, right: V) -> V:
        """Apply a binary operator. Raises `ExpressionError` for an unsupported one."""
        if symbol not in self.operators:
            raise ExpressionError(f"operator {symbol!r} is not supported in an answer")
        return self.operators[symbol](left, right)


def parse(text: str, algebra: Algebra[V]) -> V:
    """Evaluate an expression in `algebra`, in bounded time. Raises `ExpressionError`."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(
            f"the expression has {len(text)} characters; at most {MAX_LENGTH} are read"
        )
    return _Parser(text, algebra).parse()


class _Parser(Generic[V]):
    """Precedence-climbing parser for one expression."""

    def __init__(self, text: str, algebra: Algebra[V]) -> None:
        self._tokens = _tokenize(text.translate(_SYNONYMS))
        self._algebra = algebra
        self._at = 0

    def parse(self) -> V:
        if len(self._tokens) == 1:
            raise ExpressionError("the expression is empty")
        value = self._parse_expression(0, 0)
        kind, token, column = self._tokens[self._at]
        if kind != "end":
            raise _unexpected_token(token, column)
        return value

    def _parse_expression(self, precedence: int, depth: int) -> V:
        if depth > MAX_DEPTH:
            raise ExpressionError(f"nested more than {MAX_DEPTH} levels deep")
        left = self._parse_operand(depth)
        while True:
            kind, token, _ = self._tokens[self._at]
            operator = token if kind == "operator" else ""
            if self._algebra.implicit_product and (kind == "name" or token == "("):
                operator = "*"
            strength = _BINDING.get(operator, -1)
            if strength < precedence:
                return left
            if operator == token:
                self._at += 1
            # Powers are right-associative: the exponent may have a sign and another power.
            next_binding = _SIGN_BINDING if strength > _SIGN_BINDING else strength + 1
            right = self._parse_expression(next_binding, depth + 1)
            left = self._algebra.apply("**" if operator == "^" else operator, left, right)

    def _parse_operand(self, depth: int) -> V:
        kind, token, column = self._tokens[self._at]
        self._at += 1
        if kind == "number":
            return self._algebra.number(token)
        if kind == "name":
            if token in self._algebra.functions:
                return self._algebra.functions[token](*self._parse_arguments(token, depth))
            return self._algebra.name(token)
        if token == "(":
            value = self._parse_expression(0, depth + 1)
            self._expect_close()
            return value
        if token in ("+", "-"):
            value = self._parse_expression(_SIGN_BINDING, depth + 1)
            return self._algebra.negative(value) if token == "-" else value
        raise _unexpected_token(token, column)

    def _parse_arguments(self, name: str, depth: int) -> list[V]:
        _, token, column = self._tokens[self._at]
        if token != "(":
            raise ExpressionError(f"{name!r} needs '(' at position {column}")
        arguments: list[V] = []
        while not arguments or token == ",":
            self._at += 1
            arguments.append(self._parse_expression(0, depth + 1))
            token = self._tokens[self._at][1]
        self._expect_close()
        return arguments

    def _expect_close(self) -> None:
        _, token, column = self._tokens[self._at]
        if token == ",":
            raise ExpressionError(
                f"unexpected ',' at position {column}; write numbers without thousands separators"
            )
        if token != ")":
            raise ExpressionError(f"missing ')' at position {column}")
        self._at += 1


def _tokenize(text: str) -> list[tuple[str, str, int]]:
    """Split an expression into tokens (kind, text, 1-based position), with a final `end` token."""
    out: list[tuple[str, str, int]] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ExpressionError(f"unexpected {text[at]!r} at position {at + 1}")
        kind = match.lastgroup or ""
        if kind != "space":
            out.append((kind, match.group(), at + 1))
        at = match.end()
    out.append(("end", "", len(text) + 1))
    return out


def _unexpected_token(token: str, column: int) -> ExpressionError:
    if not token:
        return ExpressionError("the expression ends too early")
    hint = "; write numbers without thousands separators" if token == "," else ""
    return ExpressionError(f"unexpected {token!r} at position {column}{hint}")


def evaluate(text: str) -> Fraction:
    """Return the exact value of an arithmetic expression. Raises `ExpressionError`."""
    return parse(text, _EXACT)


def format_number(value: Fraction) -> str:
    """Format integers in full, other values with 10 significant digits and at least 4 decimals."""
    if value.denominator == 1:
        return str(value.numerator)
    with localcontext() as context:
        context.prec = max(10, len(str(abs(value.numerator) // value.denominator)) + 4)
        quotient = (Decimal(value.numerator) / Decimal(value.denominator)).normalize()
    return format(quotient, "f")


def _parse_number(text: str) -> Fraction:
    exponent = re.split("[eE]", text)[-1] if "e" in text.lower() else "0"
    if len(text) > 2 * MAX_DIGITS or len(exponent) > 4 or abs(int(exponent)) > MAX_DIGITS:
        raise _size_error()
    return _check_size(Fraction(text))


def _reject_name(name: str) -> Fraction:
    raise ExpressionError(
        f"unknown name {name[:20]!r}; only numbers and + - * / // % ** ( ) are read"
    )


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        if base < 0:
            raise ExpressionError("a negative number has no real power with a fractional exponent")
        try:
            return Fraction(Decimal(format(float(base) ** float(exponent), ".15g")))
        except OverflowError:
            raise _size_error() from None
    # Estimate the size before computing the power; bases 0, 1 and -1 do not grow.
    bits = max(abs(base.numerator), base.denominator).bit_length() - 1
    if bits * abs(exponent.numerator) > _MAX_BITS:
        raise _size_error()
    return Fraction(base**exponent.numerator)


def _check_size(value: Fraction) -> Fraction:
    if abs(value.numerator) >= _LIMIT or value.denominator >= _LIMIT:
        raise _size_error()
    return value


def _size_error() -> ExpressionError:
    return ExpressionError(f"a number needs more than {MAX_DIGITS} digits")


def _bound_result(
    compute: Callable[[Fraction, Fraction], Fraction | int],
) -> Callable[[Fraction, Fraction], Fraction]:
    def wrapper(left: Fraction, right: Fraction) -> Fraction:
        try:
            return _check_size(Fraction(compute(left, right)))
        except ZeroDivisionError:
            raise ExpressionError("division by zero") from None

    return wrapper


_EXACT = Algebra(
    number=_parse_number,
    name=_reject_name,
    operators={
        "+": _bound_result(operator.add),
        "-": _bound_result(operator.sub),
        "*": _bound_result(operator.mul),
        "/": _bound_result(operator.truediv),
        "//": _bound_result(operator.floordiv),
        "%": _bound_result(operator.mod),
        "**": _bound_result(_power),
    },
)
"""Rational numbers of at most `MAX_DIGITS` digits, with Python's // and %, without names and
functions. Only powers with a fractional exponent are inexact: they have 15 significant digits."""
