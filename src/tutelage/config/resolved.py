"""A resolved configuration with the story of every value: what it is and who set it.

This is what a dry run prints and what `config.json` in a run folder holds. The JSON round-trips
exactly and is validated when read: a resumed run must not start from a file that lost a key, nor
from one of a version with other keys. It is made by `resolve.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from pydantic import ValidationError

from tutelage.config.aliases import canonical
from tutelage.config.fields import plain
from tutelage.config.keys import flatten, get, leaf_fields, misfit, nest
from tutelage.config.problems import Problem, fail_on
from tutelage.config.schema import RunConfig
from tutelage.errors import ConfigError
from tutelage.types import JSON

_PARTS = ("config", "origin", "unused", "notes", "warnings")
SUPERVISED, WEIGHTS = "supervised", "weights"
"""The kinds of run that this configuration is of, as `config.json` names them."""


class TableRow(NamedTuple):
    """One line of the resolved table; `value` is plain data (lists, never tuples)."""

    key: str
    value: Any
    origin: str
    note: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """The configuration of one run and where it came from."""

    config: RunConfig
    origin: Mapping[str, str]
    """For every key: `default`, `preset math/default`, `file x.json`, `flag --steps`, `override`,
    or `derived from KEY`."""
    unused: Mapping[str, str] = field(default_factory=dict[str, str])
    """Keys that were set and have no effect on this run, with the reason."""
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    """What follows from a value, such as the optimizer steps that a batch makes."""
    warnings: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of run that is configured: the recipe `sft` learns from demonstrations alone."""
        return SUPERVISED if self.config.recipe == "sft" else WEIGHTS

    def to_table(self) -> list[TableRow]:
        """One row for each key, in the order of the schema."""
        return [
            TableRow(key, plain(get(self.config, key)), self.origin[key], self._note(key))
            for key in leaf_fields()
        ]

    def to_json(self) -> str:
        """The whole record as JSON text; `from_json` gives an equal record back."""
        parts = {
            "kind": self.kind,
            "config": self.config.model_dump(mode="json"),
            "origin": dict(self.origin),
            "unused": dict(self.unused),
            "notes": dict(self.notes),
            "warnings": list(self.warnings),
        }
        return json.dumps(parts, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Resolved:
        """Read what `to_json` wrote. Raises `ConfigError` for anything else."""
        try:
            parts = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"the configuration file is not JSON: {error}.") from error
        record: JSON = cast("JSON", parts) if isinstance(parts, dict) else {}
        kind = record.pop("kind", None)
        if kind not in (None, SUPERVISED, WEIGHTS):
            raise ConfigError(
                f"this run is of the kind {kind!r} and trained no policy; see what it has with: "
                "tutelage show RUN"
            )
        if kind is None or set(record) != set(_PARTS):
            raise ConfigError(
                f"the configuration file must hold exactly kind, {', '.join(_PARTS)}. "
                "Use the config.json that a run wrote."
            )
        config = _read_config(record["config"])
        origin = _read_words(record, "origin")
        _match_keys("origin", origin)
        warnings = record["warnings"]
        if not isinstance(warnings, list) or not _all_text(cast("list[Any]", warnings)):
            raise ConfigError(f"'warnings' must be a list of texts, not {warnings!r}.")
        return cls(
            config=config,
            origin=origin,
            unused=_read_words(record, "unused"),
            notes=_read_words(record, "notes"),
            warnings=tuple(cast("list[str]", warnings)),
        )

    def _note(self, key: str) -> str:
        if key in self.unused:
            return f"unused: {self.unused[key]}"
        return self.notes.get(key, "")


def _read_config(tree: Any) -> RunConfig:
    if not isinstance(tree, dict):
        raise ConfigError(f"'config' must be an object, not {tree!r}.")
    flat = dict(flatten(cast("dict[str, Any]", tree)))
    problems: list[Problem] = []
    for key, value in flat.items():
        try:
            known = canonical(key, value)
        except Problem as problem:
            problems.append(problem)
            continue
        if known != key:
            problems.append(Problem(key, value, "not a canonical key", f"Write {known}."))
    fail_on(problems)
    _match_keys("config", flat)
    try:
        return RunConfig.model_validate_json(json.dumps(nest(flat)), strict=True)
    except ValidationError as error:
        bad = {_leaf(error_part["loc"]) for error_part in error.errors()}
        fail_on(misfit(key, flat[key]) for key in flat if key in bad)
        raise ConfigError(f"the configuration file does not validate: {error}.") from error


def _leaf(location: tuple[int | str, ...]) -> str:
    parts = [str(part) for part in location]
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in leaf_fields()), "")


def _match_keys(part: str, given: Iterable[str]) -> None:
    missing = [key for key in leaf_fields() if key not in set(given)]
    if missing:
        raise ConfigError(
            f"the configuration file lacks {missing[0]!r} in {part!r} ({len(missing)} keys "
            "in all). It was cut or written by another version; start a new run."
        )
    extra = sorted(set(given) - set(leaf_fields()))
    if extra:
        raise ConfigError(f"the configuration file has the unknown key {extra[0]!r} in {part!r}.")


def _read_words(record: Mapping[str, Any], part: str) -> dict[str, str]:
    value = record[part]
    if not isinstance(value, dict) or not _all_text(cast("dict[str, Any]", value).values()):
        raise ConfigError(f"{part!r} must map keys to texts, not {value!r}.")
    return cast("dict[str, str]", value)


def _all_text(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)
