"""One finding about a configuration, and how findings become one error.

All checks run before any model loads and all their findings are shown together, so that a command
with three mistakes is fixed once. A finding names the key, the value, where the value came from,
the reason and the fix. The checks are in `checks.py`; unknown keys are found in `aliases.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tutelage.config.fields import plain
from tutelage.errors import ConfigError


class ConfigIssue(Exception):
    """One finding: raised while values are read, collected and shown by `raise_issues`."""

    def __init__(self, key: str, value: Any, reason: str, fix: str, origin: str = "") -> None:
        super().__init__(key, value, reason, fix, origin)
        self.key, self.value, self.reason = key, value, reason
        self.fix, self.origin = fix, origin

    def located(self, origin: str) -> ConfigIssue:
        """The same finding with where its value came from."""
        origin = self.origin or origin
        # An option takes no null: it is left out.
        reason = self.reason.removesuffix(", or null" if origin.startswith("flag ") else "")
        return ConfigIssue(self.key, self.value, reason, self.fix, origin)

    def __str__(self) -> str:
        where = f" ({self.origin})" if self.origin else ""
        return f"{self.key}={plain(self.value)!r}{where}: {self.reason}. {self.fix}"


def raise_issues(problems: Iterable[ConfigIssue], origins: Mapping[str, str] | None = None) -> None:
    """Raise one `ConfigError` with every finding; return when there is none."""
    origins = origins or {}
    lines = [str(problem.located(origins.get(problem.key, ""))) for problem in problems]
    if len(lines) == 1:
        raise ConfigError(lines[0])
    if lines:
        listed = "\n".join(f"  - {line}" for line in lines)
        raise ConfigError(f"the configuration has {len(lines)} problems:\n{listed}")
