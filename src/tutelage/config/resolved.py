"""Resolved configuration with the origin of every value.

A dry run prints it, and `config.json` in a run folder stores it. The JSON round-trips exactly and
is validated when it is read: a resumed run must not start from a file that lost a key, nor from one
of a version with other keys. `resolve.py` creates it.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tutelage.config.fields import Section, tuples_to_lists
from tutelage.config.issues import ConfigIssue, raise_issues
from tutelage.config.keys import flatten, get, leaf_fields, value_issue
from tutelage.config.schema import RunConfig
from tutelage.errors import ConfigError

SUPERVISED, WEIGHTS = "supervised", "weights"
"""Kinds of run with this configuration, as named in `config.json`."""


class Resolved(Section):
    """Resolved configuration of one run, with the origin of every value."""

    config: RunConfig
    origin: dict[str, str]
    """For every key: `default`, `preset math/default`, `file x.json`, `flag --steps`, `override`,
    or `derived from KEY`."""
    unused: dict[str, str]
    """Keys that were set but have no effect on this run, with the reason."""
    notes: dict[str, str]
    """Consequences of values, such as the number of optimizer steps per batch."""
    warnings: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Kind of the configured run: `supervised` for the recipe `sft`, else `weights`."""
        return SUPERVISED if self.config.recipe == "sft" else WEIGHTS

    def to_table(self) -> list[tuple[str, Any, str, str]]:
        """Return (key, value, origin, note) for every key, in the order of the schema."""
        notes = self.notes | {key: f"unused: {why}" for key, why in self.unused.items()}
        return [
            (key, tuples_to_lists(get(self.config, key)), self.origin[key], notes.get(key, ""))
            for key in leaf_fields()
        ]

    def to_json(self) -> str:
        """Return the configuration as JSON text, which `from_json` can read."""
        parts = self.model_dump(mode="json")
        return json.dumps({"kind": self.kind, **parts}, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Resolved:
        """Restore a configuration from `to_json` text. Raises `ConfigError` for any other text."""
        try:
            parts = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"the configuration file is not JSON: {error}.") from error
        kind = parts.pop("kind", None) if isinstance(parts, dict) else None
        if kind not in (SUPERVISED, WEIGHTS):
            raise ConfigError(
                f"the configuration belongs to a run of kind {kind!r}, not to a weight training; "
                "show the results of such a run with: tutelage show RUN"
            )
        if set(parts) != {*cls.model_fields}:
            fields = ", ".join(cls.model_fields)
            raise ConfigError(f"the configuration must have exactly the fields kind, {fields}.")
        try:
            resolved = cls.model_validate_json(json.dumps(parts), strict=True)
        except ValidationError as error:
            raise_issues(_to_issue(details) for details in error.errors())
            raise
        for part in ("config", "origin"):
            odd = {key for key, _ in flatten(parts[part])} ^ {*leaf_fields()}
            if odd:
                raise ConfigError(
                    f"missing or unexpected key {min(odd)!r} in {part!r} of the configuration file "
                    f"({len(odd)} such keys). It is truncated, or from another version; start a "
                    "new run."
                )
        return resolved


def _to_issue(error: ErrorDetails) -> ConfigIssue:
    """Convert a pydantic error into a `ConfigIssue` of the invalid key."""
    part, *names = map(str, error["loc"])
    while names[1:] and ".".join(names) not in leaf_fields() and error["type"] != "extra_forbidden":
        names.pop()  # a place within a value, unless it is a section's
    if part == "config" and (key := ".".join(names)) in leaf_fields():
        return value_issue(key, error["input"])
    return ConfigIssue(".".join([part, *names]), error["input"], error["msg"], "Start a new run.")
