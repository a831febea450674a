"""What the store asks of a database, and the format of its tables.

A `Backend` is a pair of engines and two functions: how a writer waits its turn, and what a failure
means to a person. Everything else is SQL that both understand. `sqlite.py` and `postgres.py` each
make one, `store.py` chooses between them. Tables of another format than `schema.FORMAT` are
refused and left as they are: what they hold is read by the Tutelage that wrote it.
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
    """Turns failures that a person can fix into `StoreError`; takes what was being done."""

    def close(self) -> None:
        """Close all connections."""
        self.reader.dispose()
        self.writer.dispose()


def has_tables(conn: Connection, where: str) -> bool:
    """Whether the store's tables are there; False for an empty database.

    Raises `StoreError` for tables of another format, and for those of another program.
    """
    tables = inspect(conn).get_table_names()
    if schema_version.name not in tables:
        if tables:
            raise StoreError(
                f"{where} belongs to another program (tables {sorted(tables)[:5]!r}): "
                "use another database"
            )
        return False
    version = conn.execute(select(func.max(schema_version.c.version))).scalar()
    if version == FORMAT:
        return True
    mend = "read it with the Tutelage version that wrote it, or use another store"
    if version is not None and version > FORMAT:
        mend = "install a newer one (`pip install -U tutelage`)"
    raise StoreError(
        f"{where} has store format {version!r}, but this Tutelage reads only format {FORMAT!r}: "
        f"{mend}"
    )


def prepare(conn: Connection, where: str) -> None:
    """Make the tables if there are none, inside the write transaction that `conn` is in."""
    if not has_tables(conn, where):
        metadata.create_all(conn)
        conn.execute(insert(schema_version).values(version=FORMAT))
