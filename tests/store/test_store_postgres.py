"""The conformance suite on PostgreSQL, several writers at once, and a server that is killed.

Needs Debian's PostgreSQL programs (package `postgresql`); without them it is skipped.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tutelage.errors import StoreError
from tutelage.store import StoreWriter, open_store
from tutelage.store.postgres import safe_url

from . import samples
from .child import ROOT, acknowledged_by, assert_whole, rest_of, spawn
from .conformance import Opened, StoreConformance
from .postgres import Server, find_programs

pytest.importorskip("psycopg", reason="psycopg is not installed: tutelage[postgres]")
PROGRAMS = find_programs()
pytestmark = pytest.mark.skipif(
    PROGRAMS is None, reason="no PostgreSQL server here: install Debian's package `postgresql`"
)
Fresh = Callable[[], str]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    assert PROGRAMS is not None
    server = Server(PROGRAMS)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def fresh(server: Server) -> Fresh:
    """Addresses of new databases."""
    count = itertools.count()
    return lambda: server.create(f"db{next(count)}")


class TestPostgres(StoreConformance):
    """All of the suite."""

    @pytest.fixture
    def opened(self, fresh: Fresh) -> Opened:
        addresses: dict[str, str] = {}

        def opened(name: str) -> object:
            if name not in addresses:
                addresses[name] = fresh()
            return open_store(addresses[name])

        return opened  # pyright: ignore


def test_a_missing_store_is_not_made_by_looking(fresh: Fresh) -> None:
    address = fresh()
    with pytest.raises(StoreError, match="no store at 'postgresql://"):
        open_store(address, create=False)
    open_store(address).close()
    open_store(address, create=False).close()


def test_a_database_that_is_not_there(server: Server) -> None:
    with pytest.raises(StoreError, match="the database does not exist: create it with `createdb`"):
        open_store(server.url("nothing"))


def test_a_password_is_never_shown(tmp_path: Path) -> None:
    from sqlalchemy import make_url

    for address in (
        "postgresql+psycopg://me:secret@host:5433/db?sslmode=require",
        "postgresql://me@host/db?password=secret",
    ):
        assert "secret" not in safe_url(make_url(address))
    with pytest.raises(StoreError) as caught:
        open_store(f"postgresql://me:secret@/x?host={tmp_path}")
    assert "secret" not in str(caught.value)
    with pytest.raises(StoreError, match="has no database name") as caught:
        open_store("postgresql://me:secret@host")
    assert "secret" not in str(caught.value)


def write(address: str, first: int, count: int) -> subprocess.Popen[str]:
    """A process that writes rollouts of run_a; they share a task, tools and metrics."""
    code = f"""
import sys
from tests.store import samples
from tutelage.store import StoreWriter, open_store
with open_store({address!r}) as store, StoreWriter(store, max_batch=3) as writer:
    for i in range({first}, {first} + {count}):
        writer.submit(samples.rollouts(1, first=i))
        writer.submit_spans("run_a", [samples.span(i, f"roll_{{i:06d}}")])
        store.put_metrics("run_a", i % 7, {{f"writer_{first}": i}})
        store.put_run("run_a", **samples.RUN)
"""
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.full
@pytest.mark.system
def test_several_processes_write_at_once(fresh: Fresh) -> None:
    address = fresh()
    with open_store(address) as store:
        store.put_run("run_a", **samples.RUN)
        children = [write(address, 1000 * k, 40) for k in range(4)]
        errors = [child.communicate(timeout=240)[1] for child in children]
        assert [child.returncode for child in children] == [0] * 4, errors
        assert store.count("run_a") == samples.count_spans(store, "run_a") == 160
        wanted = sorted(samples.rollouts(1, first=1000 * k + i)[0].id for k in range(4)
                        for i in range(40))  # fmt: skip
        assert sorted(r.id for r in store.rollouts("run_a")) == wanted
        assert [len(m.values) for m in store.metrics("run_a")] == [4] * 7


@pytest.mark.full
@pytest.mark.system
@pytest.mark.parametrize("how", [pytest.param("put", marks=pytest.mark.full), "writer"])
def test_a_killed_writer_loses_nothing_that_was_acknowledged(fresh: Fresh, how: str) -> None:
    address, acknowledged = fresh(), list[str]()
    for turn in range(3):
        child = spawn(address, how, turn * 100_000)
        acknowledged += acknowledged_by(child, 4 * turn + 2)
        child.kill()
        acknowledged += rest_of(child)
    with open_store(address) as store:
        assert_whole(store, acknowledged)
    assert len(acknowledged) >= 90


@pytest.mark.full
@pytest.mark.system
def test_a_killed_server_loses_nothing_that_was_acknowledged() -> None:
    assert PROGRAMS is not None
    server = Server(PROGRAMS)
    try:
        server.start()
        address = server.create("tutelage")
        child = spawn(address, "writer", 0)
        acknowledged = acknowledged_by(child, 6)
        with open_store(address, create=False) as open_before:
            server.kill()
            said = rest_of(child)
            with pytest.raises(StoreError, match="all acknowledged data is kept"):
                open_before.count("run_a")
            server.start()
            assert_whole(open_before, [*acknowledged, *said])  # the same Store goes on
            known = open_before.count("run_a")
            with StoreWriter(open_before) as writer:
                writer.submit(samples.rollouts(3, first=900_000))
            assert open_before.count("run_a") == known + 3
    finally:
        server.stop()
    assert os.path.exists(server.folder) is False
