"""Keys of servers, as the environment or a program gives them.

A key is sent in a header of each request. What no header can carry is refused before the first, in
words that do not have the key: the errors of HTTP clients show the header.
"""

from __future__ import annotations

from collections.abc import Mapping

from tutelage.errors import ConfigError


def api_key_of(env: Mapping[str, str], *names: str) -> str | None:
    """The key in the first of these variables that is set; None where none is, or all are empty.

    Raises `ConfigError` for one that no header can carry.
    """
    keys = (checked_api_key(env.get(name), name) for name in names)
    return next((key for key in keys if key is not None), None)


def checked_api_key(key: str | None, name: str) -> str | None:
    """A key without the white space around it, None where nothing is left. `name` says in an error
    where it is from.

    Raises `ConfigError` for one that no header can carry.
    """
    key = (key or "").strip()
    if wrong := unsendable(key):
        raise ConfigError(
            f"invalid API key in {name}: {wrong}; set {name} to the key issued by the server"
        )
    return key or None


def unsendable(value: str) -> str:
    """Why no header can carry a value, without the value; empty where one can."""
    for at, character in enumerate(value, 1):
        if not (character.isascii() and character.isprintable()):
            return (
                f"character {at} of {len(value)} is U+{ord(character):04X}, but headers allow only "
                "printable ASCII"
            )
    return ""
