"""What to say of a name in the config that none of this package's tables has.

It stops the run before any model loads, with the nearest name that there is. The tables themselves
are in `advantages/`, `losses/`, `aggregate.py`, `kl.py` and `corrections.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from tutelage.errors import ConfigError


def unknown(name: str, known: Iterable[str], key: str) -> ConfigError:
    """The error for a `name` that is not among the `known` ones of the config key `key`."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ConfigError(f"{key}={name!r} is unknown; {hint}use one of: {', '.join(names) or 'none'}")
