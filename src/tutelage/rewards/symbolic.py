"""Symbolic equality, for a process that can be killed.

Sympy can be made to think for hours and to fill the memory by a line of text, and a thread cannot
be stopped; a process can. `math_grader.py` has `equal` called in one (`worker.py`), which alone
imports this module and sympy with it. Text becomes sympy nodes through the calculator's parser and
a closed list of functions: `parse_expr`, which runs Python, is never used.
"""

from __future__ import annotations

import functools
import operator
import resource
from collections.abc import Callable, Mapping
from typing import Any

import sympy

from tutelage.tools.expression import ExpressionError, parse

MEMORY_BYTES = 1 << 30
_FUNCTIONS: Mapping[str, Any] = {
    "sqrt": sympy.sqrt,
    "exp": sympy.exp,
    "log": sympy.log,
    "ln": sympy.log,
    "abs": sympy.Abs,
    "sin": sympy.sin,
    "cos": sympy.cos,
    "tan": sympy.tan,
}
_CONSTANTS: Mapping[str, Any] = {"pi": sympy.pi, "e": sympy.E}
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": operator.pow,
}


class _SympyAlgebra:
    """Sympy nodes; letters are symbols, `pi` and `e` constants."""

    functions = frozenset(_FUNCTIONS)
    implicit_product = True

    def number(self, text: str) -> Any:
        """An exact rational."""
        return sympy.Rational(text)

    def name(self, name: str) -> Any:
        """A constant or a symbol."""
        return _CONSTANTS.get(name) or sympy.Symbol(name)

    def call(self, name: str, arguments: list[Any]) -> Any:
        """One of `functions`."""
        return _FUNCTIONS[name](*arguments)

    def negative(self, value: Any) -> Any:
        """Minus `value`."""
        return -value

    def binary(self, operator: str, left: Any, right: Any) -> Any:
        """+ - * / and **."""
        if operator not in _OPERATORS:
            raise ExpressionError(f"{operator!r} has no meaning in an answer")
        return _OPERATORS[operator](left, right)


def equal(first: str, second: str) -> bool:
    """Whether the difference of two expressions simplifies to zero.

    Raises what sympy raises where that cannot be said: no memory, nested too deep.
    """
    _limit_memory()
    try:
        return _same(first, second)
    except (ExpressionError, ArithmeticError, TypeError, ValueError, AttributeError):
        return False


def _same(first: str, second: str) -> bool:
    algebra = _SympyAlgebra()
    return bool(sympy.simplify(parse(first, algebra) - parse(second, algebra)) == 0)


@functools.cache
def _limit_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


_same("(x + 1)^2", "x^2 + 2x + 1")  # loads what simplify loads when it first runs
