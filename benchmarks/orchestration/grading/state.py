"""What a folder holds at a moment: the bytes of its files and the rows of its database.

The database counts by its rows, since writing and removing a row leaves other bytes behind; one
that cannot be read counts by its bytes. Graders compare the state before with the state after.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.orchestration.kit.contents import DATABASE

Rows = tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class FolderState:
    """The files of a folder by path, and its tables by name."""

    files: Mapping[str, bytes]
    tables: Mapping[str, Rows]

    def text(self, path: str) -> str | None:
        """The text of a file; None when it is not there."""
        content = self.files.get(path)
        return None if content is None else content.decode("utf-8", "replace")


def read_state(folder: Path) -> FolderState:
    """The state of a folder now."""
    files: dict[str, bytes] = {}
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(place) / name
            relative = path.relative_to(folder).as_posix()
            if path.is_symlink():
                files[relative] = b"link to " + os.fsencode(path.readlink())
            elif path.is_file():
                files[relative] = path.read_bytes()
            elif not any(path.iterdir()):
                files[f"{relative}/"] = b""
    tables = _tables(folder / DATABASE) if DATABASE in files else {}
    if tables:
        del files[DATABASE]
    return FolderState(files, tables)


def change_fault(
    before: FolderState, after: FolderState, changed: Iterable[str] = (), tables: bool = True
) -> str:
    """What changed although it must not have, in words: any file but those of `changed`, and the
    rows unless `tables` is False."""
    wanted = {*changed}
    for path in sorted({*before.files, *after.files} - wanted):
        if path not in after.files:
            return f"{path} is gone"
        if path not in before.files:
            return f"{path} is new"
        if before.files[path] != after.files[path]:
            return f"{path} has changed"
    if tables and before.tables != after.tables:
        return "the rows of the database have changed"
    return ""


def _tables(path: Path) -> dict[str, Rows]:
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            made = connection.execute(
                "SELECT name, sql FROM sqlite_master ORDER BY name"
            ).fetchall()
            tables: dict[str, Rows] = {"": tuple(made)}
            for name in ("people", "orders"):
                rows = connection.execute(f'SELECT * FROM "{name}" ORDER BY rowid').fetchall()
                tables[name] = tuple(rows)
            return tables
    except sqlite3.Error:
        return {}
