"""Parser of `KEY=VALUE` overrides in the grammar of Hydra, and reader of configuration files.

`a.b=c`, `+a=b`, `++a=b`, lists, dicts, quotes, null and numbers have Hydra's meaning; every key is
in the schema already, so the three forms of setting one are equal here. Sweeps, config groups,
deletions and interpolations are rejected with the reason. Hydra comes with the extra `train` and is
loaded only for an override. `resolve.py` applies the parsed pairs.
"""

from __future__ import annotations

import copy
import functools
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tutelage.config.keys import flatten
from tutelage.errors import ConfigError

_PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class Override:
    """Override of a configuration key: the key as the user spelled it, and the value."""

    spelling: str
    value: Any


def parse_overrides(texts: Sequence[str | Override]) -> list[Override]:
    """Parse overrides; a dict value becomes one override per key. An `Override` is kept unchanged.

    Raises `ConfigError` with the text and the reason.
    """
    parsed = ([o] if isinstance(o, Override) else copy.deepcopy(_parse_override(o)) for o in texts)
    return [override for overrides in parsed for override in overrides]


def read_keys(path: Path) -> dict[str, Any]:
    """Read a JSON or TOML file of configuration keys. Raises `ConfigError` for an invalid file."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        if not isinstance(tree, dict):
            raise ValueError("the top level must be an object")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read the configuration file {str(path)!r}: {error}. Use JSON or TOML."
        ) from error
    return cast("dict[str, Any]", tree)


# Kept, since Hydra's parser takes milliseconds, and the runs of a process say much the same.
@functools.lru_cache(maxsize=1024)
def _parse_override(text: str) -> tuple[Override, ...]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(text)
    except HydraException as error:
        if "=" not in text and not text.startswith("~"):
            raise ConfigError(f"the override {text!r} has no '='. Use KEY=VALUE.") from error
        reason = str(error).strip().split("\n")[0].partition(" expecting ")[0]
        raise ConfigError(
            f"cannot read the override {text!r}: {reason}.\nQuote text with = ( ) [ ] {{ }} : or , "
            "inside the quotes of the shell: 'key=\"a=b\"'."
        ) from error
    key = str(parsed.key_or_group)
    if not key:
        raise ConfigError(f"the override {text!r} has no key. Use KEY=VALUE.")
    if parsed.is_delete():
        raise ConfigError(f"the override {text!r} deletes a key, which is not supported; omit it.")
    if parsed.package is not None or "/" in key:
        raise ConfigError(
            f"the override {text!r} selects a config group, which is not supported. Use dots in "
            "the key: section.key=value."
        )
    if parsed.is_sweep_override():
        simple = getattr(parsed.value(), "simple_form", False)
        a_list = f"For a list use {key}=[{text.partition('=')[2]}]. " * bool(simple)
        raise ConfigError(
            f"the override {text!r} is a sweep, which is not supported. {a_list}For a sweep start "
            "one run for each value."
        )
    value = parsed.value()
    for leaf in _iter_leaves(value):
        if not isinstance(leaf, _PLAIN) or "${" in str(leaf):
            raise ConfigError(
                f"the override {text!r} has an interpolation or another value that is not "
                "supported. Use a plain number, text, list or dict."
            )
    if isinstance(value, Mapping) and value:
        tree = cast("Mapping[str, Any]", value)
        return tuple(Override(spelling, leaf) for spelling, leaf in flatten(tree, f"{key}."))
    return (Override(key, value),)


def _iter_leaves(value: Any) -> Iterator[Any]:
    """Yield the leaf values of nested lists and dicts."""
    if not isinstance(value, (list, dict)):
        yield value
        return
    items = cast("Any", value.values() if isinstance(value, dict) else value)
    for item in items:
        yield from _iter_leaves(item)
