"""Bounded parsing of JSON from models, servers and clients, and direct requests to this machine.

Deeply nested text overflows a recursive reader, or the code that later prints or copies the value.
`parse_json` therefore limits length and depth of untrusted text; text that this program wrote needs
no limit.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, AnyStr, cast

DEEPEST = 100
"""Maximum nesting depth of arrays and objects."""
LONGEST = 16 << 20
"""Maximum characters, or bytes, of JSON text."""

DIRECT: Mapping[str, None] = dict.fromkeys(("all://localhost", "all://127.0.0.1", "all://[::1]"))
"""`mounts` of an HTTP client that sends requests to this machine without a proxy."""


def bypass_proxy_on_loopback(env: MutableMapping[str, str]) -> Mapping[str, str]:
    """Add the loopback hosts to `NO_PROXY` and `no_proxy` in `env` if a proxy is set, and return
    `env`. Without a proxy, these variables would make Python's HTTP clients ignore the proxy
    settings of macOS."""
    if not any(value and name.lower().endswith("_proxy") for name, value in env.items()):
        return env
    known = env.get("no_proxy") or env.get("NO_PROXY") or ""
    for name in ("NO_PROXY", "no_proxy"):
        hosts = [host.strip() for host in (env.get(name) or known).split(",") if host.strip()]
        if "*" not in hosts:
            env[name] = ",".join(dict.fromkeys([*hosts, "localhost", "127.0.0.1", "::1"]))
    return env


class RepeatedKeyError(ValueError):
    """Raised for a repeated `key` in a JSON object, where most parsers keep the last value."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r:.80} stands twice in one object; keep one of them")
        self.key = key


def reject_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object from its members, as an `object_pairs_hook`. Raises
    `RepeatedKeyError`."""
    made = dict(pairs)
    if len(made) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise RepeatedKeyError(next(name for name in made if counts[name] > 1))
    return made


def json_lines(text: AnyStr) -> Iterator[tuple[int, AnyStr]]:
    """Yield (line number, line) for each non-blank line of JSON Lines text.

    `\\n` alone ends a line, and a `\\r` before it is blank in JSON. `splitlines` would also cut at
    U+2028, U+2029 and U+0085, which may stand in a JSON string.
    """
    lines = text.split("\n") if isinstance(text, str) else text.split(b"\n")
    for number, line in enumerate(cast("list[AnyStr]", lines), 1):
        if line.strip():
            yield number, line


def replace_surrogates(value: Any) -> Any:
    """Replace unpaired surrogates, which UTF-8 cannot encode, in a JSON value by U+FFFD."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [replace_surrogates(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return {replace_surrogates(k): replace_surrogates(v) for k, v in pairs}
    return value


def parse_json(
    text: str | bytes,
    *,
    max_length: int = LONGEST,
    max_depth: int = DEEPEST,
    loads: Callable[[str | bytes], Any] = json.loads,
) -> Any:
    """Parse JSON text. Raises `ValueError` if it is invalid, too long or too deeply nested.

    A syntax error is a `json.JSONDecodeError`, with its position. `loads` may be another parser.
    """
    if len(text) > max_length:
        unit = "bytes" if isinstance(text, bytes) else "characters"
        raise ValueError(f"the JSON has {len(text)} {unit}; at most {max_length} are read")
    too_deep = ValueError(f"the JSON is nested more than {max_depth} levels deep")
    try:
        value = loads(text)
    except RecursionError:
        raise too_deep from None
    brackets: Any = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
    deep = sum(text.count(each) for each in brackets) > max_depth  # else it cannot be
    level: list[Any] = [[value]]
    for _ in range(max_depth + 2 if deep else 0):  # without recursion
        held = (outer.values() if isinstance(outer, dict) else outer for outer in level)
        level = [each for part in held for each in part if isinstance(each, (dict, list))]
    if deep and level:
        raise too_deep
    return value


def parse_arguments(text: str) -> Any:
    """Parse a tool call's arguments, and raise `ValueError` if they cannot be written as JSON.

    Raises `ValueError` as `parse_json`, and for values that some JSON parsers lack: NaN and
    Infinity, numbers beyond a float or 64 bits, unpaired surrogates.
    """
    value = parse_json(text, loads=_STRICT_LOADS)
    if "\\ud" in text or "\\uD" in text:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _parse_integer(text: str) -> int:
    """Parse an integer. Raises `ValueError` if it exceeds 64 bits."""
    value = int(text)
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"{text} is beyond 64 bits")
    return value


def _parse_float(text: str) -> float:
    """Parse a number. Raises `ValueError` for NaN and infinity."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


_STRICT_LOADS: Any = json.JSONDecoder(
    parse_float=_parse_float, parse_int=_parse_integer, parse_constant=_parse_float
).decode
