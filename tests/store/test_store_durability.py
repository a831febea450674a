"""What was acknowledged survives a kill and a full disk."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.marks import long

from tutelage.store import open_store

from . import samples
from .child import acknowledged_by, assert_whole, rest_of, spawn


@pytest.mark.system
@pytest.mark.parametrize("how", [pytest.param("put", marks=pytest.mark.full), "writer"])
def test_a_kill_loses_nothing_that_was_acknowledged(tmp_path: Path, how: str) -> None:
    path = tmp_path / "x.db"
    draw = random.Random(0)
    acknowledged: list[str] = []
    for turn in range(4):
        child = spawn(path, how, turn * 100_000)
        acknowledged += acknowledged_by(child, draw.randrange(1, 30))
        child.kill()
        acknowledged += rest_of(child)
        with open_store(path) as store:
            assert_whole(store, acknowledged)
    assert len(acknowledged) > 20


@pytest.mark.system
@pytest.mark.parametrize("how", [pytest.param("put", marks=pytest.mark.full), "writer"])
@pytest.mark.parametrize("limit", [500_000, *long(pytest.param(1_500_000, marks=pytest.mark.full))])
def test_a_full_disk_keeps_what_was_acknowledged(tmp_path: Path, how: str, limit: int) -> None:
    path = tmp_path / "x.db"
    out, _ = spawn(path, how, 0, limit).communicate(timeout=120)
    *lines, error, still = out.splitlines()
    acknowledged = " ".join(lines).split()
    assert acknowledged
    assert error.startswith("error")
    assert str(path) in error
    assert "free some space" in error
    assert still.startswith("still reads")
    assert int(still.split()[-1]) >= len(acknowledged)
    with open_store(path) as store:
        assert_whole(store, acknowledged)
        # And it can be written again, from where it stopped.
        store.put_rollouts(samples.rollouts(len(acknowledged) + 20, tokens=64))
        assert store.count("run_a") == len(acknowledged) + 20
