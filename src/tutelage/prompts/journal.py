"""The memory of a search: every finished rollout and every optimiser reply, in one SQLite file.

A search is a pure function of its seed and of these answers. So resume is replay: the algorithm
starts over, what the journal holds is not asked again, and the same decisions follow, byte for
byte. Each answer is one transaction, on the disk when `put` returns, whatever kills the process
next; a rollout that was running is played again. Payloads are JSON. `evaluator.py` and
`optimiser.py` write here.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

from tutelage.errors import RunError, StoreError
from tutelage.types import JSON

logger = logging.getLogger(__name__)

JOURNAL = "journal.db"
"""Its file in a run folder."""
_OPENING = """
PRAGMA journal_mode=WAL;
PRAGMA synchronous=FULL;
CREATE TABLE IF NOT EXISTS header (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS step
    (key TEXT PRIMARY KEY, payload TEXT NOT NULL, elapsed REAL NOT NULL, checksum TEXT NOT NULL);
"""


class SearchJournal:
    """Answers by step key. `where` None keeps them in memory, for a search that cannot resume."""

    def __init__(
        self,
        where: Path | None = None,
        *,
        recorded: Callable[[], Awaitable[None]] | None = None,
        warn: Callable[[str], None] = logger.warning,
    ) -> None:
        """Open or make the file. Raises `StoreError`.

        `recorded` returns when the record of what was played so far is on the disk. It is waited
        for before a rollout is kept here: what the journal has is not played again, so a record
        that a kill took would be lost for good.
        """
        self.where, self._recorded, self._warn = where, recorded, warn
        try:
            self._db = sqlite3.connect(where or ":memory:", isolation_level=None)
            self._db.executescript(_OPENING)
        except sqlite3.Error as error:
            raise StoreError(
                f"cannot open the journal {str(where)!r} ({error}); use a writable folder, or move "
                "the file away"
            ) from error

    def open(self, header: Mapping[str, str], *, accept_changes: bool = False) -> None:
        """Say whose journal this is. Raises `RunError` for another agent, grader, data or setting.

        With `accept_changes` the new header counts from here on, and recorded stops are lifted.
        """
        known: dict[str, str] = dict(self._db.execute("SELECT name, value FROM header"))
        changed = sorted(n for n in {*known, *header} if known.get(n) != header.get(n))
        if known and changed and not accept_changes:
            raise RunError(
                f"the journal {str(self.where)!r} is from another {', '.join(changed)}; start a "
                "new run, or accept the change (tutelage resume RUN --allow-changes; in Python "
                "accept_changes=True)"
            )
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("DELETE FROM header")
            self._db.executemany("INSERT INTO header VALUES (?, ?)", sorted(header.items()))
            if known and changed:
                self._db.execute("DELETE FROM step WHERE key LIKE 'stop/%'")

    def get(self, key: str) -> JSON | None:
        """The answer under a step key, or None. One that is damaged is dropped, and said: it is
        asked for again. Raises `StoreError` if the file cannot be read."""
        try:
            row = self._db.execute(
                "SELECT payload, checksum FROM step WHERE key = ?", (key,)
            ).fetchone()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StoreError(
                f"cannot read the journal {str(self.where)!r} ({error}); restore a copy, or start "
                "the search again with another --output"
            ) from error
        if row is None:
            return None
        if row[1] != _checksum(key, row[0]):
            self._warn(
                f"Warning: the answer {key!r} in {str(self.where)!r} is damaged and is requested "
                "again"
            )
            self.forget([key])
            return None
        return json.loads(row[0])

    async def recorded(self) -> None:
        """Wait for the record of what was played so far. Raises `StoreError`."""
        if self._recorded is not None:
            await self._recorded()

    def put(self, key: str, payload: JSON, elapsed: float = 0.0) -> None:
        """Keep an answer for good. Raises `StoreError`, as for a full disk."""
        text = json.dumps(payload, sort_keys=True)  # in ASCII: SQLite takes no half characters
        row = (key, text, elapsed, _checksum(key, text))
        try:
            self._db.execute("INSERT INTO step VALUES (?, ?, ?, ?)", row)
        except sqlite3.Error as error:
            raise StoreError(
                f"cannot write the journal {str(self.where)!r} ({error}); free some space, then "
                "resume; data saved so far is kept"
            ) from error

    def forget(self, keys: Iterable[str]) -> None:
        """Drop answers that are no evidence, so that a resume asks again."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("DELETE FROM step WHERE key = ?", [(k,) for k in keys])

    def elapsed(self) -> float:
        """Seconds of the search when its last answer was kept."""
        return float(self._db.execute("SELECT coalesce(max(elapsed), 0) FROM step").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def _checksum(key: str, payload: str) -> str:
    return hashlib.blake2b(f"{key}\0{payload}".encode(), digest_size=8).hexdigest()
