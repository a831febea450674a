"""Files of other formats: refused in one sentence, and left as they were."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tutelage.errors import StoreError
from tutelage.store import open_store
from tutelage.store.schema import FORMAT
from tutelage.store.values import pack

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


def test_an_older_file_is_refused_as_it_is(present: Path) -> None:
    stamp(present, 1, 2)
    before = present.read_bytes()
    with pytest.raises(StoreError, match=rf"store format 2, .* reads only format {FORMAT}: "):
        open_store(present)
    assert present.read_bytes() == before


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ([FORMAT + 1], r"reads only format \d: install a newer one \(`pip"),
        ([], "has store format None"),
    ],
)
def test_a_file_of_another_format_is_refused(
    present: Path, versions: list[int], words: str
) -> None:
    stamp(present, *versions)
    with pytest.raises(StoreError, match=words):
        open_store(present)


def test_numbers_are_packed_as_on_any_other_machine() -> None:
    assert pack("i", [1, -2], "it") == bytes([1, 0, 0, 0, 254, 255, 255, 255])
    assert pack("d", [1.0], "it") == bytes([0, 0, 0, 0, 0, 0, 240, 63])
