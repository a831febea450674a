"""A resolved configuration with the story of every value: what it is and who set it.

This is what a dry run prints and what `config.json` in a run folder holds. The JSON round-trips
exactly and is validated when read: a resumed run must not start from a file that lost a key, nor
from one of a version with other keys. It is made by `resolve.py`.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tutelage.config.fields import Section, plain
from tutelage.config.issues import ConfigIssue, raise_issues
from tutelage.config.keys import flatten, get, leaf_fields, misfit
from tutelage.config.schema import RunConfig
from tutelage.errors import ConfigError

SUPERVISED, WEIGHTS = "supervised", "weights"
"""The kinds of run that this configuration is of, as `config.json` names them."""


class _TableRow(NamedTuple):
    """One line of the resolved table; `value` is plain data (lists, never tuples)."""

    key: str
    value: Any
    origin: str
    note: str


class Resolved(Section):
    """The configuration of one run and where it came from."""

    config: RunConfig
    origin: dict[str, str]
    """For every key: `default`, `preset math/default`, `file x.json`, `flag --steps`, `override`,
    or `derived from KEY`."""
    unused: dict[str, str]
    """Keys that were set and have no effect on this run, with the reason."""
    notes: dict[str, str]
    """What follows from a value, such as the optimizer steps that a batch makes."""
    warnings: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The kind of run that is configured: the recipe `sft` learns from demonstrations alone."""
        return SUPERVISED if self.config.recipe == "sft" else WEIGHTS

    def to_table(self) -> list[_TableRow]:
        """One row for each key, in the order of the schema."""
        notes = self.notes | {key: f"unused: {why}" for key, why in self.unused.items()}
        return [
            _TableRow(key, plain(get(self.config, key)), self.origin[key], notes.get(key, ""))
            for key in leaf_fields()
        ]

    def to_json(self) -> str:
        """The whole record as JSON text; `from_json` gives an equal record back."""
        parts = self.model_dump(mode="json")
        return json.dumps({"kind": self.kind, **parts}, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Resolved:
        """Read what `to_json` wrote. Raises `ConfigError` for anything else."""
        try:
            parts = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"the configuration file is not JSON: {error}.") from error
        kind = parts.pop("kind", None) if isinstance(parts, dict) else None
        if kind not in (SUPERVISED, WEIGHTS):
            raise ConfigError(
                f"the configuration is of the kind {kind!r}, not of a training of weights; see the "
                "results of such a run with: tutelage show RUN"
            )
        if set(parts) != {*cls.model_fields}:
            fields = ", ".join(cls.model_fields)
            raise ConfigError(f"the configuration must have exactly the fields kind, {fields}.")
        try:
            found = cls.model_validate_json(json.dumps(parts), strict=True)
        except ValidationError as error:
            raise_issues(_problem(wrong) for wrong in error.errors())
            raise
        for part in ("config", "origin"):
            odd = {key for key, _ in flatten(parts[part])} ^ {*leaf_fields()}
            if odd:
                raise ConfigError(
                    f"missing or unexpected key {min(odd)!r} in {part!r} of the configuration file "
                    f"({len(odd)} such keys). It is truncated, or from another version; start a "
                    "new run."
                )
        return found


def _problem(error: ErrorDetails) -> ConfigIssue:
    """What pydantic found, about a key where it is in the configuration itself."""
    part, *names = map(str, error["loc"])
    while names[1:] and ".".join(names) not in leaf_fields() and error["type"] != "extra_forbidden":
        names.pop()  # a place within a value, unless it is a section's
    if part == "config" and (key := ".".join(names)) in leaf_fields():
        return misfit(key, error["input"])
    return ConfigIssue(".".join([part, *names]), error["input"], error["msg"], "Start a new run.")
