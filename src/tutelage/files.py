"""Files are written aside and renamed, and nothing that another program put there is lost by it.

`temporary_path` names the file to write first, `folder_content` is asked before a folder that the
user chose is filled, `write_new` and `check_new` leave a file that has other content. Whatever
writes a file that must be whole, or that the user named, uses these (`runs/folder.py`,
`policy/model.py`, `cli/export.py`). What is made once and kept lies in `cache_folder`, where
`locked` lets one process make it.
"""

from __future__ import annotations

import filecmp
import itertools
import os
import re
import shutil
from collections.abc import Callable, Container, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tutelage.errors import ConfigError, RunError

_ASIDE = re.compile(r"\..+\.\d+\.\d+\.tmp")
_SHOWN = 3
"""Names of a folder's files that a message tells."""


def temporary_path(path: Path) -> Path:
    """A hidden name beside `path` that nothing has, to write to before renaming."""
    names = (path.with_name(f".{path.name}.{os.getpid()}.{n}.tmp") for n in itertools.count())
    return next(name for name in names if not os.path.lexists(name))


def temporary_names(folder: Path) -> set[str]:
    """Names of what processes that were killed left behind in a folder that nobody writes to."""
    return {left.name for left in folder.glob(".*.tmp") if _ASIDE.fullmatch(left.name)}


def remove_temporary(folder: Path) -> None:
    """Remove that."""
    for left in (folder / name for name in temporary_names(folder)):
        with suppress(OSError):
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def cache_folder(name: str) -> Path:
    """Where things of this name are kept: below `$XDG_CACHE_HOME`, or `~/.cache` without it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    home = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return home / "tutelage" / name


def check_room(
    folder: Path,
    size: float,
    need: str = "the model needs",
    way: str = "free some space, or set XDG_CACHE_HOME to a folder on another disk",
) -> None:
    """Raise `ConfigError` where the disk of a folder has no room for that many bytes."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise ConfigError(
            f"{need} {size / 1e9:.3g} GB in {str(folder)!r}, but only {free / 1e9:.3g} GB are "
            f"free; {way}"
        )


@contextmanager
def locked(path: Path, note: Callable[[str], None], work: str) -> Generator[None]:
    """Held by one process at a time, gone with it; by all at once where nothing can be locked.

    `note` is told when another process does the `work`. The file is removed at the end: who waited
    for one that is gone by then locks the one that is there.
    """
    import fcntl  # which Windows lacks

    while True:
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                note(f"another process {work}; waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                note(f"cannot lock {path.parent}; continuing without a lock")
            held = False
            with suppress(FileNotFoundError):
                held = os.path.samestat(os.fstat(file.fileno()), path.stat())
            if not held:
                continue  # the file that has the name now is another one
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def folder_content(folder: Path, besides: Container[str] = ()) -> str | None:
    """What a folder that is to be filled holds already, `besides` names that may be there, in
    words; None when it may be filled."""
    if not os.path.lexists(folder):
        return None
    if not folder.is_dir():
        return "it is a file"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name not in besides)
    if not names:
        return None
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"it contains {', '.join(map(repr, names[:_SHOWN]))}{more}"


def check_new(path: Path, content: bytes | Path, other: str) -> None:
    """Raise `RunError` where a file has other content than what is to be written there.

    The same content again is no fault, and an empty file holds nothing that could be lost.
    `content` may be the file that would take its place; `other` is what to give instead.
    """
    try:
        if not path.is_file() or path.stat().st_size == 0:
            return
        if isinstance(content, bytes):
            same = path.read_bytes() == content
        else:
            same = filecmp.cmp(path, content, shallow=False)
    except OSError as error:
        raise _refused(path, error) from error
    if not same:
        raise RunError(
            f"{str(path)!r} already exists with other content; move it away, or use another {other}"
        )


def write_new(texts: Mapping[Path, str], other: str) -> None:
    """Write files, but none over one that has other content: then nothing is written at all.

    Folders that are missing are made. A device or a pipe cannot be replaced by a file, so it is
    written straight. Raises `RunError`.
    """
    for path, text in texts.items():
        check_new(path, text.encode(), other)
    for path, text in texts.items():
        place = temporary_path(path) if path.is_file() or not path.exists() else path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
            if place is not path:
                os.replace(place, path)
        except OSError as error:
            with suppress(OSError):
                if place is not path:
                    place.unlink(missing_ok=True)
            raise _refused(path, error) from error


def _refused(path: Path, error: OSError) -> RunError:
    return RunError(f"cannot write {str(path)!r}: {error.strerror or error}")
