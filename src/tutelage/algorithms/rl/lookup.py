"""The error for an unknown name of an estimator, loss, aggregation, KL kind or correction.

It is raised before any model loads and suggests the nearest known name. The names are in
`advantages/`, `losses/`, `aggregate.py`, `kl.py` and `corrections.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from tutelage.errors import ConfigError


def unknown_name_error(name: str, choices: Iterable[str], key: str) -> ConfigError:
    """Return the error for a value of the config key `key` that is not in `choices`."""
    names = sorted(choices)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ConfigError(f"{key}={name!r} is unknown; {hint}use one of: {', '.join(names) or 'none'}")
