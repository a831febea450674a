"""Registries of what a user may add to: advantage estimators, policy losses, agent types.

A configuration names one of them by its registered name, or as `FILE.py:name` in a user's
file. A registry says where each built-in one is and imports it when it is asked for, so that a
name costs nothing. A file is read when a configuration is resolved and again when its run begins,
both before any model loads; what it held then is used to the end. The registries are in
`algorithms/extensions.py` and `agents/builtin.py`, what a configuration reads of an entry in
`weights/config/extensions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from tutelage.errors import ConfigError, TutelageError
from tutelage.tools.loading import (
    hint,
    import_attribute,
    is_file_reference,
    load_attribute,
    raised_by,
)

Entry = TypeVar("Entry")


class ExtensionRegistry(Mapping[str, Entry], Generic[Entry]):
    """The entries of one configuration key: a mapping of built-in ones by name, and those of
    files."""

    def __init__(
        self,
        key: str,
        places: Mapping[str, str],
        accept: Callable[[object], Entry],
    ) -> None:
        """`places` has `module:attribute` by name. `accept` makes an entry of what a file holds,
        and raises `ConfigError` if it is not valid."""
        self.key, self._places, self._accept = key, places, accept
        self._loaded: dict[str, Entry] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, name: str) -> Entry:
        return import_attribute(self._places[name])

    def load(self, name: str) -> Entry:
        """The entry of a name, or of `FILE.py:name` as the file is now.

        Raises `ConfigError` for an unknown name, a file that fails, a name in it that is missing
        or taken, and for what is no entry.
        """
        if not is_file_reference(name):
            return self.find(name)
        _, _, own = name.rpartition(":")
        if own in self._places:
            raise ConfigError(
                f"{self.key} {name!r}: the name {own!r} is already registered; choose another name "
                "for yours"
            )
        found = load_attribute(name, self.key)
        try:
            self._loaded[name] = self._accept(found)
        except ConfigError as error:
            raise ConfigError(f"{self.key} {name!r} {error}") from error
        return self._loaded[name]

    def find(self, name: str) -> Entry:
        """The entry of a name or of `FILE.py:name`, a file as it was when it was loaded."""
        if name in self._places:
            return self[name]
        if name in self._loaded:
            return self._loaded[name]
        if is_file_reference(name):
            return self.load(name)
        near, listed = hint(name, self, "did you mean {!r}? "), ", ".join(self)
        raise ConfigError(f"unknown {self.key}: {name!r}; {near}choose one of: {listed}")

    def call(
        self, name: str, function: Callable[..., object], *given: Any, **options: Any
    ) -> object:
        """What an entry's function returns. Raises `ConfigError` for an error inside a function of
        a user's file, with the line."""
        try:
            return function(*given, **options)
        except TutelageError:
            raise
        except Exception as error:
            if not is_file_reference(name):
                raise
            raise ConfigError(f"{self.key} {name!r} failed{raised_by(function, error)}") from error

    def known(self, name: str) -> Entry | None:
        """What `load` gives, None for an unknown name."""
        return None if self.problem(name) else self.load(name)

    def problem(self, name: str) -> tuple[str, str] | None:
        """What is wrong with an unknown name, and the way out; None for others."""
        if name in self._places or is_file_reference(name):
            return None
        near = hint(name, self, "Did you mean {!r}? ")
        return "unknown extension", f"{near}Use one of {', '.join(self)}, or FILE.py:name."
