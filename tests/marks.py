"""Mark values of a parametrized test as long ones, which `make test-full` alone runs.

`@pytest.mark.parametrize("kind", ["qwen2", *long("qwen3", "llama")])` leaves out the last two,
`@pytest.mark.parametrize("kind", first(1, KINDS))` all but the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def long(*values: Any) -> list[Any]:
    """Return the values as parameters that are left out; a tuple is the values of several."""
    found: list[Any] = []
    for value in values:
        given = value if hasattr(value, "marks") else pytest.param(*_several(value))
        found.append(pytest.param(*given.values, id=given.id, marks=[*given.marks, FULL]))
    return found


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """Return the values, of which all but the first `count` are left out."""
    listed = list(values)
    return [*listed[:count], *long(*listed[count:])]


FULL = pytest.mark.full


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
