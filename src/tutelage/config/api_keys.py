"""API keys of servers, from the environment or from a program.

A key is sent in a header of each request. A key that a header cannot carry is rejected before the
first request, in a message without the key, since errors of HTTP clients would show it.
"""

from __future__ import annotations

from collections.abc import Mapping

from tutelage.errors import ConfigError


def read_api_key(env: Mapping[str, str], *names: str) -> str | None:
    """Return the first API key that is set in the environment variables `names`, or None.

    Raises `ConfigError` for a key that a header cannot carry.
    """
    keys = (validate_api_key(env.get(name), name) for name in names)
    return next((key for key in keys if key is not None), None)


def validate_api_key(key: str | None, name: str) -> str | None:
    """Return an API key without surrounding whitespace, or None if it is empty. `name` is the
    source of the key in error messages.

    Raises `ConfigError` for a key that a header cannot carry.
    """
    key = (key or "").strip()
    if problem := find_bad_character(key):
        raise ConfigError(
            f"invalid API key in {name}: {problem}; set {name} to the key issued by the server"
        )
    return key or None


def find_bad_character(value: str) -> str:
    """Return the reason why a value is invalid in an HTTP header; empty if it is valid."""
    for at, character in enumerate(value, 1):
        if not (character.isascii() and character.isprintable()):
            return (
                f"character {at} of {len(value)} is U+{ord(character):04X}, but headers allow only "
                "printable ASCII"
            )
    return ""
