"""What a watcher sees of a sandbox that shares the machine's file system: its files and threads.

In the tier `rlimit` no limit of the kernel covers all files together, files without a name, or the
threads of root. So the watcher (`server.py`) counts them ten times a second, and ends a sandbox
that has too many or that hides them: what cannot be counted is too much. `remove` clears its folder
afterwards, whatever shape it was given.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

_BLOCK = 4096
"""Bytes that a file or folder takes at least, so that empty ones are bounded too."""
_SLACK = 64 << 10
"""For folders and for blocks that a file does not fill."""
_DEEPEST = 64
"""Folders within folders; a path of more could grow too long to be looked at."""


def uses_too_much(child: int, home: str, disk: int, threads: int) -> bool:
    """Whether the process has more than `disk` bytes of files or more than `threads` threads.

    So has one that keeps its files from being counted. A process that is gone has none.
    """
    try:
        if len(os.listdir(f"/proc/{child}/task")) > threads:
            return True
        return _in_folder(home) + _without_name(child) > disk + _SLACK
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True


def _in_folder(home: str) -> int:
    """Bytes of all files below `home`. Raises `OSError` where a folder cannot be read."""
    total, pending = 0, [(home, 0)]
    while pending:
        folder, depth = pending.pop()
        if depth > _DEEPEST:
            raise OSError(f"more than {_DEEPEST} folders within folders")
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                total += _BLOCK
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        pending.append((entry.path, depth + 1))
                    else:
                        blocks = entry.stat(follow_symlinks=False).st_blocks
                        total += max(0, blocks * 512 - _BLOCK)
    return total


def _without_name(child: int) -> int:
    """Bytes of files that the process removed and still holds open or in its memory."""
    held: dict[int, int] = {}
    place = f"/proc/{child}/fd"
    for name in os.listdir(place):
        # A file descriptor may be closed between the two looks.
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(f"{place}/{name}")
            ours = os.readlink(f"{place}/{name}").startswith("/memfd:")
            if stat.S_ISREG(found.st_mode) and not found.st_nlink and not ours:
                held[found.st_ino] = found.st_blocks * 512
    for line in Path(f"/proc/{child}/maps").read_text(errors="replace").splitlines():
        if line.endswith(" (deleted)") and "/memfd:" not in line and "/dev/zero" not in line:
            span, _, _, _, inode, *_ = line.split()
            first, _, last = span.partition("-")
            held.setdefault(int(inode), 0)
            held[int(inode)] = max(held[int(inode)], int(last, 16) - int(first, 16))
    return sum(held.values())


def remove(home: str) -> None:
    """Remove a folder and all below it, once nothing writes there.

    Inner folders are moved to the top before they are emptied: neither their depth nor their modes
    can keep one alive.
    """
    moved = 0
    with contextlib.suppress(OSError):
        os.chmod(home, 0o700)
        while entries := list(os.scandir(home)):
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                    continue
                os.chmod(entry.path, 0o700)
                for inner in list(os.scandir(entry.path)):
                    if inner.is_dir(follow_symlinks=False):
                        os.chmod(inner.path, 0o700)
                        moved += 1
                        os.rename(inner.path, os.path.join(home, f"{os.getpid()}.{moved}"))
                    else:
                        os.unlink(inner.path)
                os.rmdir(entry.path)
        os.rmdir(home)
