"""The format of a database file over time, and how an older file becomes a present one.

A new file is made from `schema.py` and stamped with the present version. An older file goes
through the migrations it lacks, in order and in one transaction, so a kill or a failure half way
leaves the old file as it was. A newer file is refused: this code does not know what it holds.
`sqlite.py` and `postgres.py` call `prepare` for what they open.

To change the schema: edit `schema.py` and append a `Migration` whose `apply` makes the same change
with plain SQL (`conn.exec_driver_sql`). Never edit one that was released.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, inspect, select

from tutelage.errors import StoreError
from tutelage.store.schema import metadata, schema_version

BASE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Migration:
    """One change of format: from the version before it to the next one."""

    name: str
    apply: Callable[[Connection], None]


def _traces(conn: Connection) -> None:
    """Spans, times, and what a model was told and allowed. Only SQLite files were of version 1."""
    for statement in (
        "CREATE TABLE toolsets (digest TEXT NOT NULL PRIMARY KEY, tools TEXT NOT NULL)",
        "ALTER TABLE calls ADD COLUMN toolset TEXT REFERENCES toolsets (digest)",
        "ALTER TABLE calls ADD COLUMN limits TEXT",
        "ALTER TABLE calls ADD COLUMN policy TEXT DEFAULT 'main'",
        "ALTER TABLE calls ADD COLUMN allowed BLOB",
        "ALTER TABLE calls ADD COLUMN started DOUBLE DEFAULT '0' NOT NULL",
        "ALTER TABLE calls ADD COLUMN seconds DOUBLE DEFAULT '0' NOT NULL",
        "ALTER TABLE attempts ADD COLUMN started DOUBLE DEFAULT '0' NOT NULL",
        "ALTER TABLE tool_results ADD COLUMN started DOUBLE DEFAULT '0' NOT NULL",
        """CREATE TABLE spans (
            run_id TEXT NOT NULL, trace_id TEXT NOT NULL, span_id TEXT NOT NULL,
            rollout_id TEXT NOT NULL, attempt_id TEXT, parent_id TEXT,
            name TEXT NOT NULL, kind TEXT NOT NULL,
            start_ns BIGINT NOT NULL, end_ns BIGINT NOT NULL,
            attributes TEXT NOT NULL, events TEXT NOT NULL,
            status TEXT NOT NULL, status_message TEXT NOT NULL,
            resource TEXT NOT NULL, scope TEXT NOT NULL,
            PRIMARY KEY (run_id, trace_id, span_id),
            FOREIGN KEY (run_id) REFERENCES runs (id) ON DELETE CASCADE)""",
        "CREATE INDEX spans_by_rollout ON spans (run_id, rollout_id)",
    ):
        conn.exec_driver_sql(statement)


MIGRATIONS: tuple[Migration, ...] = (Migration("traces", _traces),)
"""In order; the first one leads from version 1 to version 2."""


def read_version(conn: Connection, where: str) -> int:
    """The file's version, 0 when it is empty. Raises `StoreError` when it is not a store's file."""
    tables = inspect(conn).get_table_names()
    if schema_version.name in tables:
        return conn.execute(select(func.max(schema_version.c.version))).scalar() or 0
    if tables:
        raise StoreError(
            f"{where} is a database of something else (tables {sorted(tables)[:5]!r}): "
            "name another file"
        )
    return 0


def check_version(version: int, where: str, migrations: Sequence[Migration] = MIGRATIONS) -> bool:
    """Whether the file is up to date. Raises `StoreError` when it is newer than this code."""
    newest = BASE_VERSION + len(migrations)
    if version > newest:
        raise StoreError(
            f"{where} has format {version!r}, and this Tutelage knows formats up to {newest!r}: "
            "install a newer one (`pip install -U tutelage`)"
        )
    return version == newest


def prepare(conn: Connection, where: str, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Make or upgrade the tables, inside the write transaction that `conn` is in."""
    version = read_version(conn, where)
    if check_version(version, where, migrations):
        return
    if version == 0:
        metadata.create_all(conn)
        names = ["base", *(m.name for m in migrations)]
    else:
        names = [m.name for m in migrations[version - BASE_VERSION :]]
        for migration in migrations[version - BASE_VERSION :]:
            migration.apply(conn)
    first = version + 1 if version else BASE_VERSION
    stamps = [{"version": first + i, "name": name} for i, name in enumerate(names)]
    conn.execute(insert(schema_version), stamps)
