"""Symbolic equality, computed in a process that can be killed.

A line of text can make sympy run for hours or fill the memory, and a thread cannot be stopped.
`math_grader.py` therefore calls `equal` in a worker process (`worker.py`); only that process
imports sympy. The calculator's parser and a closed list of functions convert text to sympy nodes;
`parse_expr`, which runs Python, is never used.
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
"""Algebra over sympy nodes; letters are symbols, `pi` and `e` constants."""


def equal(first: str, second: str) -> bool:
    """Return True if the difference of two expressions simplifies to zero.

    Raises sympy's exception if it runs out of memory or the nesting is too deep.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    try:
        return _is_equal(first, second)
    except (ExpressionError, ArithmeticError, TypeError, ValueError, AttributeError):
        return False


def _is_equal(first: str, second: str) -> bool:
    return bool(sympy.simplify(parse(first, _SYMPY) - parse(second, _SYMPY)) == 0)


_is_equal("(x + 1)^2", "x^2 + 2x + 1")  # loads the modules that simplify imports lazily
