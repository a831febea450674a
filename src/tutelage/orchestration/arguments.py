"""Check the arguments of the orchestration's functions and classes, and show what is wrong."""

from __future__ import annotations

import math
import sys
from numbers import Real

from tutelage.errors import ConfigError, TutelageError


def check_given(
    name: str,
    value: object,
    kind: type | tuple[type, ...] | str,
    remedy: str,
    error: type[TutelageError] = ConfigError,
) -> None:
    """Raise an error that shows the value of an argument, and how to fix it, unless it is of a
    type, or has all attributes that are named, with blanks between them."""
    if isinstance(kind, str):
        fits = all(hasattr(value, each) for each in kind.split())
    else:
        fits = isinstance(value, kind)
    if not fits:
        raise error(f"{name} must be {remedy}, got {value!r:.80}")


def check_number(
    name: str, value: object, most: float = math.inf, error: type[TutelageError] = ConfigError
) -> None:
    """Raise an error that shows the value, unless it is a finite number of at least 0, at most
    `most`."""
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not 0 <= number <= min(most, sys.float_info.max):
        wanted = "of at least 0" if most == math.inf else f"from 0 to {most:g}"
        raise error(f"{name} must be a finite number {wanted}, got {value!r:.80}")
