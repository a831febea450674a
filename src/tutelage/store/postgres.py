"""The PostgreSQL backend of the store: its engines, locks and error messages.

The tables and the SQL are the same as for SQLite. Readers use one snapshot (`REPEATABLE READ`),
writers of a run take an advisory lock in place of SQLite's file lock, and `synchronous_commit` is
on, so that acknowledged data survives a crash of the server. Passwords should be in `PGPASSWORD` or
`~/.pgpass`; a password in the URL is never shown.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from sqlalchemy import URL, Connection, create_engine, event, text
from sqlalchemy.exc import DBAPIError

from tutelage.errors import MissingExtraError, StoreError
from tutelage.store.backend import Backend, create_tables, has_tables

CONNECT_SECONDS = 10
"""Connection timeout."""
_SCHEMA_LOCK = "tutelage schema"
_CONNECTION_LOST = (
    "the server is unreachable, or the connection was lost: start it, or correct its address, "
    "then try again; all acknowledged data is kept"
)
_MEANINGS: tuple[tuple[str, str], ...] = (
    ("28", "access denied for this user: check the user name, and PGPASSWORD or ~/.pgpass"),
    ("3D000", "the database does not exist: create it with `createdb`"),
    ("42501", "permission denied: grant this user the right to create and write tables"),
    ("25006", "the server is read-only: use the primary server"),
    ("53100", "its disk is full: free some space, then try again; acknowledged data is kept"),
    ("53300", "too many connections: raise max_connections, or run fewer writers"),
    ("40P01", "deadlock between two writers: try again; acknowledged data is kept"),
    ("22003", "a number needs more than 64 bits"),
    ("54000", "one value exceeds the size limit of a database field: store less data"),
    ("57", _CONNECTION_LOST),
    ("08", _CONNECTION_LOST),
)
"""Explanations by prefix of the error's SQLSTATE (PostgreSQL manual, appendix A)."""


def open_backend(url: URL, *, create: bool = True) -> Backend:
    """Open a PostgreSQL database by URL, and create missing tables if `create` is True.

    Raises `StoreError` if it cannot be reached or belongs to another program, and
    `MissingExtraError` without psycopg.
    """
    if importlib.util.find_spec("psycopg") is None:
        raise MissingExtraError(
            "a PostgreSQL store needs psycopg: install it with `pip install 'tutelage[postgres]'`"
        )
    url = url.set(drivername="postgresql+psycopg")
    if not url.database:
        raise StoreError(f"{safe_url(url)!r} has no database name: use postgresql://HOST/DATABASE")
    location = safe_url(url)
    writer = create_engine(
        url,
        connect_args={"connect_timeout": CONNECT_SECONDS} | dict(url.query),
        isolation_level="READ COMMITTED",
        max_overflow=-1,
        pool_pre_ping=True,  # reconnects after a restart of the server
    )
    event.listen(writer, "connect", _configure)
    reader = writer.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    try:
        with explain_errors(location, "open the store"):
            with reader.begin() as conn:
                ready = has_tables(conn, location)
            if not ready and not create:
                raise StoreError(f"no store at {location!r}: check the address")
            if not ready:
                with writer.begin() as conn:
                    _lock(conn, [_SCHEMA_LOCK])  # several processes may create it at once
                    create_tables(conn, location)
    except BaseException:
        writer.dispose()
        raise
    return Backend(location, reader, writer, _lock, partial(explain_errors, location))


def safe_url(url: URL) -> str:
    """Format a database URL without its password."""
    bare = url.set(drivername="postgresql").difference_update_query(["password"])
    return bare._replace(password=None).render_as_string()


def _lock(conn: Connection, run_ids: Sequence[str]) -> None:
    """Lock runs against other writers until the end of the transaction."""
    names = (run_id.encode("utf-8", "surrogatepass") for run_id in run_ids)
    keys = {hashlib.blake2b(name, digest_size=8).digest() for name in names}
    # Always in the same order, so that two writers cannot deadlock.
    for key in sorted(keys):
        number = int.from_bytes(key, "big", signed=True)
        conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": number})


@contextmanager
def explain_errors(location: str, action: str) -> Generator[None]:
    """Convert PostgreSQL errors that users can fix to `StoreError`."""
    try:
        yield
    except DBAPIError as error:
        reason = " ".join(str(error.orig).split())
        state = str(getattr(error.orig, "sqlstate", None) or "")
        if not state:
            states = (code for pattern, code in _CONNECT_ERRORS if re.search(pattern, reason))
            state = next(states, "")
        meaning = next((m for prefix, m in _MEANINGS if state.startswith(prefix)), None)
        # Without a state the server did not answer, or the connection broke.
        lost = not state and type(error.orig).__name__ in ("OperationalError", "ConnectionTimeout")
        if meaning is None and (lost or error.connection_invalidated):
            meaning = _CONNECTION_LOST
        if meaning is None:
            raise
        raise StoreError(f"cannot {action} {location!r}: {meaning} ({reason})") from error


_CONNECT_ERRORS = (
    (r'database ".*" does not exist', "3D000"),
    (r"authentication failed|no password supplied|no pg_hba.conf entry|role .* does not", "28"),
    (r"too many clients|connection slots", "53300"),
)
"""SQLSTATE by message, because errors of refused connections have none."""


def _configure(connection: Any, record: Any) -> None:
    """Turn on `synchronous_commit` for a connection if the server's configuration turned it off."""
    connection.autocommit = True
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false) "
        "WHERE current_setting('synchronous_commit') = 'off'"
    )
    connection.autocommit = False
