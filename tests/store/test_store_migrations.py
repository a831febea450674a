"""Files of other formats: older ones are brought up to date, newer ones refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Connection

from tutelage.errors import StoreError
from tutelage.store import Store, open_store
from tutelage.store.migrations import BASE_VERSION, MIGRATIONS, Migration
from tutelage.store.sqlite import open_engine

from . import samples


def add_note(conn: Connection) -> None:
    conn.exec_driver_sql("alter table runs add column note text default 'none'")


def fill_note(conn: Connection) -> None:
    conn.exec_driver_sql("update runs set note = 'of ' || name")


def fail(conn: Connection) -> None:
    conn.exec_driver_sql("delete from rollouts")
    raise RuntimeError("half way")


STEPS = (Migration("note", add_note), Migration("fill", fill_note))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file of the present format, with a run and some rollouts."""
    path = tmp_path / "x.db"
    with open_store(path) as store:
        store.put_run("run_a", **samples.RUN)
        store.put_rollouts(samples.rollouts(3))
    return path


def upgraded(path: Path, *more: Migration) -> Store:
    return Store(open_engine(path, migrations=(*MIGRATIONS, *more)), path)


def versions(path: Path) -> list[tuple[int, str]]:
    import sqlite3

    with sqlite3.connect(path) as conn:
        rows = conn.execute("select version, name from schema_version order by version").fetchall()
    conn.close()
    return rows


def test_an_older_file_is_upgraded_in_order_and_once(old: Path) -> None:
    now = BASE_VERSION + len(MIGRATIONS)
    for _ in range(2):
        with upgraded(old, *STEPS) as store:
            assert list(store.rollouts("run_a")) == samples.rollouts(3)
            with store._read("read") as conn:  # pyright: ignore[reportPrivateUsage]
                assert conn.exec_driver_sql("select note from runs").scalar() == "of sums"
        assert versions(old)[-2:] == [(now + 1, "note"), (now + 2, "fill")]
        assert len(versions(old)) == now + 2


def test_only_the_missing_migrations_run(old: Path) -> None:
    upgraded(old, STEPS[0]).close()
    upgraded(old, *STEPS).close()
    assert [name for _, name in versions(old)][-2:] == ["note", "fill"]


def test_a_failed_upgrade_changes_nothing(old: Path) -> None:
    before = versions(old)
    with pytest.raises(RuntimeError, match="half way"):
        upgraded(old, STEPS[0], Migration("fail", fail))
    assert versions(old) == before
    with open_store(old) as store:
        assert store.count("run_a") == 3
        with store._read("read") as conn:  # pyright: ignore[reportPrivateUsage]
            columns = conn.exec_driver_sql("select * from runs").keys()
            assert "note" not in columns


def test_a_newer_file_is_refused(old: Path) -> None:
    upgraded(old, *STEPS).close()
    with pytest.raises(StoreError, match=r"format 3, .* up to 1: .*pip install -U tutelage"):
        open_store(old)


def test_a_new_file_has_the_newest_format(tmp_path: Path) -> None:
    open_store(tmp_path / "new.db").close()
    found = versions(tmp_path / "new.db")
    assert [number for number, _ in found] == list(range(1, BASE_VERSION + len(MIGRATIONS) + 1))
