"""Files of other formats: refused in one sentence, and left as they were."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tutelage.errors import StoreError
from tutelage.store import open_store
from tutelage.store.schema import FORMAT

from . import samples


@pytest.fixture
def present(tmp_path: Path) -> Path:
    """A file of the present format, with a run and some rollouts."""
    path = tmp_path / "x.db"
    with open_store(path) as store:
        store.put_run("run_a", **samples.RUN)
        store.put_rollouts(samples.rollouts(3))
    return path


def stamp(path: Path, *versions: int) -> None:
    """Have the file say that it is of another format."""
    with sqlite3.connect(path) as conn:
        conn.execute("delete from schema_version")
        conn.executemany("insert into schema_version values (?)", [(v,) for v in versions])
    conn.close()


def test_a_new_file_has_the_present_format(present: Path) -> None:
    with sqlite3.connect(present) as conn:
        assert conn.execute("select version from schema_version").fetchall() == [(FORMAT,)]
    conn.close()


def test_an_older_file_is_refused_as_it_is(present: Path) -> None:
    stamp(present, 1, 2)
    before = present.read_bytes()
    with pytest.raises(StoreError) as refused:
        open_store(present)
    assert str(refused.value) == (
        f"{present} has store format 2, but this Tutelage reads only format {FORMAT}: "
        "read it with the Tutelage version that wrote it, or use another store"
    )
    assert present.read_bytes() == before


def test_a_newer_file_is_refused(present: Path) -> None:
    stamp(present, FORMAT + 1)
    with pytest.raises(StoreError, match=r"reads only format \d: install a newer one \(`pip"):
        open_store(present)


def test_a_file_that_was_cut_off_before_its_format_is_refused(present: Path) -> None:
    stamp(present)
    with pytest.raises(StoreError, match="has store format None"):
        open_store(present)
