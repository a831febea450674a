"""Verifiers by their kind, as files name them, and the default where none is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tutelage.errors import ConfigError
from tutelage.orchestration.execution.verifiers import (
    Exact,
    Known,
    Present,
    Regex,
    Schema,
    Tests,
    Verifier,
    Verifiers,
)


def default_verifiers(*, mock: bool, has_expected: bool = False) -> Verifiers:
    """`known` for pools with the truth; `exact` where answers are expected, else `present`."""
    if mock:
        return Verifiers(Known())
    return Verifiers(Exact() if has_expected else Present())


def make_verifier(given: Mapping[str, Any], where: str = "a verifier") -> Verifier:
    """A verifier from JSON: `{"kind": "regex", "pattern": "..."}` and so on.

    Raises `ConfigError` for an unknown kind or field.
    """
    fields = dict(given)
    kind = fields.pop("kind", None)
    made = {
        "known": Known,
        "present": Present,
        "exact": Exact,
        "regex": Regex,
        "schema": Schema,
        "tests": Tests,
    }.get(str(kind))
    if kind == "judge":
        from tutelage.orchestration.execution.judge import Judge

        made = Judge
    if made is None:
        kinds = "known, present, exact, regex, schema, tests, judge"
        raise ConfigError(f"{where}: kind {kind!r} does not exist; there are {kinds}")
    try:
        return made(**fields)
    except TypeError as error:
        raise ConfigError(f"{where} ({kind!r}): {error}") from error
