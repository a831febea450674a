"""The interface between the store and a database, and the check of its table format.

A `Backend` has two engines, a function that locks runs for a writer, and one that explains database
errors. All other SQL is common to both databases. `sqlite.py` and `postgres.py` each open a
backend, and `store.py` chooses between them. Tables of a format other than `schema.FORMAT` are
rejected and not changed; the Tutelage version that wrote them can read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, func, insert, inspect, select

from tutelage.errors import StoreError
from tutelage.store.schema import FORMAT, metadata, schema_version


@dataclass(frozen=True, slots=True)
class Backend:
    """An open database in the current table format. Thread-safe."""

    where: str
    """Path, or URL without its password, for messages."""
    reader: Engine
    """Engine whose transactions read one snapshot and never wait for a writer."""
    writer: Engine
    """Engine whose committed transactions are on the disk."""
    lock: Callable[[Connection, Sequence[str]], None]
    """Wait, at the start of a transaction, until no other writer uses these runs."""
    explain_errors: Callable[[str], AbstractContextManager[None]]
    """Convert database errors that a user can fix into `StoreError`; takes the attempted action."""

    def close(self) -> None:
        """Close all database connections."""
        self.reader.dispose()
        self.writer.dispose()


def has_tables(conn: Connection, location: str) -> bool:
    """Return True if the store's tables exist, or False for an empty database.

    Raises `StoreError` for tables of another format or of another program.
    """
    tables = inspect(conn).get_table_names()
    if schema_version.name not in tables:
        if tables:
            raise StoreError(
                f"{location} belongs to another program (tables {sorted(tables)[:5]!r}): "
                "use another database"
            )
        return False
    version = conn.execute(select(func.max(schema_version.c.version))).scalar()
    if version == FORMAT:
        return True
    advice = "read it with the Tutelage version that wrote it, or use another store"
    if version is not None and version > FORMAT:
        advice = "install a newer one (`pip install -U tutelage`)"
    raise StoreError(
        f"{location} has store format {version!r}, but this Tutelage reads only format {FORMAT!r}: "
        f"{advice}"
    )


def create_tables(conn: Connection, location: str) -> None:
    """Create missing tables within the write transaction of `conn`."""
    if not has_tables(conn, location):
        metadata.create_all(conn)
        conn.execute(insert(schema_version).values(version=FORMAT))
