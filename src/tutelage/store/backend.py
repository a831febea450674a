"""What the store asks of a database, and the door to the two there are.

A `Backend` is a pair of engines and two functions: how a writer waits its turn, and what a failure
means to a person. Everything else is SQL that both understand. `sqlite.py` and `postgres.py` each
make one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError

from tutelage.errors import StoreError


@dataclass(frozen=True, slots=True)
class Backend:
    """One opened database, its tables in the present format; threads may share it."""

    where: str
    """For messages: a path, or a URL without its password."""
    reader: Engine
    """Its transactions see one snapshot and never wait for a writer."""
    writer: Engine
    """What its transactions commit is on the disk."""
    lock: Callable[[Connection, Sequence[str]], None]
    """Wait, at the start of a transaction, until nobody else writes to these runs."""
    explained: Callable[[str], AbstractContextManager[None]]
    """Turns failures that a person can mend into `StoreError`; takes what was being done."""

    def close(self) -> None:
        """Close all connections."""
        self.reader.dispose()
        self.writer.dispose()


def is_postgres(where: str | Path) -> bool:
    """Whether a store's address names a PostgreSQL database. Raises `StoreError` for no address."""
    text = str(where)
    if "://" not in text:
        return False
    try:
        url = make_url(text)
    except ArgumentError:
        raise StoreError(
            f"{text.partition('://')[0] + '://...'!r} is no database URL: give a path, "
            "sqlite:///FILE or postgresql://HOST/DATABASE"
        ) from None
    return url.get_backend_name() in ("postgresql", "postgres")


def open_backend(where: str | Path, *, create: bool = True) -> Backend:
    """Open a database by path or URL; see `open_store`."""
    if is_postgres(where):
        from tutelage.store import postgres

        return postgres.open_backend(str(where), create=create)
    from tutelage.store import sqlite

    return sqlite.open_backend(sqlite.database_path(where), create=create)
