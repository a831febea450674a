"""Atomic file writes that keep existing files, and the cache folder.

`temporary_path` names the file to write before renaming, `describe_folder` describes a folder that
a user chose as output, `write_files` and `check_overwrite` keep a file that has other content. They
are used for all files that must be complete, or that a user named (`runs/folder.py`,
`policy/model.py`, `cli/export.py`). Downloads and other reusable files lie in `cache_folder`, where
`lock_file` lets one process create them.
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

_TEMPORARY = re.compile(r"\..+\.\d+\.\d+\.tmp")
_MAX_NAMES = 3
"""Maximum number of file names in a message."""


def temporary_path(path: Path) -> Path:
    """Return an unused hidden path in the folder of `path`, for a file to be renamed later."""
    names = (path.with_name(f".{path.name}.{os.getpid()}.{n}.tmp") for n in itertools.count())
    return next(name for name in names if not os.path.lexists(name))


def temporary_names(folder: Path) -> set[str]:
    """Return the names of temporary files left in a folder by killed processes."""
    return {left.name for left in folder.glob(".*.tmp") if _TEMPORARY.fullmatch(left.name)}


def remove_temporary(folder: Path) -> None:
    """Remove temporary files of killed processes from a folder that is not in use."""
    for left in (folder / name for name in temporary_names(folder)):
        with suppress(OSError):
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def cache_folder(name: str) -> Path:
    """Return the cache folder `name` in `$XDG_CACHE_HOME` or `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    home = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return home / "tutelage" / name


def check_disk_space(
    folder: Path,
    size: float,
    need: str = "the model needs",
    advice: str = "free some space, or set XDG_CACHE_HOME to a folder on another disk",
) -> None:
    """Raise `ConfigError` if the disk of a folder has less than `size` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise ConfigError(
            f"{need} {size / 1e9:.3g} GB in {str(folder)!r}, but only {free / 1e9:.3g} GB are "
            f"free; {advice}"
        )


@contextmanager
def lock_file(path: Path, notify: Callable[[str], None], activity: str) -> Generator[None]:
    """Hold an exclusive file lock, or continue without it if the file system has no locks.

    `notify` receives a message if another process does the `activity`. The file is removed at the
    end: a process that waited for a removed file locks the new one.
    """
    import fcntl  # which Windows lacks

    while True:
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                notify(f"another process {activity}; waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                notify(f"cannot lock {path.parent}; continuing without a lock")
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


def describe_folder(folder: Path, ignored: Container[str] = ()) -> str | None:
    """Return a description of a folder's files except `ignored`, or None if the folder is missing
    or has no other files."""
    if not os.path.lexists(folder):
        return None
    if not folder.is_dir():
        return "it is a file"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name not in ignored)
    if not names:
        return None
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"it contains {', '.join(map(repr, names[:_MAX_NAMES]))}{more}"


def check_overwrite(path: Path, content: bytes | Path, option: str) -> None:
    """Raise `RunError` if a non-empty file exists whose content differs from `content`.

    `content` may be the file that would replace it; `option` names the option to change.
    """
    try:
        if not path.is_file() or path.stat().st_size == 0:
            return
        if isinstance(content, bytes):
            same = path.read_bytes() == content
        else:
            same = filecmp.cmp(path, content, shallow=False)
    except OSError as error:
        raise _write_error(path, error) from error
    if not same:
        raise RunError(
            f"{str(path)!r} already exists with other content; move it away or use another {option}"
        )


def write_files(texts: Mapping[Path, str], option: str) -> None:
    """Write all files, or raise `RunError` if any exists with different content.

    Missing folders are created. A device or a pipe is written directly, since it cannot be replaced
    by a file.
    """
    for path, text in texts.items():
        check_overwrite(path, text.encode(), option)
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
            raise _write_error(path, error) from error


def _write_error(path: Path, error: OSError) -> RunError:
    """Return the error for a file that cannot be written."""
    return RunError(f"cannot write {str(path)!r}: {error.strerror or error}")
