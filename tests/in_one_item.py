"""Run a test over many values as one item, which reports every value that fails.

For rules of which there are hundreds of cases, each of a millisecond: `@in_one_item("key", KEYS)`
in place of `@pytest.mark.parametrize("key", KEYS)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def in_one_item(
    names: str | tuple[str, ...], values: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that runs a test for each of `values`: the argument `names`, or a tuple of
    several. Fixtures are shared. The test raises `AssertionError` with a line for each failure."""
    wanted = (names,) if isinstance(names, str) else names
    cases = [value if len(wanted) > 1 else (value,) for value in values]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        def loop(**fixtures: Any) -> None:
            wrong: list[str] = []
            for case in cases:
                try:
                    test(**dict(zip(wanted, case, strict=True)), **fixtures)
                except (Exception, pytest.fail.Exception) as error:
                    words = str(error) or type(error).__name__
                    wrong.append(f"{', '.join(map(str, case))}: {words}")
            assert cases, "there are no values"
            assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong)

        signature = inspect.signature(test)
        fixtures = [p for p in signature.parameters.values() if p.name not in wanted]
        loop.__dict__["__signature__"] = signature.replace(parameters=fixtures)
        loop.__name__, loop.__doc__, loop.__module__ = test.__name__, test.__doc__, test.__module__
        return loop

    return decorate
