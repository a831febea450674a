"""How a name in the config becomes a function: one look-up for every registry of this package.

A name that no registry has stops the run before any model loads, with the nearest name that it
has. The registries themselves are in `advantages/`, `losses/`, `aggregate.py`, `kl.py` and
`corrections.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from tutelage.errors import ConfigError

Entry = TypeVar("Entry")


def lookup(table: Mapping[str, Entry], name: str, key: str) -> Entry:
    """The entry called `name`; raises `ConfigError` that names `key` and the nearest entry."""
    if name in table:
        return table[name]
    raise unknown(name, table, key)


def unknown(name: str, known: Iterable[str], key: str) -> ConfigError:
    """The error for a `name` that is not among the `known` ones of the config key `key`."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ConfigError(f"{key}={name!r} is unknown; {hint}use one of: {', '.join(names) or 'none'}")
