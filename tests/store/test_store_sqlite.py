"""The conformance suite on SQLite, and what only a SQLite file can do wrong."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tutelage.errors import StoreError
from tutelage.store import open_store

from . import samples
from .conformance import Opened, StoreConformance
from .samples import rollout


class TestSqlite(StoreConformance):
    """All of the suite."""

    @pytest.fixture
    def opened(self, tmp_path: Path) -> Opened:
        return lambda name: open_store(tmp_path / f"{name}.db")


def test_where_a_store_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for where, path in (
        ("a/b.db", tmp_path / "a" / "b.db"),
        (tmp_path / "c.db", tmp_path / "c.db"),
        (f"sqlite:///{tmp_path}/a/d.db", tmp_path / "a" / "d.db"),
        ("~/x.db", tmp_path / "home" / "x.db"),
        ("sqlite:///~/y.db", tmp_path / "home" / "y.db"),
    ):
        open_store(where).close()
        assert path.exists()
    odd = tmp_path / "100% of ?x=1#2" / "ü.db"
    with open_store(odd) as store:
        store.put_run("run_a", **samples.RUN)
    assert odd.exists()
    with open_store(f"sqlite:///{tmp_path}/plain.db"):
        assert (tmp_path / "plain.db").exists()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql+nodriver://me:secret@host/db", "not a supported database: use a path"),
        ("sqlite:///:memory:", "has no file name"),
        ("what ever://me:secret@host", "not a valid database URL"),
    ],
)
def test_other_urls_are_refused(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_a_missing_store_is_not_made_by_looking(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store at"):
        open_store(tmp_path / "none" / "x.db", create=False)
    assert list(tmp_path.iterdir()) == []


def test_another_programs_database_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("create table books (title text)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"another program \(tables \['books'\]\)"):
        open_store(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"nothing like a database" * 100)
    with pytest.raises(StoreError, match=r"x\.db': not an SQLite database, or corrupt"):
        open_store(path)


def test_a_reader_sees_whole_batches_and_never_blocks_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with open_store(path) as writer, open_store(path, create=False) as reader:
        writer.put_run("run_a", **samples.RUN)
        writer.put_rollouts([rollout("r0")])
        with reader._read("read") as snapshot:  # pyright: ignore[reportPrivateUsage]
            count = "select count(*) from rollouts"
            assert snapshot.exec_driver_sql(count).scalar() == 1
            writer.put_rollouts([rollout("r1"), rollout("r2")])
            assert snapshot.exec_driver_sql(count).scalar() == 1
        assert reader.count("run_a") == 3


@pytest.mark.full
def test_processes_open_a_new_file_at_the_same_time(tmp_path: Path) -> None:
    code = "import sys; from tutelage.store import open_store; open_store(sys.argv[1]).runs()"
    command = [sys.executable, "-c", code, str(tmp_path / "x.db")]
    children = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(6)]
    errors = [child.communicate()[1].decode() for child in children]
    assert [child.returncode for child in children] == [0] * 6, errors
