"""The SQLite backend of the store: its engine and error messages.

It uses write-ahead logging, so that readers and the writer never block each other, and
`synchronous=FULL`, so that acknowledged data is on the disk even if the process or the machine
dies. Transactions are begun explicitly (`BEGIN IMMEDIATE` for writes), because the driver begins
them too late for a snapshot or a lock. `backend.py` creates the tables.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.exc import DBAPIError

from tutelage.errors import StoreError
from tutelage.store.backend import Backend, create_tables, has_tables

BUSY_SECONDS = 30.0
"""Timeout of a writer that waits for another process."""
WRITES = "tutelage_writes"
"""Execution option of connections whose transactions take the write lock when they begin."""

_MEANINGS: tuple[tuple[str, str], ...] = (
    (
        "SQLITE_FULL",
        "the disk or the quota of this user is full: free some space, then try again; "
        "all acknowledged data is kept",
    ),
    (
        "SQLITE_IOERR",
        "disk I/O failed (disk full, file-size limit, or bad disk): free some space or move the "
        "file, then try again; all acknowledged data is kept",
    ),
    ("SQLITE_READONLY", "permission denied: give this user write access to it and its folder"),
    ("SQLITE_PERM", "permission denied: give this user access to it and its folder"),
    (
        "SQLITE_CANTOPEN",
        "it cannot be opened: check that its folder exists and is writable for this user",
    ),
    ("SQLITE_NOTADB", "not an SQLite database, or corrupt: use another file, or move it away"),
    (
        "SQLITE_CORRUPT",
        "it is corrupt: move it away, or recover its data with `sqlite3 FILE .recover`",
    ),
    (
        "SQLITE_BUSY",
        f"another process kept it locked for {BUSY_SECONDS:g} s: stop that process, "
        "or give each run its own store",
    ),
    ("SQLITE_TOOBIG", "one value exceeds the size limit of a database field: store less data"),
)


def database_path(url: URL) -> Path:
    """Return the file path in a SQLite URL. Raises `StoreError` for other URLs."""
    address = url.render_as_string(hide_password=True)
    if url.get_backend_name() != "sqlite":
        raise StoreError(
            f"{address!r} is not a supported database: use a path, sqlite:///FILE or "
            "postgresql://HOST/DATABASE"
        )
    if url.database in (None, "", ":memory:"):
        raise StoreError(f"{address!r} has no file name: use sqlite:///FILE")
    return Path(url.database).expanduser()


@contextmanager
def explain_errors(path: Path, action: str) -> Generator[None]:
    """Convert SQLite errors that users can fix to `StoreError`."""
    try:
        yield
    except (DBAPIError, sqlite3.Error, UnicodeDecodeError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        code = str(getattr(cause, "sqlite_errorname", ""))
        if isinstance(error, UnicodeDecodeError) or re.search("UTF-8|^no such", str(cause)):
            code = "SQLITE_CORRUPT"  # the store writes UTF-8 and creates its tables
        meaning = next((text for prefix, text in _MEANINGS if code.startswith(prefix)), None)
        if meaning is None:
            raise
        raise StoreError(f"cannot {action} {str(path)!r}: {meaning} ({cause})") from error
    except OverflowError as error:
        raise StoreError(
            f"cannot {action} {str(path)!r}: a number needs more than 64 bits ({error})"
        ) from error


def open_backend(path: Path, *, create: bool = True) -> Backend:
    """Open a SQLite file for several threads. Create missing tables if `create` is True.

    Raises `StoreError` if the file cannot be opened or belongs to another program.
    """
    if path.is_dir():
        raise StoreError(f"{str(path)!r} is a folder: use a file in it, such as store.db")
    if not create and not path.exists():
        raise StoreError(f"no store at {str(path)!r}: check the path")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot create the folder of {str(path)!r}: {error}") from error
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"isolation_level": None, "timeout": BUSY_SECONDS},
        max_overflow=-1,  # reading threads never wait for each other
    )
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin)
    writer = engine.execution_options(**{WRITES: True})
    try:
        with explain_errors(path, "open the store"):
            with engine.begin() as conn:
                ready = has_tables(conn, str(path))
            # Only after the check, so that the file of another program is not changed.
            with engine.connect() as conn:
                raw = conn.connection.cursor()  # the mode can only change outside a transaction
                mode = raw.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            if mode != "wal":
                raise StoreError(
                    f"SQLite uses journal mode {mode!r} instead of 'wal', as on network disks: "
                    "put the store on a local disk"
                )
            if not ready:
                with writer.begin() as conn:
                    create_tables(conn, str(path))
    except BaseException:
        engine.dispose()
        raise
    # `BEGIN IMMEDIATE` locks out all other writers, so runs need no lock.
    return Backend(str(path), engine, writer, lambda conn, ids: None, partial(explain_errors, path))


def _configure(connection: sqlite3.Connection, record: Any) -> None:
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")


def _begin(conn: Connection) -> None:
    writes = conn.get_execution_options().get(WRITES, False)
    conn.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
