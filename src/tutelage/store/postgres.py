"""PostgreSQL under the store: how its engines are set up, and what its failures mean to a person.

The tables and the SQL are those of SQLite. What differs is here: readers take one snapshot
(`REPEATABLE READ`), writers to one run take turns by an advisory lock, as they do by the file's
lock in SQLite, and `synchronous_commit` is on, so that what a call acknowledged survives the end of
the server. A password belongs into `PGPASSWORD` or `~/.pgpass`, or at least it is never shown.
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
from tutelage.store.backend import Backend, has_tables, prepare

CONNECT_SECONDS = 10
"""How long to wait for a server that does not answer."""
_SCHEMA_LOCK = "tutelage schema"
_LOST = (
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
    ("57", _LOST),
    ("08", _LOST),
)
"""Meanings by the beginning of the error's SQLSTATE (PostgreSQL manual, appendix A)."""


def open_backend(url: URL, *, create: bool = True) -> Backend:
    """Engines on the database at a URL, with all tables in the present format.

    Raises `StoreError` when it cannot be reached or holds something else, `MissingExtraError`
    without psycopg.
    """
    if importlib.util.find_spec("psycopg") is None:
        raise MissingExtraError(
            "a PostgreSQL store needs psycopg: install it with `pip install 'tutelage[postgres]'`"
        )
    url = url.set(drivername="postgresql+psycopg")
    if not url.database:
        raise StoreError(f"{shown(url)!r} has no database name: use postgresql://HOST/DATABASE")
    where = shown(url)
    writer = create_engine(
        url,
        connect_args={"connect_timeout": CONNECT_SECONDS} | dict(url.query),
        isolation_level="READ COMMITTED",
        max_overflow=-1,
        pool_pre_ping=True,  # a server that was started again is simply used again
    )
    event.listen(writer, "connect", _configure)
    reader = writer.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    try:
        with _explained(where, "open the store"):
            with reader.begin() as conn:
                ready = has_tables(conn, where)
            if not ready and not create:
                raise StoreError(f"no store at {where!r}: check the address")
            if not ready:
                with writer.begin() as conn:
                    _lock(conn, [_SCHEMA_LOCK])  # several processes may open a new one at once
                    prepare(conn, where)
    except BaseException:
        writer.dispose()
        raise
    return Backend(where, reader, writer, _lock, partial(_explained, where))


def shown(url: URL) -> str:
    """The address without its password."""
    bare = url.set(drivername="postgresql").difference_update_query(["password"])
    return bare._replace(password=None).render_as_string()


def _lock(conn: Connection, run_ids: Sequence[str]) -> None:
    """Wait until no other transaction writes to these runs; ends with the transaction."""
    names = (run_id.encode("utf-8", "surrogatepass") for run_id in run_ids)
    keys = {hashlib.blake2b(name, digest_size=8).digest() for name in names}
    # In one order everywhere, so that no two writers wait for each other.
    for key in sorted(keys):
        number = int.from_bytes(key, "big", signed=True)
        conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": number})


@contextmanager
def _explained(where: str, doing: str) -> Generator[None]:
    """Turn the failures of PostgreSQL that a person can fix into `StoreError`."""
    try:
        yield
    except DBAPIError as error:
        reason = " ".join(str(error.orig).split())
        state = str(getattr(error.orig, "sqlstate", None) or "")
        if not state:
            doors = (code for words, code in _AT_THE_DOOR if re.search(words, reason))
            state = next(doors, "")
        meaning = next((words for prefix, words in _MEANINGS if state.startswith(prefix)), None)
        # Without a state the server never answered, or stopped in the middle of a word.
        lost = not state and type(error.orig).__name__ in ("OperationalError", "ConnectionTimeout")
        if meaning is None and (lost or error.connection_invalidated):
            meaning = _LOST
        if meaning is None:
            raise
        raise StoreError(f"cannot {doing} {where!r}: {meaning} ({reason})") from error


_AT_THE_DOOR = (
    (r'database ".*" does not exist', "3D000"),
    (r"authentication failed|no password supplied|no pg_hba.conf entry|role .* does not", "28"),
    (r"too many clients|connection slots", "53300"),
)
"""A refused connection has no SQLSTATE, only words."""


def _configure(connection: Any, record: Any) -> None:
    """Make commits durable where a server's configuration left that to chance."""
    connection.autocommit = True
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false) "
        "WHERE current_setting('synchronous_commit') = 'off'"
    )
    connection.autocommit = False
