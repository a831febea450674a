"""What the store asks of a database.

A `Backend` is a pair of engines and two functions: how a writer waits its turn, and what a failure
means to a person. Everything else is SQL that both understand. `sqlite.py` and `postgres.py` each
make one, `opened.py` chooses between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine


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
