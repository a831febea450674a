"""Registries that users can extend: advantage estimators, policy losses, agent types.

A configuration selects an entry by its registered name, or as `FILE.py:name` from a user's file.
Built-in entries are imported on first use, so that listing names is cheap. A file is read when a
configuration is resolved and again when its run begins, both before any model loads; later changes
of the file have no effect. The registries are in `algorithms/extensions.py` and
`agents/builtin.py`; `weights/config/extensions.py` validates their entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from tutelage.errors import ConfigError, TutelageError
from tutelage.tools.loading import (
    error_text,
    hint,
    import_attribute,
    is_file_reference,
    load_attribute,
)

Entry = TypeVar("Entry")


class ExtensionRegistry(Mapping[str, Entry], Generic[Entry]):
    """Built-in and user-defined entries for one configuration key, by name."""

    def __init__(
        self,
        key: str,
        locations: Mapping[str, str],
        convert: Callable[[object], Entry],
    ) -> None:
        """Register `locations`, names mapped to `module:attribute`. `convert` turns a user's object
        into an entry, or raises `ConfigError`."""
        self.key, self._places, self._accept = key, locations, convert
        self._loaded: dict[str, Entry] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, name: str) -> Entry:
        return import_attribute(self._places[name])

    def load(self, name: str) -> Entry:
        """Return the entry for a name or for `FILE.py:name`, reading the file again.

        Raises `ConfigError` for an unknown name, a file that fails to load, an object that is
        missing or no valid entry, and a name that is already registered.
        """
        if not is_file_reference(name):
            return self.find(name)
        _, _, base = name.rpartition(":")
        if base in self._places:
            raise ConfigError(
                f"{self.key} {name!r}: the name {base!r} is already registered; choose another name"
            )
        attribute = load_attribute(name, self.key)
        try:
            self._loaded[name] = self._accept(attribute)
        except ConfigError as error:
            raise ConfigError(f"{self.key} {name!r} {error}") from error
        return self._loaded[name]

    def find(self, name: str) -> Entry:
        """Return the entry for a name or for `FILE.py:name`, without reloading the file."""
        if name in self._places:
            return self[name]
        if name in self._loaded:
            return self._loaded[name]
        if is_file_reference(name):
            return self.load(name)
        near, names = hint(name, self, "did you mean {!r}? "), ", ".join(self)
        raise ConfigError(f"unknown {self.key}: {name!r}; {near}choose one of: {names}")

    def call(
        self, name: str, function: Callable[..., object], *arguments: Any, **options: Any
    ) -> object:
        """Call an entry's function and return its result. Raises `ConfigError` with the line number
        for an error in a user's file."""
        try:
            return function(*arguments, **options)
        except TutelageError:
            raise
        except Exception as error:
            if not is_file_reference(name):
                raise
            raise ConfigError(f"{self.key} {name!r} failed{error_text(function, error)}") from error

    def load_or_none(self, name: str) -> Entry | None:
        """Return the entry for a name, or None if the name is unknown."""
        return None if self.check_name(name) else self.load(name)

    def check_name(self, name: str) -> tuple[str, str] | None:
        """Return an error message and advice for an unknown name, or None for a known name."""
        if name in self._places or is_file_reference(name):
            return None
        near = hint(name, self, "Did you mean {!r}? ")
        return "unknown extension", f"{near}Use one of {', '.join(self)}, or FILE.py:name."
