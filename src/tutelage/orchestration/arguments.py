"""Checks of arguments of public functions and classes."""

from __future__ import annotations

import math
import sys
from numbers import Real

from tutelage.errors import ConfigError, TutelageError


def check_type(
    name: str,
    value: object,
    kind: type | tuple[type, ...],
    expected: str,
    error: type[TutelageError] = ConfigError,
) -> None:
    """Raise an error if an argument has the wrong type. The message has its value and the expected
    value."""
    if not isinstance(value, kind):
        raise error(f"{name} must be {expected}, got {value!r:.80}")


def check_number(name: str, value: object) -> None:
    """Raise `ConfigError` if a value is not a finite number of at least 0."""
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not 0 <= number <= sys.float_info.max:
        raise ConfigError(f"{name} must be a finite number of at least 0, got {value!r:.80}")
