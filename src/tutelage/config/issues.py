"""Problems of a configuration, and the error that lists them all.

All checks run before any model loads, and all problems are shown together, so that a command with
three mistakes is fixed once. A problem names the key, the value, its origin, the reason and the
fix. The checks are in `checks.py`; unknown keys are found in `aliases.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tutelage.config.fields import tuples_to_lists
from tutelage.errors import ConfigError


class ConfigIssue(Exception):
    """Problem with the value of a key; `raise_issues` reports several in one `ConfigError`."""

    def __init__(self, key: str, value: Any, reason: str, fix: str, origin: str = "") -> None:
        super().__init__(key, value, reason, fix, origin)
        self.key, self.value, self.reason = key, value, reason
        self.fix, self.origin = fix, origin

    def with_origin(self, origin: str) -> ConfigIssue:
        """Return a copy of the problem with the origin of its value."""
        origin = self.origin or origin
        # An option takes no null: it is left out.
        reason = self.reason.removesuffix(", or null" if origin.startswith("flag ") else "")
        return ConfigIssue(self.key, self.value, reason, self.fix, origin)

    def __str__(self) -> str:
        source = f" ({self.origin})" if self.origin else ""
        return f"{self.key}={tuples_to_lists(self.value)!r}{source}: {self.reason}. {self.fix}"


def raise_issues(problems: Iterable[ConfigIssue], origins: Mapping[str, str] | None = None) -> None:
    """Raise a `ConfigError` that lists all problems, if there are any."""
    origins = origins or {}
    lines = [str(problem.with_origin(origins.get(problem.key, ""))) for problem in problems]
    if len(lines) == 1:
        raise ConfigError(lines[0])
    if lines:
        listed = "\n".join(f"  - {line}" for line in lines)
        raise ConfigError(f"the configuration has {len(lines)} problems:\n{listed}")
