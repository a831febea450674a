"""Files of other formats: older ones are brought up to date, newer ones refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, inspect

from tutelage.errors import StoreError
from tutelage.store import (
    CheckpointRow,
    MetricsRow,
    PutResult,
    ResourceRow,
    RunStatus,
    Store,
    open_store,
)
from tutelage.store.migrations import BASE_VERSION, MIGRATIONS, Migration
from tutelage.store.sqlite import open_backend
from tutelage.types import Mode, RolloutStatus

from . import samples

FORMAT_1 = Path(__file__).with_name("format_1.sql")
"""A file as the first format left it: `.dump` of one that was written by the code of its time."""


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
    return Store(open_backend(path, migrations=(*MIGRATIONS, *more)))


def versions(path: Path) -> list[tuple[int, str]]:
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
    with pytest.raises(StoreError, match=r"format 4, .* up to 2: .*pip install -U tutelage"):
        open_store(old)


def test_a_new_file_has_the_newest_format(tmp_path: Path) -> None:
    open_store(tmp_path / "new.db").close()
    found = versions(tmp_path / "new.db")
    assert [number for number, _ in found] == list(range(1, BASE_VERSION + len(MIGRATIONS) + 1))


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A file of the first format."""
    path = tmp_path / "first.db"
    with sqlite3.connect(path) as conn:
        conn.executescript(FORMAT_1.read_text(encoding="utf-8"))
    conn.close()
    return path


def test_a_file_of_the_first_format_reads_as_it_was_written(first: Path) -> None:
    failed = samples.attempt(0, RolloutStatus.FAILED)
    retried = samples.rollout(
        "retried", failed, samples.attempt(1),
        step=1, group="g1", mode=Mode.VAL, label="before/greedy",
    )  # fmt: skip
    odd = samples.rollout("odd", answer="half \ud83d a pair, \x00")
    with open_store(first) as store:
        assert list(store.rollouts("run_a")) == [odd, *samples.rollouts(2), retried]
        assert [a.answer for a in store.late_results("run_a", "roll_000000")] == ["late"]
        assert store.metrics("run_a") == [MetricsRow(1, {"reward": 0.5})]
        assert store.checkpoints("run_a") == [CheckpointRow(1, "one")]
        prompt = ResourceRow("prompt", 1, 0, "prompt", {"text": "Think."})
        assert store.resources("run_a") == [prompt]
        run = store.run("run_a")
        assert (run.status, run.result) == (RunStatus.SUCCEEDED, {"status": "finished"})
        assert (run.config, run.seed) == (samples.RUN["config"], 7)


def test_a_file_of_the_first_format_goes_on(first: Path) -> None:
    with open_store(first) as store:
        # The same record again is a repeat, although records have more fields by now.
        assert store.put_rollouts(samples.rollouts(3)) == PutResult(new=1, unchanged=2)
        late = samples.rollout("roll_000000", answer="late")
        assert store.put_rollouts([late]) == PutResult(unchanged=1)
        store.put_spans("run_a", [samples.span()])
        assert store.spans("run_a", "roll_0") == [samples.span()]


def test_an_upgraded_file_has_the_tables_of_a_new_one(first: Path, tmp_path: Path) -> None:
    open_store(first).close()
    open_store(tmp_path / "new.db").close()
    assert tables(first) == tables(tmp_path / "new.db")


def tables(path: Path) -> dict[str, Any]:
    """Columns, keys and indexes of every table."""
    engine = create_engine(f"sqlite:///{path}")
    found = inspect(engine)

    def plain(column: dict[str, Any]) -> tuple[Any, ...]:
        return (column["name"], str(column["type"]), column["nullable"], column["primary_key"])

    shape = {
        name: (
            [plain(dict(c)) for c in found.get_columns(name)],
            sorted(
                (
                    tuple(k["constrained_columns"]),
                    k["referred_table"],
                    tuple(dict(k).get("options", {}).items()),
                )
                for k in found.get_foreign_keys(name)
            ),
            sorted((i["name"], tuple(i["column_names"])) for i in found.get_indexes(name)),
        )
        for name in found.get_table_names()
    }
    engine.dispose()
    return shape
