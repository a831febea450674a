"""What `from tutelage import ...` gives, in text: each name with its signature and its members.

`public.txt` is what was promised. Where a change of it is meant, write it again from the root of
the clone and name the change in the changelog: `python tests/contract/public.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tutelage

PINNED = Path(__file__).with_name("public.txt")


def surface() -> str:
    """A line for each public name and each public member of a class, sorted by name."""
    return "".join(f"{line}\n" for name in tutelage.__all__ for line in _lines(name))


def _lines(name: str) -> Iterator[str]:
    value = getattr(tutelage, name)
    if not inspect.isclass(value):
        yield f"{name}{_signature(value)}"
        return
    yield f"{name}{_signature(value)}"
    for member, found in sorted(_members(value).items()):
        yield f"{name}.{member}{_signature(found)}"


def _members(owner: type) -> dict[str, Any]:
    """Public methods, properties and fields that a class has from classes of this package."""
    found: dict[str, Any] = {}
    for base in reversed(owner.__mro__):
        if base.__module__.partition(".")[0] == "tutelage":
            names = {**getattr(base, "__annotations__", {}), **vars(base)}
            found |= {n: vars(base).get(n) for n in names if not n.startswith("_")}
    return found


def _signature(value: Any) -> str:
    """Parameters with defaults, without types: these are the type checker's."""
    value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    if not callable(value):
        return ""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(bare))


if __name__ == "__main__":
    PINNED.write_text(surface(), encoding="utf-8")
