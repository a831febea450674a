"""What the pieces of a streamed message add up to: the rest of texts and lists, in objects too.

A text is a list of its pieces until it is whole: Python copies it for each piece that is added, and
a reply of megabytes would cost minutes, in which the loop answers nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from tutelage.engine.asked import DETAILS
from tutelage.types import JSON

_WHOLE = frozenset({"id", "type", "format"})
"""Texts that come at once."""


class Pieces(list[str]):
    """A text as far as it has come; `joined` has it whole."""


def collect(whole: JSON, name: str, text: str) -> None:
    """Add a piece to a text, which is kept as pieces."""
    known = whole.get(name)
    if isinstance(known, Pieces):
        known.append(text)
    elif known and not isinstance(known, str):
        raise TypeError(f"{name} changed from {type(known).__name__} to a string within one reply")
    elif known and text:
        whole[name] = Pieces((known, text))
    else:
        whole[name] = known or text


def _add(whole: JSON, name: str, text: str) -> None:
    whole[name] = (whole.get(name) or "") + text


def joined(value: Any) -> Any:
    """The value with its texts whole."""
    match value:
        case Pieces():
            return "".join(value)
        case dict():
            return {name: joined(each) for name, each in cast("JSON", value).items()}
        case list():
            return [joined(each) for each in cast("list[Any]", value)]
        case _:
            return value


def merge(whole: JSON, more: JSON, add: Callable[[JSON, str, str], None] = _add) -> None:
    """Add the pieces that a delta brings; `add` may be `collect`. The delta itself is told to
    others, so nothing of it is changed later."""
    for name, value in more.items():
        known = whole.get(name)
        if isinstance(value, str) and name not in _WHOLE:
            add(whole, name, value)
        elif isinstance(value, list):
            known, more_of_it = known or [], cast("list[Any]", value)
            whole[name] = (
                joined_details(known, more_of_it) if name == DETAILS else [*known, *more_of_it]
            )
        elif isinstance(value, dict):
            whole[name] = known if isinstance(known, dict) else {}
            merge(whole[name], cast("JSON", value), add)
        elif value is not None:
            whole[name] = value


def joined_details(known: list[Any], pieces: list[Any]) -> list[Any]:
    """Details of a thought with further pieces: one of the place and type of the last is more of
    it."""
    known = list(known)
    for piece in pieces:
        last = known[-1] if known else None
        if _place_of(last) is not None and _place_of(piece) == _place_of(last):
            known[-1] = dict(cast("JSON", last))
            merge(known[-1], cast("JSON", piece))
        else:
            known.append(piece)
    return known


def _place_of(detail: Any) -> tuple[int, Any] | None:
    match detail:
        case {"index": int(at)}:
            return at, cast("JSON", detail).get("type")
        case _:
            return None
