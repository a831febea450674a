"""Tools on the SQLite tables of a folder: a query that can only read, and one row more.

A query runs on a connection that is opened for reading, under an authorizer that permits nothing
but reading, within bounds of steps, of rows and of the size of values.
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from benchmarks.orchestration.kit.contents import DATABASE
from benchmarks.orchestration.kit.file_tools import inside

from tutelage.tools.tool import ToolError, tool

MAX_ROWS, MAX_CHARS = 1000, 1_000_000
"""Of a query's result."""
_STEPS, _PERIOD = 20_000_000, 10_000
"""Steps of SQLite's machine that a query may take, and how often they are counted."""
_CLOCK = re.compile(
    r"'now'|\bcurrent_(date|time)|\b(date|time|julianday|unixepoch)\s*\(\s*\)", re.I
)
"""What would read the clock of the machine, while the day is that of the folder."""
_READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}

Scalar = str | int | float | None


class TableTools:
    """The tools of a folder's database; each attribute is a tool that is bound to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()

    @tool
    def query_table(self, sql: str) -> Scalar | list[Scalar] | dict[str, Scalar] | list[object]:
        """Ask the database with one SELECT of SQL. Tables: people(name, city, birthday, phone),
        orders(person, item, amount, day); dates are texts such as 2026-05-14. A single value is
        returned as it is, the values of one column as a list, one row of several columns as an
        object by column, more rows as a list of objects, no row as an empty list.

        Args:
            sql: Such as SELECT city FROM people WHERE name = 'Ada Moreau'.
        """
        path = self._database()
        if _CLOCK.search(sql):
            raise ToolError("the database has no clock; take the date from today and write it out")
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            steps = iter(range(_STEPS // _PERIOD))
            connection.set_progress_handler(lambda: next(steps, None) is None, _PERIOD)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_CHARS)
            tables = _columns(connection)
            connection.set_authorizer(_only_reads)
            try:
                cursor = connection.execute(sql)
                rows = _fetched(cursor)
                names = [column[0] for column in cursor.description or ()]
            # A Warning in Python 3.11 for a second statement; ValueError for a text with a null.
            except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
                raise ToolError(_failure(error, tables)) from None
        if not names:
            raise ToolError("that is not a SELECT; a row is added with insert_row")
        return _shaped(rows, names)

    @tool(destructive=True)
    def insert_row(
        self, table: str, values: dict[str, str | int | float]
    ) -> dict[str, str | int | float]:
        """Add a row to a table of the database; returns the row.

        Args:
            table: people or orders.
            values: A value for each column: name, city, birthday and phone of people; person,
                item, amount (a number) and day of orders.
        """
        path = self._database()
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True)) as connection:
            try:
                tables = _columns(connection)
                row = _row(table, values, tables)
                names = ", ".join(f'"{name}"' for name in row)
                marks = ", ".join("?" for _ in row)
                connection.execute(
                    f'INSERT INTO "{table}" ({names}) VALUES ({marks})', tuple(row.values())
                )
                connection.commit()
            except sqlite3.Error as error:
                raise ToolError(f"the row cannot be added: {error}") from None
        return row

    def _database(self) -> Path:
        path = inside(self._folder, DATABASE)
        if not path.is_file():
            raise ToolError(f"there is no database {DATABASE} in the folder")
        return path


def _only_reads(action: int, *_: object) -> int:
    return sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY


def _columns(connection: sqlite3.Connection) -> dict[str, dict[str, str]]:
    """The declared type of each column, by table and name. Raises `ToolError`."""
    try:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        names = [str(row[0]) for row in tables]
        columns = "SELECT name, type FROM pragma_table_info(?)"
        return {name: dict(connection.execute(columns, (name,)).fetchall()) for name in names}
    except sqlite3.Error as error:
        raise ToolError(f"{DATABASE} cannot be read: {error}") from None


def _row(
    table: str, values: Mapping[str, str | int | float], tables: Mapping[str, Mapping[str, str]]
) -> dict[str, str | int | float]:
    """The row, a number where its column has numbers. Raises `ToolError` for an unknown table,
    columns too many or too few, and unfit values."""
    if table not in tables:
        raise ToolError(f"there is no table {table[:40]!r}; the tables are {_shown(tables)}")
    columns = tables[table]
    if {*values} != {*columns}:
        raise ToolError(f"{table} has the columns {', '.join(columns)}; give each one a value")
    return {name: _cell(name, value, columns[name]) for name, value in values.items()}


def _cell(name: str, value: str | int | float, kind: str) -> str | int | float:
    if kind != "REAL":
        if not isinstance(value, str):
            raise ToolError(f"{name} is a text, not {value!r:.80}")
        return value
    try:
        # A number that another tool has found may come as a text.
        number = float(value)
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ToolError(f"{name} is a number such as 12.50, not {value!r:.80}")
    return number


def _failure(error: Exception, tables: Mapping[str, Mapping[str, str]]) -> str:
    reason = str(error)
    if reason == "interrupted":
        return "the query takes too long; ask for less"
    if reason in ("not authorized", "attempt to write a readonly database"):
        return "query_table only reads, with one SELECT; a row is added with insert_row"
    return f"the query cannot be run: {reason}; the tables are {_shown(tables)}"


def _shown(tables: Mapping[str, Mapping[str, str]]) -> str:
    return ", ".join(f"{table}({', '.join(columns)})" for table, columns in tables.items())


def _fetched(cursor: sqlite3.Cursor) -> list[tuple[Scalar, ...]]:
    """All rows of a result. Raises `ToolError` when they are too many."""
    rows: list[tuple[Scalar, ...]] = []
    left = MAX_CHARS
    for row in cursor:
        values = tuple(_plain(value) for value in row)
        rows.append(values)
        left -= sum(len(value) for value in values if isinstance(value, str))
        if len(rows) > MAX_ROWS or left < 0:
            raise ToolError(
                f"the result has more than {MAX_ROWS} rows or {MAX_CHARS:,} characters; "
                "ask for less, with LIMIT"
            )
    return rows


def _plain(value: Scalar | bytes) -> Scalar:
    """A value as JSON has it. Raises `ToolError`."""
    if isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value)):
        raise ToolError("the query gives a value that is neither a text nor a number")
    return value


def _shaped(
    rows: list[tuple[Scalar, ...]], names: list[str]
) -> Scalar | list[Scalar] | dict[str, Scalar] | list[object]:
    """As little around the values as they need."""
    if len(names) == 1:
        values = [row[0] for row in rows]
        return values[0] if len(values) == 1 else values
    objects = [dict(zip(names, row, strict=True)) for row in rows]
    return objects[0] if len(objects) == 1 else list(objects)
