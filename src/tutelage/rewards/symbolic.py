"""Symbolic equality, for a process that can be killed.

Sympy can be made to think for hours and to fill the memory by a line of text, and a thread cannot
be stopped; a process can. `math_grader.py` has `equal` called in one (`worker.py`), which alone
imports this module and sympy with it. Text becomes sympy nodes through the calculator's parser and
a closed list of functions: `parse_expr`, which runs Python, is never used.
"""

from __future__ import annotations

import operator
import resource
from collections.abc import Mapping
from typing import Any

import sympy

from tutelage.rewards.formulas import FUNCTIONS
from tutelage.tools.expression import Algebra, ExpressionError, parse

MEMORY_BYTES = 1 << 30
_CONSTANTS: Mapping[str, Any] = {"pi": sympy.pi, "e": sympy.E}
_SYMPY: Algebra[Any] = Algebra(
    number=sympy.Rational,
    name=lambda name: _CONSTANTS.get(name) or sympy.Symbol(name),
    operators={
        "+": operator.add,
        "-": operator.sub,
        "*": operator.mul,
        "/": operator.truediv,
        "**": operator.pow,
    },
    functions={
        **{name: getattr(sympy, name) for name in FUNCTIONS},
        "ln": sympy.log,
        "abs": sympy.Abs,
    },
    implicit_product=True,
)
"""Sympy nodes; letters are symbols, `pi` and `e` constants."""


def equal(first: str, second: str) -> bool:
    """Whether the difference of two expressions simplifies to zero.

    Raises what sympy raises where that cannot be said: no memory, nested too deep.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    try:
        return _same(first, second)
    except (ExpressionError, ArithmeticError, TypeError, ValueError, AttributeError):
        return False


def _same(first: str, second: str) -> bool:
    return bool(sympy.simplify(parse(first, _SYMPY) - parse(second, _SYMPY)) == 0)


_same("(x + 1)^2", "x^2 + 2x + 1")  # loads what simplify loads when it first runs
