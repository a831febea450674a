"""Open a database by its address: a path or a SQLite URL, or a PostgreSQL URL.

Only the module of the database that is asked for is loaded, `sqlite.py` or `postgres.py`.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from tutelage.errors import StoreError
from tutelage.store.backend import Backend


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
