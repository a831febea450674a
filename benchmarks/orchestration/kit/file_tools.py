"""Tools on the files of one folder: list, find, read, write, move, delete.

A path is relative to the folder. What lies outside is refused, and so is every symbolic link, so
that no path leads out. Whatever changes a file returns the path of the file, so that a later step
can name it.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tutelage.tools.loading import hint
from tutelage.tools.tool import ToolError, tool

MAX_BYTES = 1_000_000
"""Of a file that is read or written."""
_MAX_PATH = 300
_MAX_FILES = 2000


class FileTools:
    """The tools of a folder; each attribute is a tool that is bound to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    @tool
    def list_files(self, folder: str = ".") -> list[str]:
        """List the files of a folder and of the folders in it, as a list of paths.

        Args:
            folder: Such as notes; without one, everything is listed.
        """
        place = inside(self.folder, folder)
        if not place.is_dir():
            raise ToolError(f"{folder!r} is not a folder; the folders are {self._folders()}")
        return _listed(self.folder, place)

    @tool
    def find_files(self, pattern: str) -> list[str]:
        """Find files by a pattern, as a list of paths; empty when there are none.

        Args:
            pattern: Of the name, such as *.png, or of the path, such as photos/*.png.
        """
        if len(pattern) > _MAX_PATH or not pattern.strip():
            raise ToolError("give a pattern such as *.png or photos/*.png")
        wanted = pattern.strip().removeprefix("./").removeprefix("**/")
        return [
            path
            for path in _listed(self.folder, self.folder)
            if fnmatch.fnmatchcase(path if "/" in wanted else PurePosixPath(path).name, wanted)
        ]

    @tool
    def read_file(self, path: str) -> str:
        """Read a text file.

        Args:
            path: Such as notes/todo.txt.
        """
        file = self._existing(path)
        if file.stat().st_size > MAX_BYTES:
            raise ToolError(f"{path!r} is larger than {MAX_BYTES:,} bytes and is not read")
        try:
            return file.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            raise ToolError(f"{path!r} is not a text file; databases answer query_table") from None

    @tool(destructive=True)
    def write_file(self, path: str, text: str | list[str]) -> str:
        """Write a text file, over the one that is there; returns its path.

        Args:
            path: Such as notes/new.txt.
            text: The whole text, or a list of its lines.
        """
        file = inside(self.folder, path)
        whole = text if isinstance(text, str) else "".join(f"{line}\n" for line in text)
        content = whole.encode("utf-8", "backslashreplace")
        if len(content) > MAX_BYTES:
            raise ToolError(f"a file may have {MAX_BYTES:,} bytes, and this text is longer")
        self._check_parent(file, path)
        if file.is_dir():
            raise ToolError(f"{path!r} is a folder; name a file in it")
        file.write_bytes(content)
        return self._path(file)

    @tool(destructive=True)
    def move_file(self, source: str, destination: str) -> str:
        """Move or rename a file; returns its new path.

        Args:
            source: The file, such as notes/old.txt.
            destination: Its new path, such as notes/new.txt, or a folder that it goes to.
        """
        file, place = self._existing(source), inside(self.folder, destination)
        if place.is_dir():
            place /= file.name
        self._check_parent(place, destination)
        if place.exists() or place.is_symlink():
            raise ToolError(
                f"{self._path(place)!r} is there already; choose another name, or delete it first"
            )
        file.rename(place)
        return self._path(place)

    @tool(destructive=True)
    def delete_file(self, path: str) -> str:
        """Delete a file; returns the path that it had.

        Args:
            path: Such as notes/old.txt.
        """
        file = self._existing(path)
        file.unlink()
        return self._path(file)

    def _existing(self, path: str) -> Path:
        """A file that is there. Raises `ToolError` with the nearest one when it is not."""
        file = inside(self.folder, path)
        if file.is_dir():
            raise ToolError(f"{path!r} is a folder; name a file in it")
        if not file.is_file():
            near = hint(path, _listed(self.folder, self.folder))
            raise ToolError(f"there is no file {path!r}{near or '; list_files names them'}")
        return file

    def _check_parent(self, file: Path, path: str) -> None:
        if not file.parent.is_dir():
            raise ToolError(f"{path!r} is in no folder; the folders are {self._folders()}")

    def _folders(self) -> str:
        return ", ".join(sorted(p.name for p in self.folder.iterdir() if p.is_dir())) or "none"

    def _path(self, file: Path) -> str:
        return file.relative_to(self.folder).as_posix()


def inside(folder: Path, path: str) -> Path:
    """The place that a path names in a resolved folder. Raises `ToolError` where it leads out of
    it or through a link, or cannot be a path."""
    if len(path) > _MAX_PATH or "\0" in path:
        raise ToolError(f"{path[:40]!r} cannot be a path; give one such as notes/todo.txt")
    parts = PurePosixPath(path.strip() or ".")
    if parts.is_absolute() or ".." in parts.parts or "\\" in path:
        raise ToolError(
            f"{path!r} is not a path inside the folder; give one such as notes/todo.txt, "
            "without .. and without a / at its beginning"
        )
    place = folder
    for part in parts.parts:
        place /= part
        if len(os.fsencode(part)) > 255:
            raise ToolError(f"{part[:40]!r} is too long for a name")
        if place.is_symlink():
            raise ToolError(f"{path!r} is or goes through a link; links are not followed")
    return place


def _listed(folder: Path, place: Path) -> list[str]:
    """The paths of the files below a place, sorted, without links."""
    found = sorted(path.relative_to(folder).as_posix() for path in _walk(place))
    if len(found) > _MAX_FILES:
        raise ToolError(f"there are more than {_MAX_FILES} files; name a folder")
    return found


def _walk(place: Path) -> Iterator[Path]:
    with os.scandir(place) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
