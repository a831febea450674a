"""Files are written aside and renamed, and nothing that somebody else put there is lost by it.

`aside` names the file to write first, `occupied` is asked before a folder of the user's choice is
filled, `write_new` leaves a file that has other content. Whatever writes a file that must be whole
uses these (`runs/folder.py`, `policy/model.py`, `cli/export.py`).
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from tutelage.errors import RunError

_ASIDE = re.compile(r"\..+\.\d+\.\d+\.tmp")
_SHOWN = 3
"""Names of a folder's files that a message tells."""


def aside(path: Path) -> Path:
    """A hidden name beside `path` that nothing has, to write to before renaming."""
    names = (path.with_name(f".{path.name}.{os.getpid()}.{n}.tmp") for n in itertools.count())
    return next(name for name in names if not os.path.lexists(name))


def clear(folder: Path) -> None:
    """Remove what processes that were killed left aside in a folder that nobody writes to now."""
    for left in folder.glob(".*.tmp"):
        if _ASIDE.fullmatch(left.name):
            with suppress(OSError):
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def occupied(folder: Path) -> str | None:
    """What a folder that is to be filled holds already, in words; None when it may be filled."""
    if not os.path.lexists(folder):
        return None
    if not folder.is_dir():
        return "it is a file"
    found = sorted(entry.name for entry in folder.iterdir())
    if not found:
        return None
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"it holds {', '.join(map(repr, found[:_SHOWN]))}{more}"


def write_new(path: Path, text: str) -> None:
    """Write a file whose name was not chosen by the user, but no other file over.

    The same content again is no fault. Raises `RunError` where other content is there.
    """
    try:
        there = path.read_bytes() if os.path.lexists(path) else None
        if there is None:
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    if there is not None and there != text.encode():
        raise RunError(
            f"{str(path)!r} is there already, with other content, and is not written over; move "
            "it away, or give another folder"
        )
